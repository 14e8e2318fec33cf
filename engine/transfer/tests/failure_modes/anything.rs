//! An endpoint that is told anything: frames true and false, commands in any order, any time. What comes next is somebody
//! else's choice: a random number's, or a fuzzer's, which has this file too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use transfer::endpoint::{Config, Endpoint, Limits, NewRoom, Output, RoomView};
use transfer::frame::{Body, Decoded, Drain, Frame, FrameReader, NO_ROOM, Open, Stage, decode, encode};
use transfer::hello::Hello;
use transfer::ids::{PeerId, RoomKey, Ticket, Unit};
use transfer::layout::PagesByClass;
use transfer::reason::{Code, Reason};
use transfer::room::Quiet;

/// Rooms that an endpoint takes.
const ROOMS: usize = 4;

/// Bytes that may wait for a peer.
const QUEUED_BYTES: usize = 1 << 16;

/// Who chooses.
pub(crate) trait Choices {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64;

    fn key(&mut self) -> RoomKey {
        RoomKey { room: self.below(3), epoch: 1 + self.below(2) as u32 }
    }

    fn unit(&mut self) -> Unit {
        // Seldom one that is not there.
        Unit(self.below(40) as u32 / 13)
    }

    fn list(&mut self) -> Vec<u32> {
        (0..self.below(3)).map(|_| self.below(25) as u32 / 6).collect()
    }

    fn pages(&mut self) -> PagesByClass {
        // Two classes, and seldom another number of them.
        (0..2 + self.below(10) / 9).map(|_| self.list()).collect()
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.below(80)).map(|_| self.below(256) as u8).collect()
    }
}

/// An endpoint, and all that there is to tell it.
pub(crate) struct Play {
    pub(crate) endpoint: Endpoint,
    greeting: Hello,
    reader: FrameReader,
    now: Duration,
    peer: PeerId,
    sequence: u64,
    closing: Option<PeerId>,
    waiting_bytes: usize,
    /// Frames that it took.
    pub(crate) frames: u64,
}

impl Play {
    /// An endpoint with a peer that has greeted.
    pub(crate) fn new(own: Hello, greeting: Hello) -> Self {
        let limits =
            Limits { rooms: ROOMS, errors: 100, queued_bytes: QUEUED_BYTES, tombstones: 8, ..Limits::default() };
        let endpoint = Endpoint::new(Config { limits, ..Config::new(own) }).expect("a hello of our own");
        let (reader, now, peer) = (FrameReader::new(), Duration::ZERO, PeerId(0));
        let (sequence, closing, waiting_bytes, frames) = (0, None, 0, 0);
        let mut play = Self { endpoint, greeting, reader, now, peer, sequence, closing, waiting_bytes, frames };
        play.connect();
        play
    }

    /// One more thing happens; then everything holds that must.
    pub(crate) fn step(&mut self, choices: &mut impl Choices) {
        let before = self.endpoint.view();
        match choices.below(17) {
            0..8 => self.hear(choices),
            8..13 => self.command(choices),
            13 => self.endpoint.on_ticket(Ticket(choices.below(12)), choices.below(4) > 0, self.now),
            14 => {
                self.now += Duration::from_millis(choices.below(3000));
                self.endpoint.on_tick(self.now);
                assert!(self.endpoint.next_due().is_none_or(|due| due > self.now), "a tick left something due");
            }
            15 if choices.below(16) == 15 => {
                self.reader.push(&choices.bytes());
                self.read();
            }
            _ if choices.below(8) == 0 => self.endpoint.on_lost(self.peer, self.now),
            _ => {}
        }
        self.carry_out(choices.below(8) > 0);
        if let Some(torn) = self.closing.filter(|_| choices.below(4) == 0) {
            self.tear_down(torn);
        }
        self.check(&before);
    }

    fn connect(&mut self) {
        self.peer = PeerId(self.peer.0 + 1);
        (self.reader, self.sequence, self.waiting_bytes) = (FrameReader::new(), 1, 0);
        self.endpoint.on_connected(self.peer, self.now);
        let body = Body::Hello(Box::new(self.greeting.clone()));
        self.endpoint.on_frame(self.peer, Frame { key: NO_ROOM, sequence: 1, body }, self.now);
    }

    fn tear_down(&mut self, torn: PeerId) {
        self.endpoint.on_torn_down(torn, self.now);
        let stuck = |room: &RoomView| room.peer == torn && room.outcome.is_final() && !room.free;
        assert!(!self.endpoint.view().values().any(stuck), "a tear-down frees what has ended");
        self.closing = None;
        self.connect();
    }

    /// A frame of any kind, one in 200 of them damaged.
    fn hear(&mut self, choices: &mut impl Choices) {
        let body = body(choices, &self.greeting);
        let key = if body.kind().names_room() { choices.key() } else { NO_ROOM };
        self.sequence += 1;
        let mut bytes = encode(&Frame { key, sequence: self.sequence, body }).expect("a small frame");
        if choices.below(200) == 199 {
            let at = choices.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << choices.below(8);
        }
        self.reader.push(&bytes);
        self.read();
    }

    fn read(&mut self) {
        while let Some(frame) = self.reader.next_frame() {
            match frame {
                Ok(frame) => {
                    self.frames += 1;
                    self.endpoint.on_frame(self.peer, frame, self.now);
                }
                Err(error) => self.endpoint.on_bad_bytes(self.peer, &error, self.now),
            }
        }
    }

    /// A rank that does whatever it likes; errors are answers.
    fn command(&mut self, choices: &mut impl Choices) {
        let (key, now, peer) = (choices.key(), self.now, self.peer);
        match choices.below(9) {
            0 | 1 => {
                let (request, pages) = (Arc::from([1u8]), choices.pages());
                let new = NewRoom { key, peer, request, pages, deadline: None, priority: 0 };
                _ = self.endpoint.open(new, now);
            }
            2 => _ = self.endpoint.taken(key, now),
            3 => self.endpoint.abort(key, Code::Aborted.into(), now),
            4 | 5 => _ = self.endpoint.place(key, choices.pages(), now),
            6 => _ = self.endpoint.unit_ready(key, choices.unit(), vec![], now),
            7 => _ = self.endpoint.finish(key, Arc::from([3u8]), now),
            _ => _ = self.endpoint.forget(key),
        }
    }

    /// What the endpoint wants done. Unless `written`, its frames stay in the socket's queue.
    fn carry_out(&mut self, written: bool) {
        while let Some(output) = self.endpoint.poll() {
            match output {
                Output::Send { peer, bytes } => {
                    assert!(matches!(decode(&bytes), Decoded::Frame { used, .. } if used == bytes.len()));
                    match written {
                        true => self.endpoint.on_sent(peer, bytes.len()),
                        false => self.waiting_bytes += bytes.len(),
                    }
                }
                Output::TearDown { peer, .. } => self.closing = Some(peer),
                Output::Post { .. } | Output::Wake => {}
            }
        }
        // The frame that overflows the queue is not sent.
        assert!(self.waiting_bytes <= QUEUED_BYTES, "{} bytes wait", self.waiting_bytes);
    }

    /// Outcomes and proofs stay, and nothing grows beyond its bound.
    fn check(&self, before: &BTreeMap<RoomKey, RoomView>) {
        let view = self.endpoint.view();
        for (key, room) in &view {
            let Some(before) = before.get(key) else { continue };
            assert!(!before.outcome.is_final() || before.outcome == room.outcome, "{before:?} became {room:?}");
            assert!(
                !matches!(before.quiet, Quiet::Quiet(_)) || before.quiet == room.quiet,
                "{before:?} became {room:?}"
            );
            assert!(!before.free || room.free, "{before:?} became {room:?}");
        }
        // Six keys; a peer may fill four of them, the rank itself opens what it likes.
        let most = if self.endpoint.side() == transfer::hello::Side::Prefill { ROOMS } else { 6 };
        assert!(view.len() <= most, "{} rooms", view.len());
        assert!(self.endpoint.peers().count() <= 2 && self.endpoint.num_posts() <= 4 * view.len() + 12);
    }
}

fn body(choices: &mut impl Choices, greeting: &Hello) -> Body {
    let reason = Reason::new(Code::Aborted, "x");
    match choices.below(14) {
        0 => Body::Hello(Box::new(greeting.clone())),
        1 => Body::Ask,
        2 | 3 => Body::Open(Open { deadline_ms: 5, priority: 1, request: vec![1], pages: choices.pages() }),
        4 | 5 => Body::Layer { unit: choices.unit(), checksums: vec![9; (choices.below(40) / 37) as usize] },
        6 => Body::Done { units: 3 + choices.below(8) as u32 / 7, handover: vec![2] },
        7 => Body::DoneAck,
        8 => Body::Fail(reason),
        9 => Body::Abort(reason),
        10 if choices.below(2) == 0 => Body::AbortAck(Drain::Quiet),
        10 => Body::AbortAck(Drain::Draining { upto: choices.below(9) }),
        11 => Body::Fence { upto: choices.below(9) },
        12 => Body::FenceAck { upto: choices.below(9) },
        _ => Body::Beat((0..choices.below(3)).map(|_| (choices.key(), Stage::Placed)).collect()),
    }
}
