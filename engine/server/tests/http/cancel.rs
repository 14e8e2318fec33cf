//! Clients that go away, queues that are full, servers that stop.

use crate::client::{Client, ask, get, post};
use crate::fake::{Fake, Script, ids};
use crate::rig::{RUNNING, Server, engine, until};
use engine::sequence::FinishReason;
use serde_json::{Value, json};
use server::backend::EngineBackend;
use server::http::Limits;
use server::serve::Drained;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";

fn long(stream: bool) -> Value {
    json!({ "prompt": "a long story", "max_tokens": 600, "ignore_eos": true, "stream": stream })
}

/// Streaming or not, running or waiting: who goes away stops being computed, and every page comes back.
#[test]
fn a06_a_client_that_goes_away_is_not_computed() {
    let backend = EngineBackend::new(engine(64));
    let idle = backend.engine().snapshot();
    let server = Server::start(Arc::new(backend.clone()), Limits { in_flight: 64, ..Limits::default() });
    for stream in [true, false] {
        let open = || {
            let mut client = Client::connect(server.address);
            client.send(&post(COMPLETIONS, long(stream).to_string().as_bytes()));
            client
        };
        let mut clients: Vec<Client> = (0..RUNNING + 4).map(|_| open()).collect();
        until("the engine is full", || backend.engine().snapshot().running as u32 == RUNNING);
        until("others wait", || backend.engine().snapshot().waiting == 4);
        if stream {
            // The youngest four have no token yet.
            assert_eq!(clients[0].head().expect("a status").0, 200);
            clients[0].chunk().expect("a token");
        }
        let before = backend.engine().snapshot().stats.computed_tokens;
        drop(clients);
        until("nobody runs or waits", || {
            let now = backend.engine().snapshot();
            (now.running, now.waiting) == (0, 0) && now.compressed == idle.compressed && now.window == idle.window
        });
        assert_eq!(server.app.in_flight(), 0);
        let computed = backend.engine().snapshot().stats.computed_tokens - before;
        assert!(computed < 600, "{computed} tokens were computed for nobody, of 20 times 600");
    }
    let metrics = get(server.address, "/metrics").text();
    assert!(metrics.contains("outcome=\"abandoned\"} 40\n"), "{metrics}");
}

#[test]
fn a_full_server_says_so() {
    let fake = Fake::new(Script::Hang);
    let server = Server::start(fake.clone(), Limits { in_flight: 2, ..Limits::default() });
    let mut waiting: Vec<Client> = (0..2)
        .map(|_| {
            let mut client = Client::connect(server.address);
            client.send(&post(COMPLETIONS, b"{\"prompt\": \"x\"}"));
            client
        })
        .collect();
    until("both wait", || server.app.in_flight() == 2);
    let refused = ask(server.address, COMPLETIONS, &json!({ "prompt": "x" }));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.message(), "2 texts run or wait already, the limit of this server");
    assert!(refused.head.contains("retry-after: 1"));
    drop(waiting.pop());
    until("a place is free", || server.app.in_flight() == 1);
    let refused = ask(server.address, COMPLETIONS, &json!({ "prompt": ["x", "y"] }));
    assert_eq!(refused.status, 429, "all prompts or none");
    assert_eq!(server.app.in_flight(), 1, "a place that was taken for nothing is free again");
    assert_eq!(fake.submitted.load(Ordering::SeqCst), 2);
    fake.set(Script::say("x"));
    assert_eq!(ask(server.address, COMPLETIONS, &json!({ "prompt": "x" })).status, 200);
    fake.release(&Script::say("late"));
    assert_eq!(waiting[0].answer().expect("an answer").json()["choices"][0]["text"], "late");
}

/// More than sockets hold, to a client that takes none of it.
#[test]
fn a_client_that_does_not_read_loses_its_place() {
    let fake = Fake::new(Script::Say(ids(&[b'x'; 150_000]), FinishReason::MaxTokens));
    let limits = Limits { in_flight: 1, write_time: Duration::from_millis(200), ..Limits::default() };
    let server = Server::start(fake.clone(), limits);
    let mut client = Client::connect(server.address);
    client.send(&post(COMPLETIONS, b"{\"prompt\": \"x\", \"stream\": true}"));
    until("the request is there", || fake.submitted.load(Ordering::SeqCst) == 1);
    until("its place is free", || server.app.in_flight() == 0);
    assert_eq!(client.head().expect("a status").0, 200);
    while client.chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    let metrics = get(server.address, "/metrics").text();
    assert!(metrics.contains("outcome=\"abandoned\"} 1\n"), "{metrics}");
}

/// What was taken is finished; nothing new is.
#[test]
fn a_server_that_stops_finishes_first() {
    let fake = Fake::new(Script::Hang);
    let server = Server::start(fake.clone(), Limits::default());
    let (address, app) = (server.address, Arc::clone(&server.app));
    let mut idle = Client::connect(address);
    idle.send(b"GET /live HTTP/1.1\r\nhost: test\r\n\r\n");
    assert_eq!(idle.answer().expect("an answer").status, 200);
    let mut client = Client::connect(address);
    client.send(&post(COMPLETIONS, b"{\"prompt\": \"x\"}"));
    until("the request is there", || app.in_flight() == 1);
    let drained = server.stop(|| {
        until("nobody listens", || TcpStream::connect(address).is_err());
        assert!(!app.health().is_ok());
        assert!(idle.answer().is_none(), "a connection without a request is closed");
        fake.release(&Script::say("in time"));
        assert_eq!(client.answer().expect("an answer").json()["choices"][0]["text"], "in time");
    });
    assert_eq!(drained, Drained::All);
}

#[test]
fn a_server_that_stops_waits_no_longer_than_it_was_told() {
    let fake = Fake::new(Script::Hang);
    let server = Server::draining(fake.clone(), Limits::default(), Duration::from_millis(50));
    let app = Arc::clone(&server.app);
    let mut client = Client::connect(server.address);
    client.send(&post(COMPLETIONS, b"{\"prompt\": \"x\"}"));
    until("the request is there", || app.in_flight() == 1);
    assert_eq!(server.stop(|| ()), Drained::Cut(1));
    assert!(client.answer().is_none(), "cut off");
    assert_eq!((fake.cancelled.load(Ordering::SeqCst), app.in_flight()), (1, 0), "and cancelled");
}
