//! What peers say and what becomes of their connections.

use super::peer::{Peer, Phase};
use super::rooms::Entry;
use super::{Endpoint, ErrorKind, Output};
use crate::frame::{self, Body, Frame, FrameError, Kind, NO_ROOM, Open, Stage};
use crate::hello::{Hello, Refusal, Side, agree};
use crate::ids::{PeerId, RoomKey, Ticket, Unit};
use crate::layout::{Layout, PagesByClass};
use crate::reason::{Code, Reason};
use crate::room::{Event, Signal, Stranger, unknown_to_decode, unknown_to_prefill};
use std::sync::Arc;
use std::time::Duration;

impl Endpoint {
    /// A connection stands, under a number that was never used.
    pub fn on_connected(&mut self, peer: PeerId, now: Duration) {
        self.on_connected_with(peer, self.hello.blob.clone(), now);
    }

    /// [`Endpoint::on_connected`] where every peer reaches the arena in its own way.
    pub fn on_connected_with(&mut self, peer: PeerId, blob: Vec<u8>, now: Duration) {
        self.peers.insert(peer, Peer::new(now));
        let hello = Hello { blob, ..self.hello.clone() };
        self.send(peer, NO_ROOM, Body::Hello(Box::new(hello)), now);
        let open = self.peers.iter().filter(|(_, peer)| peer.phase != Phase::Closing);
        let greeting = |(&id, peer): (&PeerId, &Peer)| (peer.phase == Phase::Greeting).then_some(id);
        if open.clone().count() > self.limits.peers
            && let Some(oldest) = open.clone().find_map(greeting)
        {
            let text = format!("more than {} connections", self.limits.peers);
            self.close(oldest, Reason::new(Code::Overloaded, text), now);
        }
    }

    /// A frame arrived.
    pub fn on_frame(&mut self, peer: PeerId, frame: Frame, now: Duration) {
        let Some(from) = self.peers.get_mut(&peer).filter(|_| !self.dead) else { return };
        let expected = from.received.saturating_add(1);
        if self.on.sequence && frame.sequence < expected {
            // Not a sign of life: one frame with a number far ahead makes all others stale, and the connection must end.
            return self.count(peer, ErrorKind::StaleSequence, now);
        }
        from.heard = now;
        from.received = from.received.max(frame.sequence);
        let phase = from.phase;
        if frame.sequence > expected {
            self.count(peer, ErrorKind::Gap, now);
        }
        match (phase, frame.body) {
            (Phase::Closing, _) => {}
            (Phase::Greeting, Body::Hello(hello)) => self.greeted(peer, *hello, now),
            (Phase::Greeting | Phase::Ready, Body::Refuse(refusal)) => {
                self.count(peer, ErrorKind::Refused, now);
                self.close(peer, Reason::new(Code::Protocol, format!("refused by the peer: {refusal}")), now);
            }
            (Phase::Greeting | Phase::Ready, Body::Bye) => {
                self.close(peer, Reason::new(Code::PeerLost, "the peer said goodbye"), now);
            }
            (Phase::Greeting, _) | (Phase::Ready, Body::Hello(_)) => self.count(peer, ErrorKind::Early, now),
            (Phase::Ready, body) => self.heard(peer, frame.key, body, now),
        }
    }

    /// Bytes arrived that are no frame, or none that is understood.
    pub fn on_bad_bytes(&mut self, peer: PeerId, error: &FrameError, now: Duration) {
        let Some(phase) = self.peers.get(&peer).map(Peer::phase).filter(|_| !self.dead) else { return };
        self.dead = !self.on.frame_guard;
        match error {
            FrameError::Kind { .. } => self.count(peer, ErrorKind::UnknownKind, now),
            FrameError::Body { kind: Kind::Hello, what } if phase == Phase::Greeting => {
                let refusal = Refusal { field: "hello".into(), ours: "readable".into(), theirs: what.clone() };
                self.refuse(peer, refusal, now);
            }
            FrameError::Body { .. } => self.count(peer, ErrorKind::Body, now),
            FrameError::Magic { .. }
            | FrameError::Version { .. }
            | FrameError::Length { .. }
            | FrameError::Crc { .. } => {
                self.count(peer, ErrorKind::Stream, now);
                self.close(peer, Reason::new(Code::Protocol, error.to_string()), now);
            }
        }
    }

    /// The connection broke or was closed by the other side. An [`Output::TearDown`] follows, since posts may live longer.
    pub fn on_lost(&mut self, peer: PeerId, now: Duration) {
        self.close(peer, Reason::new(Code::PeerLost, "the connection ended"), now);
    }

    /// The connection is closed, its readers are joined, its posts cannot write any more: a proof of quiet for every room of
    /// the peer.
    pub fn on_torn_down(&mut self, peer: PeerId, now: Duration) {
        self.close(peer, Reason::new(Code::TornDown, "torn down"), now);
        self.outputs.retain(|output| match output {
            Output::Send { peer: to, .. } | Output::Post { peer: to, .. } | Output::TearDown { peer: to, .. } => {
                *to != peer
            }
            Output::Wake => true,
        });
        self.posts.retain(|_, post| post.peer != peer);
        self.peers.remove(&peer);
        self.each_room(peer, |_| Event::TornDown, now);
    }

    /// A post ended. `done`: all its bytes are there. Otherwise it failed, which is not known to end its writing.
    pub fn on_ticket(&mut self, ticket: Ticket, done: bool, now: Duration) {
        let Some(post) = self.posts.get(&ticket) else { return };
        let (key, unit) = (post.key, post.unit);
        if done || !self.on.failed_post_writes {
            self.posts.remove(&ticket);
        }
        self.step(key, Event::Posted { unit, done }, now);
    }

    /// Bytes of [`Output::Send`] went into the socket.
    pub fn on_sent(&mut self, peer: PeerId, bytes: usize) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.queued_bytes = peer.queued_bytes.saturating_sub(bytes);
        }
    }

    fn greeted(&mut self, peer: PeerId, theirs: Hello, now: Duration) {
        if let Err(refusal) = agree(&self.hello, &theirs) {
            return self.refuse(peer, refusal, now);
        }
        // A connection of the same name is that of an earlier incarnation, or half open.
        let is_old = |old: &Peer| old.hello.as_ref().is_some_and(|hello| hello.name == theirs.name);
        let old: Vec<_> = self.peers.iter().filter(|(_, old)| is_old(old)).map(|(&id, _)| id).collect();
        let text = format!("{} connected again, incarnation {:016x}", theirs.name, theirs.incarnation);
        for id in old {
            self.close(id, Reason::new(Code::PeerLost, &text), now);
        }
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.layout = theirs.layout().ok();
            peer.hello = Some(theirs);
            peer.phase = Phase::Ready;
            peer.next_beat = now;
        }
        self.wake = true;
        if self.hello.side == Side::Decode {
            self.each_room(peer, |_| Event::Ready, now);
        }
    }

    fn refuse(&mut self, peer: PeerId, refusal: Refusal, now: Duration) {
        self.count(peer, ErrorKind::Refused, now);
        let reason = Reason::new(Code::Protocol, format!("handshake: {refusal}"));
        self.send(peer, NO_ROOM, Body::Refuse(refusal), now);
        self.close(peer, reason, now);
    }

    fn heard(&mut self, peer: PeerId, key: RoomKey, body: Body, now: Duration) {
        let signal = match body {
            Body::Open(open) => return self.opened(peer, key, open, now),
            Body::Ask => Signal::Ask,
            Body::Layer { unit, checksums } => {
                if !self.keep_checksums(peer, key, unit, checksums) {
                    self.count(peer, ErrorKind::Body, now);
                    let text = format!("LAYER of unit {unit} with another number of checksums than pages");
                    self.step(key, Event::Abort(Reason::new(Code::Protocol, text)), now);
                    return;
                }
                Signal::Layer(unit)
            }
            Body::Done { units, handover } => {
                if let Some(entry) = self.rooms.get_mut(&key).filter(|entry| entry.peer == peer) {
                    entry.handover.get_or_insert_with(|| Arc::from(handover));
                }
                Signal::Done { units }
            }
            Body::DoneAck => Signal::DoneAck,
            // Decode never writes, so it has nothing to drain: to it both mean that prefill's side is over.
            Body::Abort(reason) if self.hello.side == Side::Decode => Signal::Fail(reason),
            Body::Fail(reason) => Signal::Fail(reason),
            Body::Abort(reason) => Signal::Abort(reason),
            Body::AbortAck(drain) => Signal::AbortAck(drain),
            Body::Beat(rooms) => {
                rooms.into_iter().for_each(|(key, stage)| self.signal(peer, key, Signal::Stage(stage), now));
                return;
            }
            Body::Fence { .. } if self.hello.side == Side::Prefill => {
                let body = Body::FenceAck { upto: self.quiet_upto(peer) };
                return self.send(peer, NO_ROOM, body, now);
            }
            Body::FenceAck { upto } if self.hello.side == Side::Decode => {
                return self.each_room(peer, |_| Event::Heard(Signal::FenceAck(upto)), now);
            }
            Body::Fence { .. } | Body::FenceAck { .. } => return self.count(peer, ErrorKind::Misplaced, now),
            // Taken by on_frame.
            Body::Hello(_) | Body::Refuse(_) | Body::Bye => return,
        };
        self.signal(peer, key, signal, now);
    }

    /// Every post to the peer up to this number is terminal.
    fn quiet_upto(&self, peer: PeerId) -> u64 {
        let first = self.posts.iter().find(|(_, post)| post.peer == peer).map(|(ticket, _)| ticket.0);
        first.map_or(self.last_ticket, |first| first - 1)
    }

    fn opened(&mut self, peer: PeerId, key: RoomKey, open: Open, now: Duration) {
        if self.hello.side == Side::Decode {
            return self.count(peer, ErrorKind::Misplaced, now);
        }
        if self.find(peer, key).is_some() {
            return self.signal(peer, key, Signal::Open, now);
        }
        let over = self.on.tombstones && self.graves.get(key).is_some();
        match unknown_to_prefill(&Signal::Open, over) {
            Stranger::Create => {}
            Stranger::Answer(signal) | Stranger::Bury(signal) => return self.say(peer, key, signal, now),
            Stranger::Ignore => return,
        }
        let pages =
            self.peers.get(&peer).and_then(|peer| peer.layout.as_ref()).map(|layout| layout.check_pages(&open.pages));
        let bytes = |entry: &Entry| request_bytes(&entry.request, &entry.pages);
        let held = self.rooms.values().map(bytes).sum::<usize>() + request_bytes(&open.request, &open.pages);
        let refusal = match pages {
            _ if self.rooms.contains_key(&key) => {
                Some(Reason::new(Code::Protocol, format!("{key} is in use by another peer")))
            }
            _ if self.rooms.len() >= self.limits.rooms => {
                Some(Reason::new(Code::Overloaded, format!("{} rooms are open", self.rooms.len())))
            }
            _ if held > self.limits.request_bytes => {
                let text = format!("{held} bytes of requests, at most {}", self.limits.request_bytes);
                Some(Reason::new(Code::Overloaded, text))
            }
            Some(Err(error)) => Some(Reason::new(Code::Protocol, error.to_string())),
            Some(Ok(())) | None => None,
        };
        if let Some(reason) = refusal {
            if !self.rooms.contains_key(&key) {
                self.graves.bury(key, false, self.limits.tombstones);
            }
            return self.say(peer, key, Signal::Fail(reason), now);
        }
        let deadline = (open.deadline_ms > 0).then(|| now + Duration::from_millis(u64::from(open.deadline_ms)));
        let entry = Entry::new(key, Side::Prefill, self.hello.units, peer, now);
        let (request, pages) = (Arc::from(open.request), Arc::new(open.pages));
        self.insert(key, Entry { request, pages, deadline, priority: open.priority, ..entry }, now);
        self.say(peer, key, Signal::Stage(Stage::Opening), now);
    }

    /// The room a frame is about: of that peer and that epoch.
    fn find(&self, peer: PeerId, key: RoomKey) -> Option<RoomKey> {
        if !self.on.generation {
            let (first, last) = (RoomKey { epoch: 0, ..key }, RoomKey { epoch: u32::MAX, ..key });
            return self.rooms.range(first..=last).next_back().map(|(&key, _)| key);
        }
        self.rooms.get(&key).filter(|entry| entry.peer == peer).map(|_| key)
    }

    fn signal(&mut self, peer: PeerId, key: RoomKey, signal: Signal, now: Duration) {
        if let Some(found) = self.find(peer, key) {
            if self.step_of(found, key.epoch, Event::Heard(signal), now) {
                self.count(peer, ErrorKind::Misplaced, now);
            }
            return;
        }
        let grave = self.graves.get(key);
        let answer = match self.hello.side {
            Side::Decode => unknown_to_decode(&signal, grave == Some(true)),
            Side::Prefill => match unknown_to_prefill(&signal, grave.is_some()) {
                Stranger::Answer(answer) => Some(answer),
                Stranger::Bury(answer) => {
                    // In use by another peer: that one's room goes on.
                    if !self.rooms.contains_key(&key) {
                        self.graves.bury(key, false, self.limits.tombstones);
                    }
                    Some(answer)
                }
                Stranger::Create | Stranger::Ignore => None,
            },
        };
        // Beats cross the end of a room all the time.
        if !matches!(signal, Signal::Stage(_)) {
            self.count(peer, ErrorKind::UnknownRoom, now);
        }
        if let Some(answer) = answer {
            self.say(peer, key, answer, now);
        }
    }

    /// Keeps the sums of a landed unit; false when they are not one per page.
    fn keep_checksums(&mut self, peer: PeerId, key: RoomKey, unit: Unit, checksums: Vec<u64>) -> bool {
        let Some(entry) = self.rooms.get_mut(&key).filter(|entry| entry.peer == peer) else { return true };
        let pages = |layout: &Layout| {
            layout.unit(unit).map(|item| entry.pages.get(item.spec.class.0 as usize).map_or(0, Vec::len)).sum::<usize>()
        };
        if !checksums.is_empty() && checksums.len() != pages(&self.layout) {
            return false;
        }
        if self.hello.side == Side::Decode && unit.0 < self.hello.units {
            entry.checksums.entry(unit).or_insert(checksums);
        }
        true
    }

    pub(super) fn each_room(&mut self, peer: PeerId, event: impl Fn(RoomKey) -> Event, now: Duration) {
        let keys: Vec<_> = self.rooms.iter().filter(|(_, entry)| entry.peer == peer).map(|(&key, _)| key).collect();
        for key in keys {
            self.step(key, event(key), now);
        }
    }

    pub(super) fn count(&mut self, peer: PeerId, kind: ErrorKind, now: Duration) {
        self.errors.count(kind);
        let Some(from) = self.peers.get_mut(&peer) else { return };
        from.errors.count(kind);
        let faults = from.errors.faults();
        if faults >= self.limits.errors {
            self.close(peer, Reason::new(Code::Protocol, format!("{faults} frames that make no sense")), now);
        }
    }

    pub(super) fn send(&mut self, peer: PeerId, key: RoomKey, body: Body, now: Duration) {
        let Some(to) = self.peers.get_mut(&peer).filter(|peer| peer.phase != Phase::Closing) else { return };
        let frame = Frame { key, sequence: to.sent + 1, body };
        let bytes = match frame::encode(&frame) {
            Ok(bytes) => bytes,
            // Requests and records were measured when they came in; sums of a huge unit are left.
            Err(error) => return self.close(peer, Reason::new(Code::Protocol, error.to_string()), now),
        };
        to.sent += 1;
        to.queued_bytes += bytes.len();
        if to.queued_bytes > self.limits.queued_bytes {
            let text = format!("{} bytes wait to be sent, at most {}", to.queued_bytes, self.limits.queued_bytes);
            self.count(peer, ErrorKind::Overflow, now);
            return self.close(peer, Reason::new(Code::Overloaded, text), now);
        }
        self.outputs.push_back(Output::Send { peer, bytes });
    }

    /// Has a connection torn down; its rooms fail now and become quiet when that is done.
    pub(super) fn close(&mut self, peer: PeerId, reason: Reason, now: Duration) {
        let Some(closing) = self.peers.get_mut(&peer).filter(|peer| peer.phase != Phase::Closing) else { return };
        closing.phase = Phase::Closing;
        self.outputs.push_back(Output::TearDown { peer, reason: reason.clone() });
        self.wake = true;
        self.each_room(peer, |_| Event::Lost(reason.clone()), now);
    }
}

/// What a room keeps of its OPEN.
fn request_bytes(request: &[u8], pages: &PagesByClass) -> usize {
    request.len() + pages.iter().map(|pages| size_of_val(pages.as_slice())).sum::<usize>()
}
