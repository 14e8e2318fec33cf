//! Bytes that no client should send. The server answers what it can, never with a 5xx, and serves the next one.

use crate::client::{Answer, Client, ask, ask_bytes, get, post};
use crate::fake::{Fake, Script};
use crate::rig::{Server, until};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use server::http::Limits;
use std::net::SocketAddr;
use std::time::Duration;

const PATHS: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];

fn still_serves(address: SocketAddr) {
    let answer = ask(address, PATHS[0], &json!({ "prompt": "x" }));
    assert_eq!((answer.status, &answer.json()["choices"][0]["text"]), (200, &json!("x")));
}

fn not_the_servers_fault(answer: &Answer) {
    assert!(answer.status < 500, "{}", answer.text());
    if answer.status >= 400 {
        assert!(!answer.message().is_empty());
    }
}

/// A value of any type, odd ones included.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(1e308)),
        Just(json!(-0.0)),
        ".{0,8}".prop_map(Value::from),
        Just(json!("\u{0}")),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map("role|content|type|text|function|name|tool_calls|[a-z]{1,3}", inner, 0..4)
                .prop_map(|map| json!(map)),
        ]
    })
}

fn field() -> impl Strategy<Value = String> {
    let names = [
        "prompt",
        "messages",
        "model",
        "max_tokens",
        "temperature",
        "seed",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "ignore_eos",
        "n",
        "top_p",
        "top_k",
        "logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "thinking",
        "reasoning_effort",
        "chat_template_kwargs",
        "max_completion_tokens",
        "logit_bias",
        "user",
        "",
    ];
    proptest::sample::select(names.to_vec()).prop_map(str::to_owned)
}

#[test]
fn any_json_is_answered() {
    let server = Server::start(Fake::new(Script::say("x")), Limits::default());
    let fields = proptest::collection::vec((field(), value()), 0..4);
    let cuts = (fields, any::<bool>(), proptest::option::of((any::<prop::sample::Index>(), any::<u8>())), 0usize..2);
    let mut runner = TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let ran = runner.run(&cuts, |(fields, valid, flip, path)| {
        let mut body = if !valid {
            json!({})
        } else if path == 0 {
            json!({ "prompt": "x", "max_tokens": 2 })
        } else {
            json!({ "messages": [{ "role": "user", "content": "x" }], "reasoning_effort": "none", "max_tokens": 2 })
        };
        for (name, value) in fields {
            body[name] = value;
        }
        let mut bytes = body.to_string().into_bytes();
        if let Some((at, byte)) = flip {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        not_the_servers_fault(&ask_bytes(server.address, PATHS[path], &bytes));
        Ok(())
    });
    ran.expect("no answer is a 5xx");
    still_serves(server.address);
}

#[test]
fn bodies_that_are_no_requests() {
    let server = Server::start(Fake::new(Script::say("x")), Limits { body_bytes: 100_000, ..Limits::default() });
    let deep = |open: &str, close: &str| {
        format!("{{\"prompt\": {}{}}}", open.repeat(10_000), close.repeat(10_000)).into_bytes()
    };
    let bodies: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"\xff\xfe\x00".to_vec(),
        b"{\"prompt\": \"\xc3\x28\"}".to_vec(),
        b"{\"prompt\": \"\\ud800\"}".to_vec(),
        b"{\"prompt\": \"x\", \"max_tokens\": 1e99999}".to_vec(),
        b"{\"prompt\": \"x\", \"max_tokens\": 123456789012345678901234567890}".to_vec(),
        b"{\"prompt\": [1e20]}".to_vec(),
        b"{\"prompt\": \"x\"} trailing".to_vec(),
        deep("[", "]"),
        deep("{\"a\":", "}"),
    ];
    for body in &bodies {
        for path in PATHS {
            let answer = ask_bytes(server.address, path, body);
            assert_eq!(
                answer.status,
                400,
                "{:?}: {}",
                String::from_utf8_lossy(&body[..body.len().min(60)]),
                answer.text()
            );
        }
    }
    let mut client = Client::connect(server.address);
    // More than the limit; sent in part, as a client does that looks at the answer.
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 1000000\r\n\r\n");
    client.send(&[b'x'; 110_000]);
    let answer = client.answer().expect("an answer");
    assert_eq!((answer.status, answer.message().as_str()), (413, "body: expected at most 100000 bytes, got more"));
    still_serves(server.address);
}

#[test]
fn bytes_that_are_no_http() {
    let server = Server::start(Fake::new(Script::say("x")), Limits::default());
    let mut garbage: Vec<Vec<u8>> = vec![
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"POST /v1/completions HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n".to_vec(),
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n".to_vec(),
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        [b"GET /".as_slice(), &vec![b'a'; 1 << 20], b" HTTP/1.1\r\n\r\n"].concat(),
        [b"GET / HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(10_000), b"\r\n"].concat(),
        vec![0; 4096],
    ];
    let mut seed = 1u64;
    for len in [1, 10, 100, 1000] {
        garbage.push(
            (0..len)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 33) as u8
                })
                .collect(),
        );
    }
    for bytes in garbage {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(server.address).expect("the server listens");
        // The server may hang up before it has read everything.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            !answer.starts_with("HTTP/1.1 5"),
            "{:?}: {answer}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(80)])
        );
        still_serves(server.address);
    }
}

/// Heads and bodies that never end take a connection each and nothing else, and not for ever.
#[test]
fn slow_clients_wait_alone() {
    let short = Duration::from_millis(300);
    let server =
        Server::start(Fake::new(Script::say("x")), Limits { head_time: short, body_time: short, ..Limits::default() });
    let mut heads: Vec<Client> = (0..40)
        .map(|_| {
            let mut client = Client::connect(server.address);
            client.send(b"POST /v1/completions HTTP/1.1\r\nhost:");
            client
        })
        .collect();
    let mut bodies: Vec<Client> = (0..40)
        .map(|_| {
            let mut client = Client::connect(server.address);
            client.send(&post(PATHS[0], b"{\"prompt\": \"x\"}")[..70]);
            client
        })
        .collect();
    still_serves(server.address);
    for client in &mut heads {
        assert!(client.head().is_none_or(|(status, _)| status == 408), "hung up on");
    }
    for client in &mut bodies {
        let answer = client.answer().expect("an answer");
        assert_eq!((answer.status, answer.message().as_str()), (408, "body: expected within 0.3 s"));
    }
    drop((heads, bodies));
    until("only the one that asks is connected", || {
        get(server.address, "/metrics").text().contains("sm120_connections 1\n")
    });
}

#[test]
fn too_many_connections_are_closed() {
    let server = Server::start(Fake::new(Script::say("x")), Limits { connections: 2, ..Limits::default() });
    let mut kept: Vec<Client> = (0..2)
        .map(|_| {
            let mut client = Client::connect(server.address);
            client.send(b"GET /live HTTP/1.1\r\nhost: test\r\n\r\n");
            assert_eq!(client.answer().expect("an answer").status, 200);
            client
        })
        .collect();
    assert!(Client::connect(server.address).head().is_none(), "the third is hung up on");
    drop(kept.pop());
    until("a place is free", || {
        let mut client = Client::connect(server.address);
        client.send(b"GET /live HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        client.answer().is_some_and(|answer| answer.status == 200)
    });
}
