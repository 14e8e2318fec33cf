//! The servers that a decode rank keeps a connection to.

use crate::exchange::PeerSeen;
use crate::ids::PeerId;
use crate::reason::{Code, Reason};
use std::time::Duration;

#[derive(Debug)]
struct Target {
    address: String,
    peer: Option<PeerId>,
    connecting: bool,
    retry: Duration,
    /// Why there is no connection, where there is none.
    down: Reason,
}

/// In the order of the configuration, which is that of [`crate::exchange::Command::Open`].
#[derive(Debug)]
pub(super) struct Targets(Vec<Target>);

impl Targets {
    pub(super) fn new(addresses: &[String]) -> Self {
        let target = |address: &String| Target {
            address: address.clone(),
            peer: None,
            connecting: false,
            retry: Duration::ZERO,
            down: Reason::new(Code::PeerLost, format!("{address}: not connected yet")),
        };
        Self(addresses.iter().map(target).collect())
    }

    /// Targets to connect to now; each is reported back once.
    pub(super) fn due(&mut self, now: Duration) -> Vec<(usize, String)> {
        let idle = |target: &&mut Target| target.peer.is_none() && !target.connecting && target.retry <= now;
        let mut due = Vec::new();
        for (index, target) in self.0.iter_mut().enumerate() {
            if idle(&target) {
                target.connecting = true;
                due.push((index, target.address.clone()));
            }
        }
        due
    }

    pub(super) fn connected(&mut self, index: usize, peer: PeerId) {
        if let Some(target) = self.0.get_mut(index) {
            (target.connecting, target.peer) = (false, Some(peer));
        }
    }

    /// An attempt came to nothing; whether that is for another reason than the one before.
    pub(super) fn refused(&mut self, index: usize, error: &std::io::Error, retry: Duration) -> bool {
        let Some(target) = self.0.get_mut(index) else { return false };
        let down = Reason::new(Code::PeerLost, format!("{}: {error}", target.address));
        (target.connecting, target.retry) = (false, retry);
        std::mem::replace(&mut target.down, down.clone()) != down
    }

    /// A connection was torn down.
    pub(super) fn lost(&mut self, peer: PeerId, reason: &Reason, retry: Duration) {
        for target in self.0.iter_mut().filter(|target| target.peer == Some(peer)) {
            (target.peer, target.retry) = (None, retry);
            target.down = Reason::new(reason.code, format!("{}: {}", target.address, reason.text));
        }
    }

    /// The connection to a server.
    pub(super) fn peer(&self, server: u32) -> Option<PeerId> {
        self.0.get(server as usize)?.peer
    }

    /// All of them; `is_ready` says whether pages can come over a connection.
    pub(super) fn seen(&self, is_ready: impl Fn(PeerId) -> bool) -> Vec<PeerSeen> {
        let seen = |target: &Target| match target.peer {
            Some(peer) if is_ready(peer) => PeerSeen::Up,
            Some(_) | None => PeerSeen::Down(target.down.clone()),
        };
        self.0.iter().map(seen).collect()
    }
}
