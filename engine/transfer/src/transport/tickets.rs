//! Posts that have not ended, and posts of which nobody knows whether they still write.

use super::{Bounds, MAX_COPIES, Op, Post, TransportError};
use crate::ids::{PeerId, Ticket};
use crate::room::Proof;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    /// Ended with an error: it may still write.
    Unproven,
}

/// Tickets of one transport: the bookkeeping that every implementation shares. What ended without doubt is forgotten.
#[derive(Debug)]
pub struct Tickets {
    last: Ticket,
    by_peer: BTreeMap<PeerId, BTreeMap<Ticket, Standing>>,
    torn_down: BTreeSet<PeerId>,
}

impl Default for Tickets {
    fn default() -> Self {
        Self::new()
    }
}

impl Tickets {
    /// None, of no peer.
    pub fn new() -> Self {
        Self { last: Ticket(0), by_peer: BTreeMap::new(), torn_down: BTreeSet::new() }
    }

    /// A new peer.
    ///
    /// # Errors
    /// A number that was used.
    pub fn connect(&mut self, peer: PeerId) -> Result<(), TransportError> {
        if self.by_peer.contains_key(&peer) || self.torn_down.contains(&peer) {
            return Err(TransportError::PeerAgain(peer));
        }
        self.by_peer.insert(peer, BTreeMap::new());
        Ok(())
    }

    /// Checks what can be checked of a post here; [`Tickets::begin`] enters it.
    ///
    /// # Errors
    /// An unknown peer, a ticket that does not rise, too many copies, a range of this side outside a page.
    pub fn check(&self, post: &Post, bounds: &Bounds) -> Result<(), TransportError> {
        let ticket = post.ticket;
        if !self.by_peer.contains_key(&post.peer) {
            return Err(TransportError::Peer(post.peer));
        }
        if ticket <= self.last {
            return Err(TransportError::Ticket { last: self.last, got: ticket });
        }
        if post.copies.len() > MAX_COPIES {
            return Err(TransportError::Copies { ticket, got: post.copies.len() });
        }
        for (copy, range) in post.copies.iter().enumerate() {
            let (offset, bytes) = (if post.op == Op::Write { range.src } else { range.dst }, range.bytes);
            if bounds.item(offset, bytes).is_none() {
                return Err(TransportError::Range { ticket, copy, offset, bytes });
            }
        }
        Ok(())
    }

    /// Enters a post as open.
    pub fn begin(&mut self, peer: PeerId, ticket: Ticket) {
        self.last = ticket;
        self.by_peer.entry(peer).or_default().insert(ticket, Standing::Open);
    }

    /// Ends a ticket; false if it was not open, so that an end is reported once. `quiet`: nothing of it is written any more.
    pub fn end(&mut self, peer: PeerId, ticket: Ticket, quiet: bool) -> bool {
        let Some(tickets) = self.by_peer.get_mut(&peer) else { return false };
        let open = tickets.get(&ticket) == Some(&Standing::Open);
        if open && quiet {
            tickets.remove(&ticket);
        } else if open {
            tickets.insert(ticket, Standing::Unproven);
        }
        open
    }

    /// Ends everything open with a peer in doubt.
    pub fn lose(&mut self, peer: PeerId) -> Vec<Ticket> {
        let open = self.open(peer);
        for &ticket in &open {
            self.end(peer, ticket, false);
        }
        open
    }

    /// Forgets a peer whose connection is gone for good; its open tickets, which have failed.
    pub fn tear_down(&mut self, peer: PeerId) -> Vec<Ticket> {
        let open = self.open(peer);
        if self.by_peer.remove(&peer).is_some() {
            self.torn_down.insert(peer);
        }
        open
    }

    /// Whether nothing up to a number is open or in doubt; if so, no such ticket can be made any more.
    pub fn prove(&mut self, peer: PeerId, upto: Ticket) -> Option<Proof> {
        let proof = match self.by_peer.get(&peer) {
            Some(tickets) if tickets.range(..=upto).next().is_some() => return None,
            Some(_) => Proof::Terminal,
            None if self.torn_down.contains(&peer) => Proof::TornDown,
            // Never connected: nothing was posted.
            None => Proof::NeverOffered,
        };
        // "Will never be made": later posts must have larger numbers.
        self.last = self.last.max(upto);
        Some(proof)
    }

    fn open(&self, peer: PeerId) -> Vec<Ticket> {
        let tickets = self.by_peer.get(&peer).into_iter().flatten();
        tickets.filter(|(_, standing)| **standing == Standing::Open).map(|(ticket, _)| *ticket).collect()
    }
}
