//! Rooms of an endpoint: what the transition function does not hold, and its actions carried out.

use super::{Endpoint, ErrorKind, Output, RoomView};
use crate::frame::{Body, Open};
use crate::hello::Side;
use crate::ids::{PeerId, RoomKey, Ticket, Unit};
use crate::layout::PagesByClass;
use crate::reason::{Code, Reason};
use crate::room::{Action, Event, Outcome, Protections, Quiet, Room, Signal, Timer};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) room: Room,
    pub(super) peer: PeerId,
    /// The running timer and when it is up.
    pub(super) timer: Option<(Timer, Duration)>,
    pub(super) next_retry: Duration,
    pub(super) ended: Option<Duration>,
    pub(super) request: Arc<[u8]>,
    pub(super) pages: Arc<PagesByClass>,
    /// Prefill: pages of the own arena.
    pub(super) source: PagesByClass,
    pub(super) handover: Option<Arc<[u8]>>,
    pub(super) checksums: BTreeMap<Unit, Vec<u64>>,
    pub(super) deadline: Option<Duration>,
    pub(super) priority: u8,
    /// Bytes of the landing pages.
    pub(super) bytes: u64,
}

impl Entry {
    pub(super) fn new(key: RoomKey, side: Side, units: u32, peer: PeerId, now: Duration) -> Self {
        Self {
            room: Room::new(key, side, units),
            peer,
            timer: None,
            next_retry: now,
            ended: None,
            request: Arc::new([]),
            pages: Arc::default(),
            source: PagesByClass::default(),
            handover: None,
            checksums: BTreeMap::new(),
            deadline: None,
            priority: 0,
            bytes: 0,
        }
    }

    pub(super) fn view(&self, on: &Protections) -> RoomView {
        let published = matches!(self.room.outcome, Outcome::Published | Outcome::Finished);
        RoomView {
            peer: self.peer,
            outcome: self.room.outcome.clone(),
            quiet: self.room.quiet,
            free: self.room.is_free(on),
            landed: self.room.landed,
            handover: self.handover.clone().filter(|_| published),
            request: self.request.clone(),
            pages: self.pages.clone(),
            deadline: self.deadline,
            priority: self.priority,
        }
    }
}

/// A post that may still write.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) peer: PeerId,
    pub(super) key: RoomKey,
    pub(super) unit: Unit,
}

/// Rooms that are over, so that a late OPEN does not revive them; the oldest are forgotten.
#[derive(Debug, Default)]
pub(super) struct Graves {
    finished: BTreeMap<RoomKey, bool>,
    order: VecDeque<RoomKey>,
}

impl Graves {
    /// Whether the room is over, and if so whether it ended well.
    pub(super) fn get(&self, key: RoomKey) -> Option<bool> {
        self.finished.get(&key).copied()
    }

    pub(super) fn bury(&mut self, key: RoomKey, finished: bool, limit: usize) {
        if self.finished.insert(key, finished).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > limit {
            if let Some(oldest) = self.order.pop_front() {
                self.finished.remove(&oldest);
            }
        }
    }
}

impl Endpoint {
    pub(super) fn insert(&mut self, key: RoomKey, mut entry: Entry, now: Duration) {
        entry.next_retry = now + self.timers.retry;
        entry.timer = entry.room.timer(&self.on).map(|timer| (timer, now + self.timers.of(timer)));
        self.rooms.insert(key, entry);
        self.wake = true;
    }

    /// Applies an event to a room and carries out what follows; whether it was out of place.
    pub(super) fn step(&mut self, key: RoomKey, event: Event, now: Duration) -> bool {
        self.step_of(key, key.epoch, event, now)
    }

    pub(super) fn step_of(&mut self, key: RoomKey, epoch: u32, event: Event, now: Duration) -> bool {
        let Some(entry) = self.rooms.get_mut(&key) else { return false };
        let (next, actions) = entry.room.step(epoch, event, &self.on);
        let before = std::mem::replace(&mut entry.room, next);
        let changed = (&before.outcome, before.landed, before.quiet)
            != (&entry.room.outcome, entry.room.landed, entry.room.quiet);
        self.wake |= changed;
        if entry.room.timer(&self.on).is_none() {
            entry.timer = None;
        }
        let (peer, mut misplaced) = (entry.peer, false);
        for action in actions {
            match action {
                Action::Send(signal) => self.say(peer, key, signal, now),
                Action::Post(unit) => self.post(peer, key, unit),
                Action::Arm => {
                    if let Some(entry) = self.rooms.get_mut(&key) {
                        let timer = entry.room.timer(&self.on);
                        entry.timer = timer.map(|timer| (timer, now + self.timers.of(timer)));
                    }
                }
                Action::End => {
                    if let Some(entry) = self.rooms.get_mut(&key) {
                        entry.ended = Some(now);
                    }
                }
                // Seen in the view.
                Action::Release => {}
                Action::TearDown => {
                    let text = format!("{key} is not quiet after {:?}", self.timers.drain);
                    self.close(peer, Reason::new(Code::TornDown, text), now);
                }
                Action::Misplaced => misplaced = true,
                Action::StaleEpoch => self.count(peer, ErrorKind::StaleEpoch, now),
            }
        }
        misplaced
    }

    fn post(&mut self, peer: PeerId, key: RoomKey, unit: Unit) {
        let ticket = Ticket(self.last_ticket);
        let Some(entry) = self.rooms.get(&key) else { return };
        let theirs = self.peers.get(&peer).and_then(|peer| peer.layout.as_ref());
        // OPEN and place have checked the lists against both layouts, so the copies exist.
        let copies = theirs.and_then(|theirs| self.layout.copies(unit, &entry.source, theirs, &entry.pages).ok());
        if let Some(copies) = copies {
            self.posts.insert(ticket, Post { peer, key, unit });
            self.outputs.push_back(Output::Post { peer, key, unit, copies, ticket });
        }
    }

    /// A signal as a frame.
    pub(super) fn say(&mut self, peer: PeerId, key: RoomKey, signal: Signal, now: Duration) {
        let entry = self.rooms.get(&key);
        let body = match signal {
            Signal::Open => {
                let Some(entry) = entry else { return };
                let left = entry.deadline.map(|deadline| deadline.saturating_sub(now).as_millis().max(1));
                Body::Open(Open {
                    deadline_ms: left.map_or(0, |ms| u32::try_from(ms).unwrap_or(u32::MAX)),
                    priority: entry.priority,
                    request: entry.request.to_vec(),
                    pages: entry.pages.to_vec(),
                })
            }
            Signal::Ask => Body::Ask,
            Signal::Layer(unit) => {
                let checksums = entry.and_then(|entry| entry.checksums.get(&unit)).cloned().unwrap_or_default();
                Body::Layer { unit, checksums }
            }
            Signal::Done { units } => {
                let handover = entry.and_then(|entry| entry.handover.as_deref()).unwrap_or_default().to_vec();
                Body::Done { units, handover }
            }
            Signal::DoneAck => Body::DoneAck,
            Signal::Fail(reason) => Body::Fail(reason),
            Signal::Abort(reason) => Body::Abort(reason),
            Signal::AbortAck(drain) => Body::AbortAck(drain),
            // One for all rooms of the peer, at the end of the tick.
            Signal::Fence(upto) => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.fence = peer.fence.max(Some(upto));
                }
                return;
            }
            Signal::FenceAck(upto) => Body::FenceAck { upto },
            Signal::Stage(stage) => {
                return self.send(peer, crate::frame::NO_ROOM, Body::Beat(vec![(key, stage)]), now);
            }
        };
        self.send(peer, key, body, now);
    }

    /// Over the budget the peer of the room that has been in quarantine longest is torn down. What ended less than a beat ago does
    /// not count: however much is aborted at once, a peer that answers keeps its connection.
    pub(super) fn keep_quarantine_small(&mut self, now: Duration) {
        let late = |entry: &&Entry| entry.ended.is_some_and(|ended| ended + self.timers.beat <= now);
        let waits = |entry: &&Entry| entry.room.quiet == Quiet::Draining && entry.bytes > 0;
        let draining = || self.rooms.values().filter(waits).filter(late);
        let bytes = draining().fold(0u64, |sum, entry| sum.saturating_add(entry.bytes));
        if bytes <= self.limits.quarantine_bytes {
            return;
        }
        let open = |peer: &PeerId| self.peers.get(peer).is_some_and(|peer| peer.phase != super::peer::Phase::Closing);
        let oldest =
            draining().filter(|entry| open(&entry.peer)).min_by_key(|entry| entry.ended).map(|entry| entry.peer);
        if let Some(peer) = oldest {
            let text = format!("{bytes} bytes in quarantine, at most {}", self.limits.quarantine_bytes);
            self.close(peer, Reason::new(Code::TornDown, text), now);
        }
    }
}
