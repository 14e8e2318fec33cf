//! F3, F4, F6, F7, F8, F14, F16, F18: rooms end once, as what they are, and soon.

use crate::endpoints::faults::Faults;
use crate::endpoints::world::{World, ms};
use crate::endpoints::{ALL, quiet_faults, run, settle, sound};
use crate::words::UNITS;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use transfer::frame::{Drain, Kind, Stage};
use transfer::hello::Side;
use transfer::ids::{RoomKey, Unit};
use transfer::reason::{Code, Reason};
use transfer::room::{Action, Event, Protections, Room, Signal, Timer};

pub(crate) fn overtaken_aborts() -> Faults {
    Faults { abort: 60, reorder: 200, delay: 200, ..quiet_faults() }
}

#[test]
fn f03_a_failed_room_stays_failed() {
    let mut failed = 0;
    for seed in 0..200 {
        failed += sound(seed, overtaken_aborts()).tally.failed;
    }
    assert!(failed > 100, "{failed} rooms failed");
}

/// Frames that overtake each other, where nothing but the room can know.
pub(crate) const NO_SEQUENCE: Protections = Protections { sequence: false, ..ALL };

pub(crate) fn replays() -> Faults {
    Faults { replay: 400, duplicate: 100, reorder: 100, abort: 60, refuse: 200, ..quiet_faults() }
}

#[test]
fn f04_frames_of_an_old_epoch_change_nothing() {
    for seed in 0..200 {
        let world = run(seed, replays(), NO_SEQUENCE);
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
}

#[test]
fn f06_any_frame_may_be_lost_once() {
    for kind in Kind::ALL {
        for nth in 0..12 {
            let faults = Faults { drop_once: Some((kind, nth)), ..quiet_faults() };
            let world = sound(u64::from(nth), faults);
            assert_eq!(world.tally.answered, 7, "{kind:?} number {nth}");
            // HELLO is not repeated: the pair connects again, and the requests with it.
            assert!(world.tally.failed == 0 || kind == Kind::Hello, "{kind:?} number {nth}: {:?}", world.tally);
        }
    }
}

pub(crate) fn losses() -> Faults {
    Faults { drop: 100, post_hangs: 100, ..quiet_faults() }
}

/// A thousand requests that prefill refuses: the slowest, and the words.
pub(crate) fn refusals(on: Protections) -> (Duration, BTreeMap<String, u32>) {
    let faults = Faults { until: Duration::from_secs(3600), refuse: 1000, ..Faults::default() };
    let mut world = World::new(7, 1, faults, on);
    let side = world.decode_side(1).unwrap();
    (0..1000).for_each(|_| side.request(1));
    world.run(Duration::from_secs(3000));
    assert!(world.violations.is_empty(), "{:?}", world.violations);
    assert_eq!(world.tally.failed, 1000);
    (world.decode_side(1).unwrap().slowest_failure, world.tally.reasons)
}

#[test]
fn f07_a_refusal_frees_decode_within_a_second() {
    let (time, _) = refusals(ALL);
    assert!(time < ms(100), "round trips, no timers: {time:?}");
}

#[test]
fn f08_a_refusal_keeps_its_words() {
    let (_, reasons) = refusals(ALL);
    assert_eq!(reasons.len(), 1000);
    assert!(reasons.keys().all(|reason| reason.starts_with("Refused: refusé: room ")));
}

/// What can happen to a room of two units.
fn events() -> Vec<Event> {
    let reason = || Reason::from(Code::Aborted);
    let mut events = vec![
        Event::Ready,
        Event::Retry,
        Event::Place,
        Event::UnitReady { unit: Unit(0), ticket: 7 },
        Event::UnitReady { unit: Unit(1), ticket: 8 },
        Event::Finish,
        Event::Taken,
        Event::Abort(reason()),
        Event::Posted { unit: Unit(0), done: true },
        Event::Posted { unit: Unit(1), done: true },
        Event::Posted { unit: Unit(1), done: false },
        Event::Lost(reason()),
        Event::TornDown,
    ];
    let timers = [Timer::Handshake, Timer::Lease, Timer::Progress, Timer::Taken, Timer::Acknowledge, Timer::Drain];
    events.extend(timers.map(Event::Deadline));
    let signals = [
        Signal::Open,
        Signal::Ask,
        Signal::Layer(Unit(0)),
        Signal::Layer(Unit(1)),
        Signal::Layer(Unit(9)),
        Signal::Done { units: 2 },
        Signal::Done { units: 3 },
        Signal::DoneAck,
        Signal::Fail(reason()),
        Signal::Abort(reason()),
        Signal::AbortAck(Drain::Quiet),
        Signal::AbortAck(Drain::Draining { upto: 8 }),
        Signal::Fence(8),
        Signal::FenceAck(8),
        Signal::Stage(Stage::Placed),
        Signal::Stage(Stage::Moving),
    ];
    events.extend(signals.map(Event::Heard));
    events
}

/// Every state that some events lead to, with every event: it is answered, and by its own timers and the tear-down that they
/// bring about every room comes to an end and gives its pages back.
#[test]
fn f14_no_room_is_left_in_any_state() {
    let key = RoomKey { room: 3, epoch: 4 };
    for side in [Side::Prefill, Side::Decode] {
        let (mut known, mut new) = (HashSet::new(), vec![Room::new(key, side, 2)]);
        while let Some(room) = new.pop() {
            if known.insert(room.clone()) {
                new.extend(events().into_iter().map(|event| room.step(key.epoch, event, &ALL).0));
            }
        }
        assert!(known.len() > 100, "{} states of {side:?}", known.len());
        for room in known {
            let (mut end, mut timers) = (room.clone(), vec![]);
            while let Some(timer) = end.timer(&ALL) {
                timers.push(timer);
                let (next, actions) = end.step(key.epoch, Event::Deadline(timer), &ALL);
                end = match actions.contains(&Action::TearDown) {
                    true => next.step(key.epoch, Event::TornDown, &ALL).0,
                    false => next,
                };
                assert!(timers.len() < 4, "{room:?} waits for {timers:?} and is {end:?}");
            }
            assert!(end.is_free(&ALL), "{room:?} ends as {end:?}");
        }
    }
}

pub(crate) fn repeats() -> Faults {
    Faults { duplicate: 500, abort: 40, post_hangs: 50, ..quiet_faults() }
}

#[test]
fn f16_repeated_opens_and_retries_share_nothing() {
    for seed in 0..200 {
        let world = run(seed, repeats(), NO_SEQUENCE);
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
}

#[test]
fn f18_a_client_that_leaves_stops_prefill() {
    for stage in 0..3 {
        let (mut posts, mut whole) = (0, 0);
        for seed in 0..50 {
            let mut world = World::new(seed, 1, quiet_faults(), ALL);
            world.run(ms(100));
            world.decode_side(1).unwrap().request_aborted_at(1, Some(stage));
            world.step_in(ms(0), 1);
            // ABORT takes 2 ms at most; what prefill computes behind it is not posted.
            world.run(world.now + ms(1000));
            assert!(world.busy().is_empty(), "stage {stage}, seed {seed}: {:?}", world.busy());
            assert_eq!((world.tally.answered, world.tally.failed), (0, 1));
            posts += world.tally.posts;
            whole += 2 * UNITS;
            settle(&mut world);
            assert!(world.violations.is_empty(), "stage {stage}, seed {seed}: {:#?}", world.violations);
        }
        let limit = [whole / 4, whole / 2, whole][stage as usize];
        assert!(posts < limit, "stage {stage}: {posts} posts of {whole} for nobody");
    }
}
