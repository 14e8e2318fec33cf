//! What the rank decided.

use super::Endpoint;
use super::peer::{self, Peer};
use super::rooms::Entry;
use crate::frame::{self, Body, Open};
use crate::hello::Side;
use crate::ids::{PeerId, RoomKey, Unit};
use crate::layout::{LayoutError, PagesByClass};
use crate::reason::{Code, Reason};
use crate::room::{Event, Outcome};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

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

impl Endpoint {
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
