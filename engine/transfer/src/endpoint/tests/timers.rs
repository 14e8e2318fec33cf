//! Timers of rooms.

use super::*;

/// Every timer is up at its own time and says so by its own code.
#[test]
fn every_timer_is_up_at_its_own_time() {
    let timers = Timers {
        handshake: ms(1_100),
        lease: ms(1_200),
        progress: ms(1_300),
        taken: ms(1_400),
        acknowledge: ms(1_500),
        drain: ms(1_600),
        misses: 1_000,
        ..Timers::default()
    };
    let play = |side| {
        let mut play = Play::new(side, |config| config.timers = timers.clone());
        play.greet();
        play
    };
    let layer = |unit| Body::Layer { unit: Unit(unit), checksums: vec![] };
    let done = || Body::Done { units: 2, handover: vec![] };
    let cases = [
        (1_100, Code::Handshake, vec![]),
        (1_200, Code::Lease, vec![Body::Beat(vec![(KEY, Stage::Opening)])]),
        (1_300, Code::NoProgress, vec![layer(0)]),
        (1_400, Code::NotTaken, vec![layer(0), layer(1), done()]),
    ];
    for (time, code, bodies) in cases {
        let mut decode = play(Side::Decode);
        decode.open();
        for body in bodies {
            decode.hear(if body.kind().names_room() { KEY } else { frame::NO_ROOM }, body);
        }
        decode.tick(time - 1);
        assert!(!decode.endpoint.room(KEY).unwrap().outcome.is_final(), "{code:?} before its time");
        decode.tick(time);
        assert_eq!(decode.code(), code);
    }
    let mut prefill = play(Side::Prefill);
    prefill.arrive();
    prefill.endpoint.place(KEY, vec![vec![0], vec![1]], ms(0)).unwrap();
    for unit in [0, 1] {
        prefill.endpoint.unit_ready(KEY, Unit(unit), vec![], ms(0)).unwrap();
        prefill.endpoint.on_ticket(Ticket(u64::from(unit) + 1), true, ms(0));
    }
    prefill.endpoint.finish(KEY, Arc::from([]), ms(0)).unwrap();
    prefill.tick(1_499);
    assert_eq!(prefill.endpoint.room(KEY).unwrap().outcome, Outcome::Published);
    prefill.tick(1_500);
    assert_eq!(prefill.code(), Code::NotAcknowledged);

    let mut decode = play(Side::Decode);
    decode.open();
    decode.endpoint.abort(KEY, Code::Aborted.into(), ms(0));
    let mut torn = |time| {
        decode.tick(time);
        decode.outputs().iter().any(|output| matches!(output, Output::TearDown { .. }))
    };
    assert_eq!([1_599, 1_600].map(&mut torn), [false, true]);
}
