//! What no honest peer sends, and too much of what it does.

use super::*;

#[test]
fn f01_bad_frames_are_counted_and_too_many_close_the_connection_only() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    prefill.said();
    for _ in 0..1000 {
        prefill.endpoint.on_bad_bytes(PEER, &FrameError::Kind { got: 99 }, ms(0));
    }
    assert_eq!(prefill.endpoint.errors().of(ErrorKind::UnknownKind), 1000);
    assert_eq!(prefill.outputs(), [], "unknown kinds are dropped");
    let body = FrameError::Body { kind: Kind::Layer, what: String::new() };
    for _ in 0..15 {
        prefill.endpoint.on_bad_bytes(PEER, &body, ms(0));
    }
    assert_eq!(prefill.outputs(), []);
    prefill.hear(KEY, Body::Layer { unit: Unit(0), checksums: vec![] });
    assert!(matches!(&prefill.outputs()[..], [Output::TearDown { .. }, Output::Wake]), "16th: LAYER to prefill");
    assert_eq!(prefill.code(), Code::Protocol);
    prefill.endpoint.on_torn_down(PEER, ms(0));
    prefill.endpoint.forget(KEY).unwrap();
    // The next connection is served.
    prefill.endpoint.on_connected(PeerId(2), ms(0));
    assert_eq!(prefill.said().len(), 1);
}

#[test]
fn f12_a_peer_that_never_reads_is_torn_down_and_nobody_waits() {
    let mut decode = Play::new(Side::Decode, |config| config.limits.queued_bytes = 10_000);
    decode.greet();
    decode.open();
    let mut ticks = 0;
    while decode.endpoint.peers().any(|peer| peer.ready) {
        decode.tick(ticks * 500);
        decode.hear(frame::NO_ROOM, Body::Beat(vec![(KEY, Stage::Placed)]));
        ticks += 1;
        assert!(ticks < 1000);
    }
    assert_eq!((decode.code(), decode.endpoint.errors().of(ErrorKind::Overflow)), (Code::Overloaded, 1));
    // One that reads is kept.
    let mut decode = Play::new(Side::Decode, |config| config.limits.queued_bytes = 10_000);
    decode.greet();
    for tick in 0..1000 {
        decode.tick(tick * 500);
        decode.hear(frame::NO_ROOM, Body::Beat(vec![]));
        for output in decode.outputs() {
            if let Output::Send { peer, bytes } = output {
                decode.endpoint.on_sent(peer, bytes.len());
            }
        }
    }
    assert!(decode.endpoint.peers().all(|peer| peer.ready));
}

#[test]
fn f16_repeated_and_overtaken_frames_are_dropped_by_their_sequence() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    prefill.said();
    let body = Body::Abort(Code::Aborted.into());
    prefill.endpoint.on_frame(PEER, Frame { key: KEY, sequence: prefill.sequence, body }, ms(0));
    assert_eq!(prefill.endpoint.errors().of(ErrorKind::StaleSequence), 1);
    assert_eq!(prefill.endpoint.room(KEY).unwrap().outcome, Outcome::Opening);
    prefill.sequence += 3;
    prefill.arrive();
    assert_eq!(prefill.endpoint.errors().of(ErrorKind::Gap), 1);
    assert_eq!(prefill.said(), [Body::Beat(vec![(KEY, Stage::Opening)])], "the first one's state");
}

#[test]
fn f01_a_sequence_far_ahead_makes_the_connection_deaf_and_so_ends_it() {
    let mut prefill = Play::ready(Side::Prefill);
    let body = Body::Beat(vec![]);
    let ahead = Frame { key: frame::NO_ROOM, sequence: u64::MAX, body };
    prefill.endpoint.on_frame(PEER, ahead, ms(0));
    for now in (0..=2000).step_by(500) {
        prefill.tick(now);
        prefill.hear(frame::NO_ROOM, Body::Beat(vec![]));
    }
    assert!(prefill.endpoint.peers().all(|peer| !peer.ready));
}

#[test]
fn a_refusal_of_more_rooms_than_fit_is_told_and_acknowledged() {
    let mut prefill = Play::new(Side::Prefill, |config| config.limits.rooms = 0);
    prefill.greet();
    prefill.arrive();
    assert!(matches!(&prefill.said()[..], [Body::Fail(reason)] if reason.code == Code::Overloaded));
    prefill.hear(KEY, Body::Abort(Code::Overloaded.into()));
    assert_eq!(prefill.said(), [Body::AbortAck(Drain::Quiet)]);
}

#[test]
fn the_oldest_tombstones_are_forgotten() {
    let mut prefill = Play::new(Side::Prefill, |config| config.limits.tombstones = 2);
    prefill.greet();
    let key = |epoch| RoomKey { epoch, ..KEY };
    (1..=3).for_each(|epoch| prefill.endpoint.abort(key(epoch), Code::Aborted.into(), ms(0)));
    let pages = vec![vec![], vec![]];
    for epoch in [3, 2, 1] {
        let open = Open { deadline_ms: 0, priority: 0, request: vec![], pages: pages.clone() };
        prefill.hear(key(epoch), Body::Open(open));
    }
    assert_eq!(prefill.endpoint.view().into_keys().collect::<Vec<_>>(), [key(1)]);
}

#[test]
fn wrong_numbers_of_checksums_fail_the_room() {
    let mut decode = Play::ready(Side::Decode);
    decode.open();
    decode.hear(KEY, Body::Layer { unit: Unit(1), checksums: vec![7] });
    assert_eq!((decode.code(), decode.endpoint.errors().of(ErrorKind::Body)), (Code::Protocol, 1));
    assert_eq!(decode.endpoint.checksums(KEY, Unit(1)), None);
}

#[test]
fn with_too_many_connections_the_oldest_without_a_hello_gives_way() {
    let mut prefill = Play::new(Side::Prefill, |config| config.limits.peers = 3);
    let connect = |prefill: &mut Play, peer| {
        prefill.endpoint.on_connected(PeerId(peer), ms(0));
        let closed = prefill.outputs().into_iter().find_map(|output| match output {
            Output::TearDown { peer, reason } => Some((peer.0, reason)),
            Output::Send { .. } | Output::Post { .. } | Output::Wake => None,
        });
        if let Some((peer, reason)) = &closed {
            assert_eq!((reason.code, &*reason.text), (Code::Overloaded, "more than 3 connections"));
            prefill.endpoint.on_torn_down(PeerId(*peer), ms(0));
        }
        closed.map(|(peer, _)| peer)
    };
    let greet = |prefill: &mut Play, peer: u32| {
        let hello = Hello { name: format!("decode {peer}"), ..hello(Side::Decode) };
        let frame = Frame { key: frame::NO_ROOM, sequence: 1, body: Body::Hello(Box::new(hello)) };
        prefill.endpoint.on_frame(PeerId(peer), frame, ms(0));
    };
    // The first, PEER, says HELLO; two more do not.
    greet(&mut prefill, 1);
    assert_eq!([2, 3].map(|peer| connect(&mut prefill, peer)), [None, None]);
    assert_eq!([4, 5].map(|peer| connect(&mut prefill, peer)), [Some(2), Some(3)]);
    [4, 5].iter().for_each(|&peer| greet(&mut prefill, peer));
    assert_eq!(connect(&mut prefill, 6), Some(6), "nobody is worse than the newest");
    assert!([1, 4, 5].iter().all(|&peer| prefill.endpoint.is_ready(PeerId(peer))));
}

#[test]
fn requests_have_a_bound_in_bytes() {
    // Two bytes of request and two page numbers.
    for (limit, refused) in [(9, true), (10, false)] {
        let mut prefill = Play::new(Side::Prefill, |config| config.limits.request_bytes = limit);
        prefill.greet();
        prefill.arrive();
        let said = prefill.said();
        let told = matches!(&said[..], [Body::Fail(reason)] if reason.code == Code::Overloaded);
        assert_eq!(told, refused, "{said:?}");
        // A second one is too much in any case.
        let open = Open { deadline_ms: 0, priority: 0, request: vec![1], pages: vec![vec![], vec![]] };
        prefill.hear(RoomKey { room: 10, ..KEY }, Body::Open(open));
        assert_eq!(prefill.endpoint.view().len(), 1, "{refused}: one of the two fits");
    }
}

/// Numbers at the ends of their ranges.
#[test]
fn huge_numbers_are_answered_or_refused() {
    const MAX: u32 = u32::MAX;
    let mut prefill = Play::ready(Side::Prefill);
    for pages in [vec![vec![MAX], vec![0]], vec![vec![0]; 9], vec![]] {
        prefill.hear(KEY, Body::Open(Open { deadline_ms: MAX, priority: 255, request: vec![], pages }));
        assert!(
            matches!(&prefill.said()[..], [Body::Fail(reason)] if matches!(reason.code, Code::Protocol | Code::Gone))
        );
    }
    let far = RoomKey { room: u64::MAX, epoch: MAX };
    let pages = vec![vec![3], vec![2]];
    prefill.hear(far, Body::Open(Open { deadline_ms: MAX, priority: 255, request: vec![], pages }));
    assert_eq!(prefill.endpoint.room(far).unwrap().outcome, Outcome::Opening);
    prefill.hear(frame::NO_ROOM, Body::Fence { upto: u64::MAX });
    assert!(prefill.said().contains(&Body::FenceAck { upto: 0 }));

    let mut decode = Play::ready(Side::Decode);
    decode.open();
    decode.endpoint.abort(KEY, Code::Aborted.into(), ms(0));
    decode.hear(KEY, Body::AbortAck(Drain::Draining { upto: u64::MAX }));
    decode.hear(frame::NO_ROOM, Body::FenceAck { upto: u64::MAX - 1 });
    assert!(!decode.endpoint.room(KEY).unwrap().free, "one short of what was named");
    let mut decode = Play::ready(Side::Decode);
    decode.open();
    decode.hear(KEY, Body::Layer { unit: Unit(MAX), checksums: vec![] });
    assert_eq!(decode.code(), Code::Protocol);
    let mut decode = Play::ready(Side::Decode);
    decode.open();
    decode.hear(KEY, Body::Done { units: MAX, handover: vec![] });
    assert_eq!(decode.code(), Code::Protocol);
}

/// What a peer says about another peer's room, whose number it has guessed.
#[test]
fn a_room_listens_to_its_own_peer_alone() {
    let mut prefill = Play::ready(Side::Prefill);
    prefill.arrive();
    let stranger = PeerId(2);
    prefill.endpoint.on_connected(stranger, ms(0));
    let bodies = [
        Body::Hello(Box::new(Hello { name: "decode 7".into(), ..hello(Side::Decode) })),
        Body::Abort(Code::Aborted.into()),
        Body::Fail(Code::Aborted.into()),
        Body::DoneAck,
        Body::Beat(vec![(KEY, Stage::Placed)]),
        Body::Open(Open { deadline_ms: 0, priority: 0, request: vec![9], pages: vec![vec![0], vec![0]] }),
    ];
    for (sequence, body) in (1..).zip(bodies) {
        let key = if body.kind().names_room() { KEY } else { frame::NO_ROOM };
        prefill.endpoint.on_frame(stranger, Frame { key, sequence, body }, ms(0));
    }
    prefill.endpoint.on_torn_down(stranger, ms(0));
    let view = prefill.endpoint.room(KEY).unwrap();
    assert_eq!((view.outcome, &view.request[..], view.peer), (Outcome::Opening, &[1, 2][..], PEER));
    // And its own OPEN, said again, is the same room.
    prefill.said();
    prefill.arrive();
    assert_eq!(prefill.said(), [Body::Beat(vec![(KEY, Stage::Opening)])]);
}

#[test]
fn a_long_refusal_is_cut() {
    let mut decode = Play::ready(Side::Decode);
    let refusal = Refusal { field: "y".repeat(5000), ours: String::new(), theirs: String::new() };
    decode.hear(frame::NO_ROOM, Body::Refuse(refusal));
    let torn = decode.outputs().into_iter().find_map(|output| match output {
        Output::TearDown { reason, .. } => Some(reason.text.len()),
        Output::Send { .. } | Output::Post { .. } | Output::Wake => None,
    });
    assert_eq!(torn, Some(crate::reason::MAX_TEXT_BYTES));
}
