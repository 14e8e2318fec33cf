//! Decoder, endpoint and transition function together against random input: every frame, every command, any order, any time.

use super::*;
use crate::frame::{FrameReader, encode};
use crate::ids::Ticket;
use crate::room::Quiet;

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % end
    }

    fn key(&mut self) -> RoomKey {
        RoomKey { room: self.below(3), epoch: 1 + self.below(2) as u32 }
    }

    fn pages(&mut self) -> PagesByClass {
        let list = |rng: &mut Self| (0..rng.below(3)).map(|_| rng.below(5) as u32).collect();
        (0..1 + self.below(9) / 4).map(|_| list(self)).collect()
    }

    fn unit(&mut self) -> Unit {
        Unit(self.below(3) as u32)
    }

    fn body(&mut self, greeting: &Hello) -> Body {
        let reason = Reason::new(Code::Aborted, "x");
        match self.below(14) {
            0 => Body::Hello(Box::new(greeting.clone())),
            1 => Body::Ask,
            2 | 3 => Body::Open(Open { deadline_ms: 5, priority: 1, request: vec![1], pages: self.pages() }),
            4 | 5 => Body::Layer { unit: self.unit(), checksums: vec![9; (self.below(40) / 37) as usize] },
            6 => Body::Done { units: 2 + self.below(8) as u32 / 7, handover: vec![2] },
            7 => Body::DoneAck,
            8 => Body::Fail(reason),
            9 => Body::Abort(reason),
            10 if self.below(2) == 0 => Body::AbortAck(Drain::Quiet),
            10 => Body::AbortAck(Drain::Draining { upto: self.below(9) }),
            11 => Body::Fence { upto: self.below(9) },
            12 => Body::FenceAck { upto: self.below(9) },
            _ => Body::Beat((0..self.below(3)).map(|_| (self.key(), Stage::Placed)).collect()),
        }
    }
}

/// A rank that does whatever it likes; errors are answers.
fn command(endpoint: &mut Endpoint, rng: &mut Rng, peer: PeerId, now: Duration) {
    let key = rng.key();
    match rng.below(9) {
        0 | 1 => {
            let new = NewRoom { key, peer, request: Arc::from([1u8]), pages: rng.pages(), deadline: None, priority: 0 };
            _ = endpoint.open(new, now);
        }
        2 => _ = endpoint.taken(key, now),
        3 => endpoint.abort(key, Code::Aborted.into(), now),
        4 | 5 => _ = endpoint.place(key, rng.pages(), now),
        6 => _ = endpoint.unit_ready(key, rng.unit(), vec![], now),
        7 => _ = endpoint.finish(key, Arc::from([3u8]), now),
        _ => _ = endpoint.forget(key),
    }
}

/// What holds whatever comes in.
fn check(before: &BTreeMap<RoomKey, RoomView>, endpoint: &Endpoint) {
    for (key, room) in endpoint.view() {
        let Some(before) = before.get(&key) else { continue };
        assert!(!before.outcome.is_final() || before.outcome == room.outcome, "{before:?} became {room:?}");
        assert!(!matches!(before.quiet, Quiet::Quiet(_)) || before.quiet == room.quiet, "{before:?} became {room:?}");
        assert!(!before.free || room.free);
    }
}

#[test]
fn f01_a_million_random_events_leave_the_endpoint_sound() {
    let mut rng = Rng(0x1234_5678_9abc_def1);
    let (mut frames, mut ended) = (0u64, [0u32; 2]);
    for life in 0..5000u64 {
        let side = if life % 2 == 0 { Side::Decode } else { Side::Prefill };
        let other = if life % 2 == 0 { Side::Prefill } else { Side::Decode };
        let mut config = Config::new(hello(side));
        config.limits.errors = 100;
        let mut endpoint = Endpoint::new(config).unwrap();
        let (greeting, mut reader) = (hello(other), FrameReader::new());
        let (mut now, mut peer, mut sequence) = (ms(0), PeerId(1), 1);
        endpoint.on_connected(peer, now);
        let first = Frame { key: frame::NO_ROOM, sequence, body: Body::Hello(Box::new(greeting.clone())) };
        endpoint.on_frame(peer, first, now);
        let mut tear_down = None;
        for _ in 0..200 {
            let before = endpoint.view();
            match rng.below(16) {
                0..8 => {
                    let body = rng.body(&greeting);
                    let key = if body.kind().names_room() { rng.key() } else { frame::NO_ROOM };
                    sequence += 1;
                    let mut bytes = encode(&Frame { key, sequence, body }).unwrap();
                    if rng.below(200) == 0 {
                        let at = rng.below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << rng.below(8);
                    }
                    reader.push(&bytes);
                    while let Some(frame) = reader.next_frame() {
                        frames += 1;
                        match frame {
                            Ok(frame) => endpoint.on_frame(peer, frame, now),
                            Err(error) => endpoint.on_bad_bytes(peer, &error, now),
                        }
                    }
                }
                8..13 => command(&mut endpoint, &mut rng, peer, now),
                13 => endpoint.on_ticket(Ticket(rng.below(12)), rng.below(4) > 0, now),
                14 => {
                    now += ms(rng.below(3000));
                    endpoint.on_tick(now);
                    assert!(endpoint.next_due().is_none_or(|due| due > now), "a tick left something due");
                }
                _ if rng.below(8) == 0 => endpoint.on_lost(peer, now),
                _ => {}
            }
            while let Some(output) = endpoint.poll() {
                match output {
                    Output::Send { peer, bytes } => {
                        assert!(matches!(decode(&bytes), Decoded::Frame { .. }));
                        endpoint.on_sent(peer, bytes.len());
                    }
                    Output::TearDown { peer, .. } => tear_down = Some(peer),
                    Output::Post { .. } | Output::Wake => {}
                }
            }
            if let Some(torn) = tear_down.filter(|_| rng.below(4) == 0) {
                endpoint.on_torn_down(torn, now);
                assert!(
                    endpoint.view().values().all(|room| room.peer != torn || room.free || !room.outcome.is_final())
                );
                (tear_down, peer, sequence, reader) = (None, PeerId(peer.0 + 1), 1, FrameReader::new());
                endpoint.on_connected(peer, now);
                let body = Body::Hello(Box::new(greeting.clone()));
                endpoint.on_frame(peer, Frame { key: frame::NO_ROOM, sequence, body }, now);
            }
            check(&before, &endpoint);
        }
        ended[0] += endpoint.view().values().filter(|room| room.outcome == Outcome::Finished).count() as u32;
        ended[1] += endpoint.view().values().filter(|room| matches!(room.outcome, Outcome::Failed(_))).count() as u32;
    }
    assert!(frames > 400_000 && ended[0] > 0 && ended[1] > 100, "{frames} frames, {ended:?} rooms");
}
