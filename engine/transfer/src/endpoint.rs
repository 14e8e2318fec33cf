//! All rooms and peers of one rank, without I/O and without a clock of its own.
//!
//! What happened goes in (`on_*`, with the time since an arbitrary start), what the rank decided goes in (commands), and what
//! is to be done comes out of [`Endpoint::poll`]. [`Endpoint::view`] is the whole truth about the rooms at any moment; an
//! [`Output::Wake`] says that it changed. A room stays in the view until the rank forgets it, which it may when
//! [`RoomView::free`].
//!
//! A [`PeerId`] is one connection: the caller numbers connections, and a peer that comes back comes back under a new
//! number. When a connection is lost all its rooms fail, and their pages wait for [`Endpoint::on_torn_down`].
//!
//! Nothing here waits: sending means queueing, and a peer whose queue overflows is torn down.

mod clock;
mod commands;
mod peer;
mod rooms;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

pub use commands::{CommandError, NewRoom};
pub use peer::{ErrorKind, Errors, PeerView};

use crate::hello::{Hello, Refusal, Side, check_own};
use crate::ids::{PeerId, RoomKey, Ticket, Unit};
use crate::layout::{Layout, PageCopy, PagesByClass};
use crate::reason::Reason;
use crate::room::{Outcome, Protections, Quiet, Timers, UnitSet};
use peer::Peer;
use rooms::{Entry, Graves, Post};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Bounds of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. Beyond, the oldest that has not said HELLO is closed, which is the newest where all others have.
    pub peers: usize,
    /// Rooms at a time; OPEN beyond is refused.
    pub rooms: usize,
    /// Bytes of requests and page numbers in rooms; OPEN beyond is refused.
    pub request_bytes: usize,
    /// Errors of a peer after which its connection is closed.
    pub errors: u64,
    /// Bytes queued for a peer and not yet written to its socket.
    pub queued_bytes: usize,
    /// Rooms that are over and still remembered.
    pub tombstones: usize,
    /// Bytes of landing pages in quarantine for a beat and longer; beyond, the peer of the oldest is torn down.
    pub quarantine_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            peers: 512,
            rooms: 4096,
            request_bytes: 256 << 20,
            errors: 16,
            queued_bytes: 64 << 20,
            tombstones: 1 << 16,
            quarantine_bytes: 4 << 30,
        }
    }
}

/// What an endpoint is made from.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the rank says of itself.
    pub hello: Hello,
    /// Durations.
    pub timers: Timers,
    /// Bounds.
    pub limits: Limits,
    /// [`Protections::ALL`], except in tests of the protections.
    pub protections: Protections,
}

impl Config {
    /// The usual durations and bounds.
    pub fn new(hello: Hello) -> Self {
        let (timers, limits) = (Timers::default(), Limits::default());
        Self { hello, timers, limits, protections: Protections::ALL }
    }
}

/// Something to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write these bytes to the peer's connection, then call [`Endpoint::on_sent`].
    Send {
        /// Connection.
        peer: PeerId,
        /// One encoded frame.
        bytes: Vec<u8>,
    },
    /// Write a unit into the peer's arena, then call [`Endpoint::on_ticket`].
    Post {
        /// Connection.
        peer: PeerId,
        /// Room, for the tag that travels with the bytes.
        key: RoomKey,
        /// Unit.
        unit: Unit,
        /// Bytes to move; may be none.
        copies: Vec<PageCopy>,
        /// Number of the post.
        ticket: Ticket,
    },
    /// Write what is queued if that takes no waiting, close the connection, end its posts and its readers for certain, then
    /// call [`Endpoint::on_torn_down`].
    TearDown {
        /// Connection.
        peer: PeerId,
        /// Why.
        reason: Reason,
    },
    /// The view has changed.
    Wake,
}

/// A room as the rank reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomView {
    /// Connection.
    pub peer: PeerId,
    /// What the request is told.
    pub outcome: Outcome,
    /// Who touches the pages.
    pub quiet: Quiet,
    /// Ended and quiet: the pages may be used again and the room may be forgotten.
    pub free: bool,
    /// Decode: units whose every byte has landed. Prefill: units whose posts are done.
    pub landed: UnitSet,
    /// Decode: what came with DONE, once the room is published.
    pub handover: Option<Arc<[u8]>>,
    /// The request that travelled with OPEN.
    pub request: Arc<[u8]>,
    /// Landing pages, in decode's arena.
    pub pages: Arc<PagesByClass>,
    /// When the request's time is up, on this endpoint's clock.
    pub deadline: Option<Duration>,
    /// Higher goes first.
    pub priority: u8,
}

/// One rank's end of all its rooms.
#[derive(Debug)]
pub struct Endpoint {
    hello: Hello,
    layout: Layout,
    timers: Timers,
    limits: Limits,
    on: Protections,
    peers: BTreeMap<PeerId, Peer>,
    rooms: BTreeMap<RoomKey, Entry>,
    graves: Graves,
    posts: BTreeMap<Ticket, Post>,
    last_ticket: u64,
    outputs: VecDeque<Output>,
    wake: bool,
    errors: Errors,
    /// Only without [`Protections::frame_guard`].
    dead: bool,
}

impl Endpoint {
    /// An endpoint without peers.
    ///
    /// # Errors
    /// The hello contradicts itself.
    pub fn new(config: Config) -> Result<Self, Refusal> {
        let Config { hello, timers, limits, protections: on } = config;
        let layout = check_own(&hello)?;
        let (peers, rooms, posts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (graves, outputs, errors) = (Graves::default(), VecDeque::new(), Errors::default());
        let (last_ticket, wake, dead) = (0, false, false);
        Ok(Self {
            hello,
            layout,
            timers,
            limits,
            on,
            peers,
            rooms,
            graves,
            posts,
            last_ticket,
            outputs,
            wake,
            errors,
            dead,
        })
    }

    /// What to do next; `None` when all is done.
    pub fn poll(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        output.or_else(|| std::mem::take(&mut self.wake).then_some(Output::Wake))
    }

    /// Side of this endpoint.
    pub fn side(&self) -> Side {
        self.hello.side
    }

    /// Every room from its beginning until it is forgotten.
    pub fn view(&self) -> BTreeMap<RoomKey, RoomView> {
        self.rooms.iter().map(|(&key, entry)| (key, entry.view(&self.on))).collect()
    }

    /// One room.
    pub fn room(&self, key: RoomKey) -> Option<RoomView> {
        self.rooms.get(&key).map(|entry| entry.view(&self.on))
    }

    /// xxh3-64 of the pages of a landed unit, in the order of [`Layout::copies`]; empty when the peer sends none, `None` when
    /// the unit has not landed.
    pub fn checksums(&self, key: RoomKey, unit: Unit) -> Option<&[u64]> {
        let entry = self.rooms.get(&key)?;
        entry.room.landed.contains(unit).then(|| entry.checksums.get(&unit).map_or(&[][..], Vec::as_slice))
    }

    /// Peers from their connection until they are torn down.
    pub fn peers(&self) -> impl Iterator<Item = PeerView<'_>> {
        self.peers.iter().map(|(&id, peer)| peer.view(id))
    }

    /// Whether both sides of a connection have said HELLO and fit.
    pub fn is_ready(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.phase() == peer::Phase::Ready)
    }

    /// Errors by kind, all peers together since the start.
    pub fn errors(&self) -> &Errors {
        &self.errors
    }

    /// Posts that may still write: not ended, or failed and not torn down.
    pub fn num_posts(&self) -> usize {
        self.posts.len()
    }

    fn peer_ids(&self) -> Vec<PeerId> {
        self.peers.keys().copied().collect()
    }
}
