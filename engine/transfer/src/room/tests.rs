//! The transition function alone: every pair, every order.

use super::*;
use crate::reason::Code;
use std::collections::HashMap;

const KEY: RoomKey = RoomKey { room: 3, epoch: 4 };
const ALL: Protections = Protections::ALL;

fn events(side: Side) -> Vec<Event> {
    let reason = || Reason::from(Code::Aborted);
    let mut events = vec![
        Event::Ready,
        Event::Retry,
        Event::Place,
        Event::UnitReady { unit: Unit(0), ticket: 7 },
        Event::UnitReady { unit: Unit(1), ticket: 8 },
        Event::UnitReady { unit: Unit(2), ticket: 9 },
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
        Signal::Layer(Unit(2)),
        Signal::Done { units: 2 },
        Signal::Done { units: 3 },
        Signal::DoneAck,
        Signal::Fail(reason()),
        Signal::Abort(reason()),
        Signal::AbortAck(Drain::Quiet),
        Signal::AbortAck(Drain::Draining { upto: 8 }),
        Signal::Fence(8),
        Signal::FenceAck(7),
        Signal::FenceAck(8),
        Signal::Stage(Stage::Placed),
    ];
    events.extend(signals.map(Event::Heard));
    let misplaced = |event: &Event| {
        let room = Room::new(KEY, side, 2);
        room.step(KEY.epoch, event.clone(), &ALL) == (room.clone(), vec![Action::Misplaced])
    };
    // The other side's events in the sense of the type; the orders below need not repeat them six times.
    assert!(events.iter().filter(|event| misplaced(event)).count() >= 5);
    events
}

/// A room with what the rank was told about it.
type Told = (Room, u32, u32);

fn tell(told: &Told, event: &Event) -> Told {
    let (room, ends, releases) = told;
    let (next, actions) = room.step(KEY.epoch, event.clone(), &ALL);
    let count = |what: &Action| actions.iter().filter(|action| *action == what).count() as u32;
    (next, ends + count(&Action::End), releases + count(&Action::Release))
}

/// F3, F5, F14: all orders of six events; equal states are followed once and counted.
#[test]
fn f03_every_order_of_six_events_ends_once_and_failed_stays_failed() {
    for side in [Side::Prefill, Side::Decode] {
        let events = events(side);
        let mut layer: HashMap<Told, u64> = HashMap::from([((Room::new(KEY, side, 2), 0, 0), 1)]);
        for _ in 0..6 {
            let mut next = HashMap::new();
            for (told, orders) in &layer {
                for event in &events {
                    let after = tell(told, event);
                    check_pair(told, event, &after);
                    *next.entry(after).or_insert(0) += orders;
                }
            }
            layer = next;
        }
        assert_eq!(layer.values().sum::<u64>(), (events.len() as u64).pow(6));
        let outcomes = |wanted: fn(&Outcome) -> bool| layer.keys().any(|(room, ..)| wanted(&room.outcome));
        assert!(outcomes(|outcome| *outcome == Outcome::Published) && outcomes(|o| matches!(o, Outcome::Failed(_))));
    }
}

fn check_pair((before, ..): &Told, event: &Event, after: &Told) {
    let (room, ends, releases) = after;
    let context = format!("{before:?} on {event:?} gave {room:?}");
    if before.outcome.is_final() {
        assert_eq!(room.outcome, before.outcome, "{context}");
    }
    assert!(room.outcome.rank() >= before.outcome.rank(), "{context}");
    assert_eq!(*ends, u32::from(room.outcome.is_final()), "{context}");
    assert_eq!(*releases, u32::from(room.is_free(&ALL)), "{context}");
    if let Quiet::Quiet(proof) = before.quiet {
        assert_eq!(room.quiet, Quiet::Quiet(proof), "a proof stays: {context}");
    }
    // Time and errors are no proof.
    let proofless = match event {
        Event::Deadline(_) | Event::Lost(_) | Event::Abort(_) | Event::Retry => true,
        Event::Posted { done, .. } => !done,
        Event::Ready | Event::Place | Event::UnitReady { .. } | Event::Finish | Event::Taken => true,
        Event::TornDown | Event::Heard(_) => false,
    };
    let offered = match before.side {
        Side::Decode => matches!(before.quiet, Quiet::WriterPossible | Quiet::Draining),
        Side::Prefill => {
            let outstanding = !before.posted.without(before.landed).is_empty();
            outstanding && matches!(before.quiet, Quiet::WriterPossible | Quiet::Draining)
        }
    };
    if proofless && offered {
        assert!(!matches!(room.quiet, Quiet::Quiet(_)), "{context}");
    }
    let waits = room.timer(&ALL).is_some();
    assert!(waits || room.is_free(&ALL), "no timer: {context}");
}

#[test]
fn another_epoch_is_never_applied() {
    for side in [Side::Prefill, Side::Decode] {
        let room = Room::new(KEY, side, 2);
        for event in events(side) {
            for epoch in [0, KEY.epoch - 1, KEY.epoch + 1, u32::MAX] {
                assert_eq!(room.step(epoch, event.clone(), &ALL), (room.clone(), vec![Action::StaleEpoch]));
            }
        }
    }
}

fn drive(side: Side, events: impl IntoIterator<Item = Event>) -> (Room, Vec<Action>) {
    let start = (Room::new(KEY, side, 2), vec![]);
    events.into_iter().fold(start, |(room, _), event| room.step(KEY.epoch, event, &ALL))
}

fn landing() -> [Event; 4] {
    let layer = |unit| Event::Heard(Signal::Layer(Unit(unit)));
    [Event::Ready, layer(1), layer(0), Event::Heard(Signal::Done { units: 2 })]
}

#[test]
fn decode_publishes_when_all_units_and_done_are_there_in_any_order() {
    for order in [[0, 1, 2, 3], [0, 3, 1, 2], [0, 2, 3, 1]] {
        let (room, actions) = drive(Side::Decode, order.map(|i| landing()[i].clone()));
        assert_eq!((room.outcome.clone(), room.quiet), (Outcome::Published, Quiet::Quiet(Proof::Done)));
        assert!(actions.contains(&Action::Send(Signal::DoneAck)));
        let (room, actions) = room.step(KEY.epoch, Event::Taken, &ALL);
        assert_eq!((room.outcome, actions), (Outcome::Finished, vec![Action::End, Action::Release]));
    }
}

#[test]
fn f09_done_without_its_units_asks_and_does_not_publish() {
    let events = [0, 1, 3].map(|i| landing()[i].clone());
    let (room, actions) = drive(Side::Decode, events);
    assert_eq!(room.outcome, Outcome::Moving);
    assert!(actions.contains(&Action::Send(Signal::Ask)));
    let (_, actions) = room.step(KEY.epoch, Event::Retry, &ALL);
    assert_eq!(actions, [Action::Send(Signal::Ask)]);
}

/// The step that sends DONE may stand behind another that takes long; then beats say that the room is worked at.
#[test]
fn f14_the_wait_for_done_is_renewed_by_beats_and_the_wait_for_a_unit_is_not() {
    let (beat, due) = (Event::Heard(Signal::Stage(Stage::Moving)), Event::Deadline);
    let failed = |room: &Room, timer| {
        let outcome = room.step(KEY.epoch, due(timer), &ALL).0.outcome;
        if let Outcome::Failed(reason) = &outcome { reason.to_string() } else { format!("{outcome:?}") }
    };
    for (side, events) in [(Side::Decode, landing()[..3].to_vec()), (Side::Prefill, posted_all())] {
        let (part, _) = drive(side, events[..events.len() - 1].to_vec());
        assert_eq!((part.timer(&ALL), part.step(KEY.epoch, beat.clone(), &ALL).1), (Some(Timer::Progress), vec![]));
        let (all, actions) = drive(side, events);
        assert!(actions.contains(&Action::Arm), "{side:?}");
        let (renewed, actions) = all.step(KEY.epoch, beat.clone(), &ALL);
        assert_eq!((renewed.timer(&ALL), actions), (Some(Timer::Lease), vec![Action::Arm]), "{side:?}");
        assert_eq!(failed(&all, Timer::Progress), "Moving", "{side:?}");
        assert!(failed(&all, Timer::Lease).starts_with("Lease: "), "{side:?}");
        if side == Side::Decode {
            assert_eq!(
                failed(&part, Timer::Progress),
                "NoProgress: 1 of 2 units landed, the first missing is 0; no DONE yet"
            );
            let (asked, _) = part.step(KEY.epoch, landing()[3].clone(), &ALL);
            assert!(failed(&asked, Timer::Progress).ends_with("the first missing is 0; DONE is here"));
            assert!(failed(&all, Timer::Lease).starts_with("Lease: all units landed, DONE is missing"));
        }
    }
}

#[test]
fn f02_an_aborted_room_keeps_its_pages_until_the_writer_is_gone() {
    let (room, actions) = drive(Side::Decode, [Event::Ready, Event::Abort(Code::Aborted.into())]);
    assert_eq!(actions, [Action::Send(Signal::Abort(Code::Aborted.into())), Action::Arm, Action::End]);
    let (room, _) = room.step(KEY.epoch, Event::Heard(Signal::AbortAck(Drain::Draining { upto: 8 })), &ALL);
    let (room, actions) = room.step(KEY.epoch, Event::Retry, &ALL);
    assert_eq!(actions, [Action::Send(Signal::Fence(8))]);
    let (room, actions) = room.step(KEY.epoch, Event::Heard(Signal::FenceAck(7)), &ALL);
    assert_eq!((room.quiet, actions), (Quiet::Draining, vec![]));
    let (room, actions) = room.step(KEY.epoch, Event::Deadline(Timer::Drain), &ALL);
    assert_eq!(actions, [Action::TearDown, Action::Arm]);
    let (room, actions) = room.step(KEY.epoch, Event::Heard(Signal::FenceAck(8)), &ALL);
    assert_eq!((room.quiet, actions), (Quiet::Quiet(Proof::Fence), vec![Action::Release]));
}

fn posting() -> Vec<Event> {
    let mut events = posted_all();
    events.insert(4, Event::Finish);
    events
}

/// All posts without the rank's word.
fn posted_all() -> Vec<Event> {
    let ready = |unit| Event::UnitReady { unit: Unit(unit), ticket: 7 + u64::from(unit) };
    let posted = |unit| Event::Posted { unit: Unit(unit), done: true };
    vec![Event::Place, ready(0), ready(1), posted(1), posted(0)]
}

#[test]
fn prefill_says_done_after_the_last_post_and_finishes_on_its_acknowledgement() {
    let (room, actions) = drive(Side::Prefill, posting());
    assert_eq!(room.outcome, Outcome::Published);
    assert_eq!(actions[0], Action::Send(Signal::Layer(Unit(0))));
    assert!(actions.contains(&Action::Send(Signal::Done { units: 2 })));
    let (room, actions) = room.step(KEY.epoch, Event::Heard(Signal::DoneAck), &ALL);
    assert_eq!((room.outcome, actions), (Outcome::Finished, vec![Action::End, Action::Release]));
}

#[test]
fn f18_an_aborted_room_posts_nothing_and_acknowledges_when_drained() {
    let (room, actions) =
        drive(Side::Prefill, posting().into_iter().take(2).chain([Event::Heard(Signal::Abort(Code::Aborted.into()))]));
    assert!(actions.contains(&Action::Send(Signal::AbortAck(Drain::Draining { upto: 7 }))));
    let (room, actions) = room.step(KEY.epoch, Event::UnitReady { unit: Unit(1), ticket: 8 }, &ALL);
    assert_eq!(actions, []);
    let (room, actions) = room.step(KEY.epoch, Event::Posted { unit: Unit(0), done: true }, &ALL);
    assert_eq!(actions, [Action::Send(Signal::AbortAck(Drain::Quiet)), Action::Release]);
    let (_, actions) = room.step(KEY.epoch, Event::Heard(Signal::Abort(Code::Aborted.into())), &ALL);
    assert_eq!(actions, [Action::Send(Signal::AbortAck(Drain::Quiet))]);
}

#[test]
fn f17_a_failed_post_fails_the_room_and_proves_nothing() {
    let failed = Event::Posted { unit: Unit(0), done: false };
    let (room, actions) = drive(Side::Prefill, posting().into_iter().take(2).chain([failed]));
    assert!(matches!(&room.outcome, Outcome::Failed(reason) if reason.code == Code::Transport));
    assert_eq!(room.quiet, Quiet::Draining);
    assert!(actions.contains(&Action::End) && !actions.contains(&Action::Release));
    let (room, actions) = room.step(KEY.epoch, Event::TornDown, &ALL);
    assert_eq!((room.quiet, actions), (Quiet::Quiet(Proof::TornDown), vec![Action::Release]));
}

#[test]
fn f16_a_repeated_open_is_answered_by_the_first_ones_state() {
    for taken in 0..=posting().len() {
        let (room, _) = drive(Side::Prefill, posting().into_iter().take(taken));
        let (after, actions) = room.step(KEY.epoch, Event::Heard(Signal::Open), &ALL);
        assert_eq!(after, room);
        assert_eq!(actions[0], Action::Send(Signal::Stage(room.outcome.stage().unwrap())));
    }
}

#[test]
fn units_of_a_set() {
    let mut set = UnitSet::EMPTY;
    assert!(set.insert(Unit(127)) && !set.insert(Unit(127)) && !set.insert(Unit(128)) && set.insert(Unit(0)));
    assert_eq!((set.len(), set.iter().collect::<Vec<_>>()), (2, vec![Unit(0), Unit(127)]));
    assert_eq!((UnitSet::first(128).len(), UnitSet::first(3).0), (128, 7));
    set.remove(Unit(0));
    assert_eq!(UnitSet::first(128).without(set).len(), 127);
}
