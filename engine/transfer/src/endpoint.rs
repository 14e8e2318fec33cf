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
mod peer;
mod rooms;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

pub use peer::{ErrorKind, Errors, PeerView};

use crate::frame::{self, Body, Open};
use crate::hello::{Hello, Refusal, Side, check_own};
use crate::ids::{PeerId, RoomKey, Ticket, Unit};
use crate::layout::{Layout, LayoutError, PageCopy, PagesByClass};
use crate::reason::{Code, Reason};
use crate::room::{Event, Outcome, Protections, Quiet, Timers, UnitSet};
use peer::Peer;
use rooms::{Entry, Graves, Post};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Bounds of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Rooms at a time; OPEN beyond is refused.
    pub rooms: usize,
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
        Self { rooms: 4096, errors: 16, queued_bytes: 64 << 20, tombstones: 1 << 16, quarantine_bytes: 4 << 30 }
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

/// A command that cannot be carried out. Rooms that failed meanwhile take every command in silence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    /// A command of the other side.
    #[error("{command} on a {side:?} endpoint")]
    WrongSide {
        /// Command.
        command: &'static str,
        /// Side of this endpoint.
        side: Side,
    },
    /// Not there, or forgotten.
    #[error("{0} is not known")]
    UnknownRoom(RoomKey),
    /// There already, or over.
    #[error("{0} has been used")]
    Used(RoomKey),
    /// Too early, too late, or twice.
    #[error("{command} of {key}, which is {outcome:?}")]
    Misplaced {
        /// Command.
        command: &'static str,
        /// Room.
        key: RoomKey,
        /// Where it is.
        outcome: Outcome,
    },
    /// Forgetting a room whose pages are not free.
    #[error("{0} is not free")]
    NotFree(RoomKey),
    /// Pages that do not fit the layout.
    #[error("{key}: {error}")]
    Pages {
        /// Room.
        key: RoomKey,
        /// What is wrong.
        error: LayoutError,
    },
    /// More bytes than a frame holds.
    #[error("{key}: {bytes} bytes do not fit a frame of {limit}")]
    TooLarge {
        /// Room.
        key: RoomKey,
        /// Bytes there would be.
        bytes: usize,
        /// Bytes there may be.
        limit: usize,
    },
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

/// A request to open a room (decode).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRoom {
    /// New, and never used before.
    pub key: RoomKey,
    /// Connection to the prefill rank of the same number.
    pub peer: PeerId,
    /// The request as the engine writes it.
    pub request: Arc<[u8]>,
    /// Landing pages by class; from now on the peer may write them.
    pub pages: PagesByClass,
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

    /// Decode: opens a room. When the peer is gone the room is there, failed and free.
    ///
    /// # Errors
    /// A used key, pages that are not in the arena, or more bytes than a frame holds.
    pub fn open(&mut self, new: NewRoom, now: Duration) -> Result<(), CommandError> {
        self.needs(Side::Decode, "open")?;
        let key = new.key;
        if self.rooms.contains_key(&key) || self.graves.get(key).is_some() {
            return Err(CommandError::Used(key));
        }
        self.layout.check_pages(&new.pages).map_err(|error| CommandError::Pages { key, error })?;
        let body = Open { deadline_ms: 0, priority: 0, request: new.request.to_vec(), pages: new.pages.clone() };
        fits(key, Body::Open(body))?;
        let bytes = self
            .layout
            .items()
            .iter()
            .map(|item| item.spec.page_bytes.saturating_mul(new.pages[item.spec.class.0 as usize].len() as u64));
        let bytes = bytes.fold(0, u64::saturating_add);
        let entry = Entry::new(key, Side::Decode, self.hello.units, new.peer, now);
        let (request, pages) = (new.request, Arc::new(new.pages));
        let entry = Entry { request, pages, deadline: new.deadline, priority: new.priority, bytes, ..entry };
        self.insert(key, entry, now);
        match self.peers.get(&new.peer).map(Peer::phase) {
            Some(peer::Phase::Ready) => self.step(key, Event::Ready, now),
            Some(peer::Phase::Greeting) => false,
            Some(peer::Phase::Closing) | None => {
                self.step(key, Event::Lost(Reason::new(Code::PeerLost, "not connected")), now)
            }
        };
        Ok(())
    }

    /// Decode: the rank took everything that landed; the room is finished.
    ///
    /// # Errors
    /// The room is not known or not published.
    pub fn taken(&mut self, key: RoomKey, now: Duration) -> Result<(), CommandError> {
        self.needs(Side::Decode, "taken")?;
        self.command("taken", key, Event::Taken, now)
    }

    /// Prefill: the request is admitted; its pages stand in `pages` of the own arena.
    ///
    /// # Errors
    /// The room is not known or placed already; pages that are not in the arena or not as many as decode's.
    pub fn place(&mut self, key: RoomKey, pages: PagesByClass, now: Duration) -> Result<(), CommandError> {
        self.needs(Side::Prefill, "place")?;
        let entry = self.rooms.get_mut(&key).ok_or(CommandError::UnknownRoom(key))?;
        if let Some(theirs) = self.peers.get(&entry.peer).and_then(|peer| peer.layout.as_ref()) {
            // Unit 0 stands for all: the lists are the same for every unit.
            self.layout
                .copies(Unit(0), &pages, theirs, &entry.pages)
                .map_err(|error| CommandError::Pages { key, error })?;
        }
        if entry.room.outcome == Outcome::Opening {
            entry.source = pages;
        }
        self.command("place", key, Event::Place, now)
    }

    /// Prefill: a unit stands in the pages and is to be written. `checksums` as [`Endpoint::checksums`] has them, or empty.
    ///
    /// # Errors
    /// The room is not known, not placed, or the unit came before.
    pub fn unit_ready(
        &mut self,
        key: RoomKey,
        unit: Unit,
        checksums: Vec<u64>,
        now: Duration,
    ) -> Result<(), CommandError> {
        self.needs(Side::Prefill, "unit_ready")?;
        let entry = self.rooms.get_mut(&key).ok_or(CommandError::UnknownRoom(key))?;
        if !entry.room.posted.contains(unit) {
            entry.checksums.insert(unit, checksums);
        }
        self.last_ticket += 1;
        self.command("unit_ready", key, Event::UnitReady { unit, ticket: self.last_ticket }, now)
    }

    /// Prefill: every unit was handed over; DONE goes out with this record when the last has landed.
    ///
    /// # Errors
    /// The room is not known or has no unit yet; a record that does not fit a frame.
    pub fn finish(&mut self, key: RoomKey, handover: Arc<[u8]>, now: Duration) -> Result<(), CommandError> {
        self.needs(Side::Prefill, "finish")?;
        fits(key, Body::Done { units: 0, handover: handover.to_vec() })?;
        let entry = self.rooms.get_mut(&key).ok_or(CommandError::UnknownRoom(key))?;
        entry.handover.get_or_insert(handover);
        self.command("finish", key, Event::Finish, now)
    }

    /// Either side: the room has failed (refused, client gone, wrong bytes); stop and prove quiet. A room that is not known
    /// is over from now on: an OPEN that is still on its way is refused.
    pub fn abort(&mut self, key: RoomKey, reason: Reason, now: Duration) {
        match self.rooms.contains_key(&key) {
            true => _ = self.step(key, Event::Abort(reason), now),
            false => self.graves.bury(key, false, self.limits.tombstones),
        }
    }

    /// Forgets a room whose pages were given back.
    ///
    /// # Errors
    /// The room is not known, or not free.
    pub fn forget(&mut self, key: RoomKey) -> Result<(), CommandError> {
        let entry = self.rooms.get(&key).ok_or(CommandError::UnknownRoom(key))?;
        if !entry.room.is_free(&self.on) {
            return Err(CommandError::NotFree(key));
        }
        let finished = entry.room.outcome == Outcome::Finished;
        self.rooms.remove(&key);
        self.graves.bury(key, finished, self.limits.tombstones);
        Ok(())
    }

    /// Says BYE to all peers and has them torn down.
    pub fn bye(&mut self, now: Duration) {
        for peer in self.peer_ids() {
            self.send(peer, frame::NO_ROOM, Body::Bye, now);
            self.close(peer, Reason::new(Code::PeerLost, "this side shuts down"), now);
        }
    }

    fn needs(&self, side: Side, command: &'static str) -> Result<(), CommandError> {
        match self.hello.side == side {
            true => Ok(()),
            false => Err(CommandError::WrongSide { command, side: self.hello.side }),
        }
    }

    fn command(
        &mut self,
        command: &'static str,
        key: RoomKey,
        event: Event,
        now: Duration,
    ) -> Result<(), CommandError> {
        let entry = self.rooms.get(&key).ok_or(CommandError::UnknownRoom(key))?;
        let outcome = entry.room.outcome.clone();
        match self.step(key, event, now) {
            true => Err(CommandError::Misplaced { command, key, outcome }),
            false => Ok(()),
        }
    }

    fn peer_ids(&self) -> Vec<PeerId> {
        self.peers.keys().copied().collect()
    }
}

fn fits(key: RoomKey, body: Body) -> Result<(), CommandError> {
    let frame = frame::Frame { key, sequence: 0, body };
    match frame::encode(&frame) {
        Err(frame::FrameError::Length { got, .. }) => {
            Err(CommandError::TooLarge { key, bytes: got as usize, limit: frame::MAX_BODY_BYTES })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}
