//! Health follows the work.

use crate::client::{Client, ask, get, post};
use crate::fake::{Fake, Script};
use crate::rig::{Server, engine, until};
use serde_json::json;
use server::backend::EngineBackend;
use server::http::Limits;
use std::sync::Arc;
use std::time::Duration;

/// A worker that stops moving with work in hand is named, by both probes, and forgiven when it moves again.
#[test]
fn a_stuck_worker_is_named() {
    let fake = Fake::new(Script::say("x"));
    let limits = Limits { stall: Duration::from_millis(100), ..Limits::default() };
    let server = Server::start(fake.clone(), limits);
    let health = || get(server.address, "/health");
    assert_eq!(health().status, 200, "idle is healthy");
    assert_eq!(get(server.address, "/health_generate").status, 200);
    fake.set(Script::Hang);
    let mut client = Client::connect(server.address);
    client.send(&post("/v1/completions", b"{\"prompt\": \"x\"}"));
    until("the health is bad", || health().status == 503);
    let body = health().json();
    assert_eq!(body["status"], "stuck");
    assert!(body["reason"].as_str().is_some_and(|why| why.starts_with("worker: 1 waiting, no progress for")), "{body}");
    assert_eq!(body["parts"][0]["waiting"], 1);
    assert_eq!(get(server.address, "/live").status, 200, "the process answers all the same");
    let canary = get(server.address, "/health_generate");
    assert_eq!(canary.status, 503);
    assert!(canary.json()["reason"].as_str().is_some_and(|why| why.starts_with("worker: ")), "{}", canary.text());
    fake.set(Script::say("x"));
    fake.release(&Script::say("late"));
    assert_eq!(client.answer().expect("an answer").status, 200);
    until("the health is good again", || health().status == 200);
    assert_eq!(get(server.address, "/health_generate").status, 200);
}

/// Somebody computes, but not this request.
#[test]
fn a_canary_has_a_limit() {
    let fake = Fake::new(Script::Hang);
    let limits =
        Limits { canary_time: Duration::from_millis(50), stall: Duration::from_secs(600), ..Limits::default() };
    let server = Server::start(fake.clone(), limits);
    let canary = get(server.address, "/health_generate");
    assert_eq!((canary.status, &canary.json()["reason"]), (503, &json!("no token within 0.05 s")));
    assert_eq!(fake.cancelled.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// An engine that fails ends its requests with the reason, and everything after them too.
#[test]
fn a_dead_engine_is_no_empty_answer() {
    let server = Server::start(Arc::new(EngineBackend::new(engine(8))), Limits::default());
    assert_eq!(get(server.address, "/health").status, 200);
    let body = json!({ "prompt": "more than eight tokens", "max_tokens": 3 });
    let failed = ask(server.address, "/v1/completions", &body);
    assert_eq!(failed.status, 500);
    assert!(failed.message().contains("expected at least"), "{}", failed.message());
    until("the engine has ended", || server.app.backend().ended().is_some());
    let health = get(server.address, "/health");
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("ended")));
    assert!(health.json()["reason"].as_str().is_some_and(|why| why.contains("expected at least")));
    let refused = ask(server.address, "/v1/completions", &body);
    assert_eq!(refused.status, 503);
    assert!(refused.message().contains("expected at least"), "{}", refused.message());
    assert_eq!(get(server.address, "/health_generate").status, 503);
}

/// The engine's own parts, as `/health` shows them.
#[test]
fn an_engine_generates_for_its_probe() {
    let server = Server::start(Arc::new(EngineBackend::new(engine(64))), Limits::default());
    let canary = get(server.address, "/health_generate");
    assert_eq!((canary.status, &canary.json()["status"]), (200, &json!("ok")), "{}", canary.text());
    let body = get(server.address, "/health").json();
    let names: Vec<&str> =
        body["parts"].as_array().into_iter().flatten().filter_map(|part| part["name"].as_str()).collect();
    assert_eq!(names, ["rank 0", "engine", "commands"]);
    assert!(body["parts"][0]["done"].as_u64().is_some_and(|layers| layers > 1));
}
