//! Clients that ask without pause, and what each of them is told.

use super::super::tokens;
use crate::e2e::http::Connection;
use reference::rng::Rng;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Before a client that was told no asks again.
const PAUSE: Duration = Duration::from_millis(50);
/// Tokens of a prompt at most, and of an answer.
const PROMPT: u64 = 400;
const ANSWER: usize = 24;

/// What became of a request.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) asked: Instant,
    pub(super) ended: Instant,
    /// The reason of a failure.
    pub(super) outcome: Result<(), String>,
}

/// So many clients.
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<Told>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts them.
    pub(super) fn start(address: SocketAddr, count: u64) -> Self {
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let client = |number| {
            let (stop, told) = (Arc::clone(&stop), Arc::clone(&told));
            std::thread::spawn(move || talk(address, number, &stop, &told))
        };
        let threads = (0..count).map(client).collect();
        Self { stop, told, threads }
    }

    /// Answers to requests that were asked since then.
    pub(super) fn answered_since(&self, since: Instant) -> usize {
        lock(&self.told).iter().filter(|told| told.asked >= since && told.outcome.is_ok()).count()
    }

    /// Lets every client end its request, and says what all were told.
    pub(super) fn stop(self) -> Vec<Told> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            // A client that panicked has told nothing, which the count of answers shows.
            let _ = thread.join();
        }
        std::mem::take(&mut lock(&self.told))
    }
}

fn lock(told: &Mutex<Vec<Told>>) -> MutexGuard<'_, Vec<Told>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn talk(address: SocketAddr, number: u64, stop: &AtomicBool, told: &Mutex<Vec<Told>>) {
    let (mut random, mut open) = (Rng::new(number << 32), None);
    while !stop.load(Ordering::Acquire) {
        let asked = Instant::now();
        let connection = open.take().map_or_else(|| Connection::open(&address.to_string()), Ok);
        let outcome = connection.and_then(|mut connection| {
            ask(&mut connection, &mut random)?;
            // After a failure nobody knows what is still on its way.
            open = Some(connection);
            Ok(())
        });
        let failed = outcome.is_err();
        let outcome = outcome.map_err(|error| error.to_string());
        lock(told).push(Told { asked, ended: Instant::now(), outcome });
        if failed {
            std::thread::sleep(PAUSE);
        }
    }
}

fn ask(connection: &mut Connection, random: &mut Rng) -> std::io::Result<()> {
    let length = 1 + random.below(PROMPT);
    let body = json!({
        "prompt": tokens(random, length), "max_tokens": ANSWER, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "stream": true,
    });
    let (mut tokens, mut error) = (0, None);
    connection.ask(&body, |event| {
        tokens += event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
        error = event["error"]["message"].as_str().map(str::to_owned).or_else(|| error.take());
    })?;
    match error {
        Some(why) => Err(std::io::Error::other(why)),
        None if tokens != ANSWER => {
            Err(std::io::Error::other(format!("expected {ANSWER} tokens, got {tokens} and no reason")))
        }
        None => Ok(()),
    }
}
