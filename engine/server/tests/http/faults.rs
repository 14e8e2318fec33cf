//! Connections that stall or break off: the others do not notice, and their requests are not computed for nobody.

use crate::client::{Client, get, post};
use crate::fake::{Fake, Script};
use crate::rig::{Server, until};
use server::http::Limits;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(1500);

/// A server whose first connection has a fault.
fn server(rules: &str) -> (Server, Arc<Fake>) {
    let fake = Fake::new(Script::say("hello"));
    let limits = Limits { head_time: SHORT, body_time: SHORT, write_time: SHORT, ..Limits::default() };
    (Server::with_faults(fake.clone(), limits, rules), fake)
}

fn ask(server: &Server) -> Client {
    let mut client = Client::connect(server.address);
    client.send(&post("/v1/completions", b"{\"prompt\": \"x\"}"));
    client
}

#[test]
fn a_stall_ends_at_its_limit_and_is_nobody_elses() {
    for (rules, submitted) in [("http:read=stall(600000)#1", 0), ("http:write=stall(600000)#1", 1)] {
        let (server, fake) = server(rules);
        let mut stalled = ask(&server);
        // Accepted before the next one is.
        assert_eq!(get(server.address, "/live").status, 200, "{rules}: beside it");
        assert!(stalled.head().is_none_or(|(status, _)| status == 408), "{rules}: hung up on");
        assert_eq!(fake.submitted.load(Ordering::SeqCst), submitted, "{rules}");
        until("it is gone", || get(server.address, "/metrics").text().contains("sm120_connections 1\n"));
    }
}

#[test]
fn a_short_stall_is_a_late_answer() {
    for rules in ["http:read=stall(150)#1", "http:write=stall(150)#1"] {
        let (server, _) = server(rules);
        let start = Instant::now();
        assert_eq!(ask(&server).answer().expect("an answer").status, 200, "{rules}");
        assert!(start.elapsed() >= Duration::from_millis(150), "{rules}");
    }
}

#[test]
fn a_connection_breaks_off_at_any_byte() {
    for (rules, complete) in [
        ("http:read=close(0)#1", false),
        ("http:read=close(40)#1", false),
        ("http:write=close(0)#1", false),
        ("http:write=close(30)#1", false),
        ("http:write=close(1000000)#1", true),
    ] {
        let (server, fake) = server(rules);
        assert_eq!(ask(&server).answer().is_some_and(|answer| answer.status == 200), complete, "{rules}");
        until("it is gone", || get(server.address, "/metrics").text().contains("sm120_connections 1\n"));
        assert_eq!(ask(&server).answer().expect("the next one").status, 200, "{rules}");
        assert!(fake.submitted.load(Ordering::SeqCst) >= 1);
    }
}
