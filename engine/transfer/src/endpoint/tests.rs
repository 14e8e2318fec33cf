//! An endpoint against hand-made frames.

mod hostile;
mod timers;

use super::*;
use crate::frame::{self, Body, Decoded, Drain, Frame, FrameError, Kind, Open, Stage, decode};
use crate::hello::tests::hello;
use crate::reason::Code;
use crate::room::Proof;

const PEER: PeerId = PeerId(1);
const KEY: RoomKey = RoomKey { room: 9, epoch: 1 };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An endpoint with the other side played by the test.
struct Play {
    endpoint: Endpoint,
    sequence: u64,
    now: Duration,
}

impl Play {
    fn new(side: Side, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(hello(side));
        change(&mut config);
        let endpoint = Endpoint::new(config).unwrap();
        let mut play = Self { endpoint, sequence: 0, now: ms(0) };
        play.endpoint.on_connected(PEER, ms(0));
        play
    }

    fn ready(side: Side) -> Self {
        let mut play = Self::new(side, |_| {});
        play.greet();
        play
    }

    fn greet(&mut self) {
        let other = match self.endpoint.side() {
            Side::Decode => Side::Prefill,
            Side::Prefill => Side::Decode,
        };
        self.hear(frame::NO_ROOM, Body::Hello(Box::new(hello(other))));
        self.said();
    }

    fn hear(&mut self, key: RoomKey, body: Body) {
        self.sequence += 1;
        self.endpoint.on_frame(PEER, Frame { key, sequence: self.sequence, body }, self.now);
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.endpoint.poll()).collect()
    }

    /// What was sent since the last call.
    fn said(&mut self) -> Vec<Body> {
        let bodies = self.outputs().into_iter().filter_map(|output| match output {
            Output::Send { bytes, .. } => match decode(&bytes) {
                Decoded::Frame { frame, .. } => Some(frame.body),
                other => panic!("{other:?}"),
            },
            Output::Post { .. } | Output::TearDown { .. } | Output::Wake => None,
        });
        bodies.collect()
    }

    fn tick(&mut self, now: u64) {
        self.now = ms(now);
        self.endpoint.on_tick(self.now);
    }

    fn open(&mut self) {
        let (request, pages) = (Arc::from([1u8, 2]), vec![vec![3], vec![2]]);
        let new = NewRoom { key: KEY, peer: PEER, request, pages, deadline: Some(ms(9_000)), priority: 4 };
        self.endpoint.open(new, self.now).unwrap();
    }

    fn arrive(&mut self) {
        let (request, pages) = (vec![1, 2], vec![vec![3], vec![2]]);
        self.hear(KEY, Body::Open(Open { deadline_ms: 500, priority: 4, request, pages }));
    }

    fn code(&self) -> Code {
        match self.endpoint.room(KEY).unwrap().outcome {
            Outcome::Failed(reason) => reason.code,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_request_passes_from_open_to_taken() {
    let mut decode = Play::new(Side::Decode, |_| {});
    decode.open();
    let said = decode.said();
    assert!(matches!(&said[..], [Body::Hello(_)]), "OPEN waits for HELLO: {said:?}");
    decode.now = ms(1000);
    decode.hear(frame::NO_ROOM, Body::Hello(Box::new(hello(Side::Prefill))));
    let said = decode.said();
    let expected = Open { deadline_ms: 8_000, priority: 4, request: vec![1, 2], pages: vec![vec![3], vec![2]] };
    assert_eq!(said, [Body::Open(expected)]);
    decode.hear(frame::NO_ROOM, Body::Beat(vec![(KEY, Stage::Opening)]));
    assert_eq!(decode.endpoint.room(KEY).unwrap().outcome, Outcome::Placed);
    // Unit 1 has two items of one page each, unit 0 one.
    decode.hear(KEY, Body::Layer { unit: Unit(1), checksums: vec![7, 8] });
    assert_eq!(decode.endpoint.checksums(KEY, Unit(1)), Some(&[7, 8][..]));
    assert_eq!(decode.endpoint.checksums(KEY, Unit(0)), None);
    decode.hear(KEY, Body::Layer { unit: Unit(0), checksums: vec![] });
    decode.hear(KEY, Body::Done { units: 2, handover: vec![5] });
    assert_eq!(decode.said(), [Body::DoneAck]);
    let view = decode.endpoint.room(KEY).unwrap();
    assert_eq!((view.outcome, view.handover.as_deref(), view.free), (Outcome::Published, Some(&[5][..]), false));
    decode.endpoint.taken(KEY, ms(1)).unwrap();
    assert!(decode.endpoint.room(KEY).unwrap().free);
    decode.endpoint.forget(KEY).unwrap();
    decode.hear(KEY, Body::Done { units: 2, handover: vec![5] });
    assert_eq!(decode.said(), [Body::DoneAck], "DONE_ACK was lost");
}

#[test]
fn prefill_posts_units_into_the_pages_that_open_names() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    let view = prefill.endpoint.room(KEY).unwrap();
    assert_eq!((&view.request[..], view.deadline, view.priority), (&[1, 2][..], Some(ms(500)), 4));
    let wrong = prefill.endpoint.place(KEY, vec![vec![0, 1], vec![0]], ms(0)).unwrap_err();
    assert_eq!(wrong.to_string(), "room 9 epoch 1: class compressed: the sender has 2 pages for the receiver's 1");
    prefill.endpoint.place(KEY, vec![vec![0], vec![1]], ms(0)).unwrap();
    prefill.said();
    prefill.endpoint.unit_ready(KEY, Unit(1), vec![7, 8], ms(0)).unwrap();
    let outputs = prefill.outputs();
    // Regions at 0, 384, 768 with strides 128, 128, 192: pages 1 -> 2 of `window`, 0 -> 3 of `compressed`.
    let copies = vec![
        PageCopy { src: 384 + 128, dst: 384 + 256, bytes: 100 },
        PageCopy { src: 768, dst: 768 + 3 * 192, bytes: 132 },
    ];
    assert_eq!(outputs[0], Output::Post { peer: PEER, key: KEY, unit: Unit(1), copies, ticket: Ticket(1) });
    prefill.endpoint.on_ticket(Ticket(1), true, ms(0));
    assert_eq!(prefill.said(), [Body::Layer { unit: Unit(1), checksums: vec![7, 8] }]);
    prefill.endpoint.unit_ready(KEY, Unit(0), vec![], ms(0)).unwrap();
    let twice = prefill.endpoint.unit_ready(KEY, Unit(0), vec![], ms(0)).unwrap_err();
    assert_eq!(twice.to_string(), "unit_ready of room 9 epoch 1, which is Moving");
    prefill.endpoint.finish(KEY, Arc::from([5u8]), ms(0)).unwrap();
    assert_eq!(prefill.said(), []);
    prefill.endpoint.on_ticket(Ticket(2), true, ms(0));
    assert_eq!(prefill.said()[1], Body::Done { units: 2, handover: vec![5] });
    prefill.hear(KEY, Body::DoneAck);
    let view = prefill.endpoint.room(KEY).unwrap();
    assert_eq!((view.outcome, view.free), (Outcome::Finished, true));
}

#[test]
fn a_refused_handshake_names_the_field_to_both() {
    let mut decode = Play::new(Side::Decode, |config| config.hello.kv_dtype = "bf16".into());
    decode.open();
    decode.said();
    decode.hear(frame::NO_ROOM, Body::Hello(Box::new(hello(Side::Prefill))));
    let outputs = decode.outputs();
    let refused = r#"handshake: kv_dtype: ours "bf16", theirs "v4_fp8""#;
    assert!(matches!(&outputs[1], Output::TearDown { reason, .. } if reason.text == refused), "{outputs:?}");
    assert_eq!((decode.code(), decode.endpoint.room(KEY).unwrap().free), (Code::Protocol, true));

    let mut prefill = Play::new(Side::Prefill, |_| {});
    prefill.said();
    let refusal = Refusal { field: "rank".into(), ours: "0".into(), theirs: "1".into() };
    prefill.hear(frame::NO_ROOM, Body::Refuse(refusal));
    assert!(matches!(&prefill.outputs()[0], Output::TearDown { .. }));
}

#[test]
fn f06_beats_renew_the_lease_and_silence_loses_the_peer() {
    let mut decode = Play::ready(Side::Decode);
    decode.open();
    for now in (0..60_000).step_by(500) {
        decode.tick(now);
        decode.hear(frame::NO_ROOM, Body::Beat(vec![(KEY, Stage::Placed)]));
    }
    assert_eq!(decode.endpoint.room(KEY).unwrap().outcome, Outcome::Placed);
    // Beats go on, but name another room: the lease of 10 s ends.
    for now in (60_000..69_400).step_by(500) {
        decode.tick(now);
        decode.hear(frame::NO_ROOM, Body::Beat(vec![]));
        assert_eq!(decode.endpoint.room(KEY).unwrap().outcome, Outcome::Placed);
    }
    decode.tick(69_500);
    assert_eq!(decode.code(), Code::Lease);
    decode.tick(69_000 + 2_000);
    decode.said();
    assert!(decode.endpoint.peers().all(|peer| !peer.ready), "four beats missed");
    assert!(!decode.endpoint.room(KEY).unwrap().free, "silence is no proof");
}

#[test]
fn f11_a_new_incarnation_replaces_the_old_connection() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    prefill.said();
    let mut theirs = hello(Side::Decode);
    theirs.incarnation += 1;
    prefill.endpoint.on_connected(PeerId(2), ms(10));
    let frame = Frame { key: frame::NO_ROOM, sequence: 1, body: Body::Hello(Box::new(theirs)) };
    prefill.endpoint.on_frame(PeerId(2), frame, ms(10));
    assert_eq!(prefill.code(), Code::PeerLost);
    assert!(prefill.outputs().iter().any(|output| matches!(output, Output::TearDown { peer: PEER, .. })));
    let ready: Vec<_> = prefill.endpoint.peers().filter(|peer| peer.ready).map(|peer| peer.id).collect();
    assert_eq!(ready, [PeerId(2)]);
}

#[test]
fn an_abort_before_open_is_quiet_and_refuses_the_open() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.hear(KEY, Body::Abort(Code::Aborted.into()));
    assert_eq!(prefill.said(), [Body::AbortAck(Drain::Quiet)]);
    prefill.arrive();
    assert!(matches!(&prefill.said()[..], [Body::Fail(reason)] if reason.code == Code::Gone));
    assert!(prefill.endpoint.view().is_empty());
    // The rank may know first, from its siblings.
    let other = RoomKey { epoch: 2, ..KEY };
    prefill.endpoint.abort(other, Code::Aborted.into(), ms(0));
    prefill.hear(other, Body::Open(Open { deadline_ms: 0, priority: 0, request: vec![], pages: vec![vec![], vec![]] }));
    assert!(prefill.endpoint.view().is_empty());
}

#[test]
fn one_fence_serves_all_rooms_of_a_peer() {
    let mut decode = Play::ready(Side::Decode);
    decode.open();
    decode.endpoint.abort(KEY, Code::Aborted.into(), ms(0));
    decode.hear(KEY, Body::AbortAck(Drain::Draining { upto: 5 }));
    let other = RoomKey { epoch: 2, ..KEY };
    let new = NewRoom {
        key: other,
        peer: PEER,
        request: Arc::from([]),
        pages: vec![vec![], vec![]],
        deadline: None,
        priority: 0,
    };
    decode.endpoint.open(new, ms(0)).unwrap();
    decode.endpoint.abort(other, Code::Aborted.into(), ms(0));
    decode.hear(other, Body::AbortAck(Drain::Draining { upto: 8 }));
    decode.said();
    decode.tick(1000);
    let fences: Vec<_> = decode.said().into_iter().filter(|body| body.kind() == Kind::Fence).collect();
    assert_eq!(fences, [Body::Fence { upto: 8 }]);
    decode.hear(frame::NO_ROOM, Body::FenceAck { upto: 5 });
    assert_eq!(decode.endpoint.room(KEY).unwrap().quiet, Quiet::Quiet(Proof::Fence));
    assert_eq!(decode.endpoint.room(other).unwrap().quiet, Quiet::Draining);
}

#[test]
fn a_fence_is_acknowledged_up_to_the_first_post_that_may_write() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    prefill.endpoint.place(KEY, vec![vec![0], vec![1]], ms(0)).unwrap();
    prefill.endpoint.unit_ready(KEY, Unit(0), vec![], ms(0)).unwrap();
    prefill.endpoint.unit_ready(KEY, Unit(1), vec![], ms(0)).unwrap();
    prefill.said();
    let fence = |prefill: &mut Play| {
        prefill.hear(frame::NO_ROOM, Body::Fence { upto: 2 });
        prefill.said().pop()
    };
    assert_eq!(fence(&mut prefill), Some(Body::FenceAck { upto: 0 }));
    prefill.endpoint.on_ticket(Ticket(1), true, ms(0));
    assert_eq!(fence(&mut prefill), Some(Body::FenceAck { upto: 1 }));
    prefill.endpoint.on_ticket(Ticket(2), false, ms(0));
    assert_eq!(fence(&mut prefill), Some(Body::FenceAck { upto: 1 }), "a failed post may still write");
}

#[test]
fn a_full_quarantine_tears_the_oldest_peer_down() {
    // A room of one page in both classes holds 100 + 100 + 132 bytes.
    for (budget, torn) in [(332, false), (331, true)] {
        let mut decode = Play::new(Side::Decode, |config| config.limits.quarantine_bytes = budget);
        decode.greet();
        decode.open();
        decode.endpoint.abort(KEY, Code::Aborted.into(), ms(0));
        let mut torn_down = |at| {
            decode.endpoint.on_tick(ms(at));
            decode.outputs().iter().any(|output| matches!(output, Output::TearDown { .. }))
        };
        let beat = Timers::default().beat.as_millis() as u64;
        assert!(!torn_down(beat - 1), "the peer has had no time to answer");
        assert_eq!(torn_down(beat), torn);
        assert!(!decode.endpoint.room(KEY).unwrap().free);
    }
}

#[test]
fn commands_out_of_place_are_named() {
    let mut decode = Play::ready(Side::Decode);
    assert_eq!(decode.endpoint.taken(KEY, ms(0)), Err(CommandError::UnknownRoom(KEY)));
    let wrong = decode.endpoint.place(KEY, vec![], ms(0)).unwrap_err();
    assert_eq!(wrong.to_string(), "place on a Decode endpoint");
    decode.open();
    assert_eq!(decode.endpoint.forget(KEY), Err(CommandError::NotFree(KEY)));
    assert!(matches!(decode.endpoint.taken(KEY, ms(0)), Err(CommandError::Misplaced { .. })));
    let new = NewRoom {
        key: KEY,
        peer: PEER,
        request: Arc::from([]),
        pages: vec![vec![], vec![]],
        deadline: None,
        priority: 0,
    };
    assert_eq!(decode.endpoint.open(new.clone(), ms(0)), Err(CommandError::Used(KEY)));
    let key = RoomKey { epoch: 2, ..KEY };
    let long = NewRoom { key, request: Arc::from(vec![0; 1 << 20]), ..new.clone() };
    assert!(matches!(decode.endpoint.open(long, ms(0)), Err(CommandError::TooLarge { .. })));
    let gone = NewRoom { key, peer: PeerId(77), ..new };
    decode.endpoint.open(gone, ms(0)).unwrap();
    let view = decode.endpoint.room(key).unwrap();
    assert!(view.free && matches!(view.outcome, Outcome::Failed(_)));
}

#[test]
fn goodbye_is_said_and_heard() {
    let mut decode = Play::ready(Side::Decode);
    decode.open();
    decode.said();
    decode.endpoint.bye(ms(0));
    let outputs = decode.outputs();
    assert!(matches!(&outputs[..], [Output::Send { .. }, Output::TearDown { .. }, Output::Wake]), "{outputs:?}");
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    prefill.hear(frame::NO_ROOM, Body::Bye);
    assert_eq!(prefill.code(), Code::PeerLost);
    assert!(prefill.endpoint.room(KEY).unwrap().free, "nothing was posted");
}

#[test]
fn a_torn_down_peer_leaves_nothing_to_do() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    prefill.endpoint.place(KEY, vec![vec![0], vec![1]], ms(0)).unwrap();
    prefill.endpoint.unit_ready(KEY, Unit(0), vec![], ms(0)).unwrap();
    assert_eq!(prefill.endpoint.num_posts(), 1);
    prefill.endpoint.on_torn_down(PEER, ms(0));
    assert_eq!((prefill.outputs(), prefill.endpoint.num_posts()), (vec![Output::Wake], 0));
    let view = prefill.endpoint.room(KEY).unwrap();
    assert_eq!((view.quiet, view.free), (Quiet::Quiet(Proof::TornDown), true));
    prefill.endpoint.on_ticket(Ticket(1), true, ms(0));
    assert_eq!(prefill.outputs(), []);
    assert_eq!(prefill.endpoint.next_due(), None);
}

#[test]
fn f09_a_record_is_not_shown_before_the_units_that_it_belongs_to() {
    let mut decode = Play::ready(Side::Decode);
    decode.open();
    decode.hear(KEY, Body::Done { units: 2, handover: vec![5] });
    decode.hear(KEY, Body::Layer { unit: Unit(1), checksums: vec![] });
    let view = decode.endpoint.room(KEY).unwrap();
    assert_eq!((view.outcome, view.handover), (Outcome::Moving, None));
    decode.hear(KEY, Body::Layer { unit: Unit(0), checksums: vec![] });
    let view = decode.endpoint.room(KEY).unwrap();
    assert_eq!((view.outcome, view.handover.as_deref()), (Outcome::Published, Some(&[5][..])));
}
