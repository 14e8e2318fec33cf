//! A decode server as the router sees it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::time::Instant;

/// `HOST:PORT`, with or without `http://` in front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(String);

/// Not an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("server address: expected HOST:PORT or http://HOST:PORT, got {0:?}")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let rest = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let plain = match bracketed {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(name),
        };
        if plain && port != 0 { Ok(Self(format!("{host}:{port}"))) } else { Err(wrong()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Address {
    /// `HOST:PORT`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the last look at a server's health brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetState {
    /// Not looked at yet.
    Unknown,
    /// It answered 200.
    Well,
    /// It did not, and this is why.
    Unwell(String),
}

impl fmt::Display for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetState::Unknown => f.write_str("not looked at yet"),
            TargetState::Well => f.write_str("well"),
            TargetState::Unwell(why) => f.write_str(why),
        }
    }
}

/// A decode server.
#[derive(Debug)]
pub struct Target {
    address: Address,
    state: Mutex<TargetState>,
    /// Looks in a row without an answer in time.
    late: AtomicU32,
    /// When it last answered a look, whatever it said.
    heard: Mutex<Instant>,
    outstanding: AtomicUsize,
    asked: AtomicU64,
    unreached: AtomicU64,
    broken: AtomicU64,
}

impl Target {
    pub(super) fn new(address: Address) -> Self {
        let (asked, unreached, broken) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let state = Mutex::new(TargetState::Unknown);
        let late = AtomicU32::new(0);
        let heard = Mutex::new(Instant::now());
        Self { address, state, late, heard, outstanding: AtomicUsize::new(0), asked, unreached, broken }
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What the last look brought.
    pub fn state(&self) -> TargetState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether requests should go there.
    pub fn is_well(&self) -> bool {
        self.state() == TargetState::Well
    }

    /// Requests of this router that are under way there.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Requests that it was asked.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Requests that did not reach it.
    pub fn unreached(&self) -> u64 {
        self.unreached.load(Ordering::Relaxed)
    }

    /// Answers that broke off.
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }

    /// One more look without an answer in time; how many in a row.
    pub(super) fn count_late(&self) -> u32 {
        self.late.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// It has answered a look.
    pub(super) fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Ends when it has answered no look for so long, counted from now at the earliest.
    pub(super) async fn silent(self: Arc<Self>, patience: Duration) {
        let begin = Instant::now();
        loop {
            let heard = begin.max(*self.heard.lock().unwrap_or_else(PoisonError::into_inner));
            if heard.elapsed() >= patience {
                return;
            }
            tokio::time::sleep_until(heard + patience).await;
        }
    }

    pub(super) fn set(&self, state: TargetState) {
        self.late.store(0, Ordering::Relaxed);
        let mut held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *held != state {
            tracing::info!(target = %self.address, %state, "decode server");
            *held = state;
        }
    }

    pub(super) fn count_unreached(&self) {
        self.unreached.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_broken(&self) {
        self.broken.fetch_add(1, Ordering::Relaxed);
    }
}

/// A request that is under way; it ends with this value.
#[derive(Debug)]
pub(super) struct Outstanding(Arc<Target>);

impl Outstanding {
    pub(super) fn of(target: &Arc<Target>) -> Self {
        target.outstanding.fetch_add(1, Ordering::Relaxed);
        target.asked.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(target))
    }

    pub(super) fn target(&self) -> &Arc<Target> {
        &self.0
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
