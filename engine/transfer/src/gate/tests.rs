use super::*;
use crate::ids::RoomKey;
use std::time::Duration;

const COMPRESSED: Class = Class(0);
const WINDOW: Class = Class(1);

fn gate_with(faults: &str) -> Arc<PageGate> {
    let class = |name: &str, num_pages| ClassSpec { name: name.into(), num_pages };
    let faults = Arc::new(Faults::parse(faults).unwrap());
    Arc::new(PageGate::new(&[class("compressed", 8), class("window", 4)], 70, faults))
}

fn gate() -> Arc<PageGate> {
    gate_with("")
}

fn tag(room: u64, epoch: u32) -> Tag {
    Tag::new(RoomKey { room, epoch }).unwrap()
}

fn run(class: Class, pages: &[u32], tag: Tag) -> Pages<'_> {
    Pages { class, pages, tag }
}

#[test]
fn a_unit_is_readable_once_published_and_no_other_unit_is() {
    let gate = gate();
    let pages = gate.claim(&[(COMPRESSED, &[7, 2]), (WINDOW, &[1])], tag(5, 1)).unwrap();
    let runs = [run(COMPRESSED, &[2, 7], tag(5, 1)), run(WINDOW, &[1], tag(5, 1))];
    let error = gate.readable(Unit(69), &runs).unwrap_err().to_string();
    assert_eq!(error, "unit 69 of page 2 of class compressed is not published (room 5 epoch 1)");
    gate.publish(Unit(69), &pages).unwrap();
    let readable = gate.readable(Unit(69), &runs).unwrap();
    assert_eq!((readable.unit(), readable.runs()), (Unit(69), &runs[..]));
    for unit in [0, 5, 68] {
        assert!(matches!(gate.readable(Unit(unit), &runs), Err(GateError::Unpublished { .. })));
    }
}

#[test]
fn another_generation_is_an_error_naming_both_even_while_a_page_travels() {
    let gate = gate();
    let _old = gate.claim(&[(COMPRESSED, &[3])], tag(5, 1)).unwrap();
    gate.revoke(&[run(COMPRESSED, &[3], tag(5, 1))]).unwrap();
    let _new = gate.claim(&[(COMPRESSED, &[3, 4])], tag(9, 2)).unwrap();
    let runs = [run(COMPRESSED, &[4], tag(9, 2)), run(COMPRESSED, &[3], tag(5, 1))];
    let message = "page 3 of class compressed: expected room 5 epoch 1, found room 9 epoch 2";
    let far = Instant::now() + Duration::from_secs(3600);
    assert_eq!(gate.wait_readable(Unit(0), &runs, far).unwrap_err().to_string(), message);
    assert_eq!(gate.readable(Unit(0), &runs).unwrap_err().to_string(), message);
    assert_eq!(gate.revoke(&runs).unwrap_err().to_string(), message);
    assert_eq!(gate.holder(COMPRESSED, 4).unwrap(), Holder::Tag(tag(9, 2)), "revoked all or none");
}

#[test]
fn a_new_generation_starts_with_nothing_published() {
    let gate = gate();
    let old = gate.claim(&[(WINDOW, &[0])], tag(1, 1)).unwrap();
    gate.publish(Unit(3), &old).unwrap();
    gate.revoke(&[run(WINDOW, &[0], tag(1, 1))]).unwrap();
    let error = gate.publish(Unit(4), &old).unwrap_err().to_string();
    assert_eq!(error, "page 0 of class window: expected room 1 epoch 1, found a revoked page");
    let new = gate.claim(&[(WINDOW, &[0])], tag(1, 2)).unwrap();
    let runs = [run(WINDOW, &[0], tag(1, 2))];
    assert!(matches!(gate.readable(Unit(3), &runs), Err(GateError::Unpublished { .. })));
    assert!(matches!(gate.publish(Unit(3), &old), Err(GateError::Tag { .. })));
    gate.publish(Unit(3), &new).unwrap();
    gate.readable(Unit(3), &runs).unwrap();
}

#[test]
fn shared_prefix_pages_have_several_readers_and_their_own_tag() {
    let gate = gate();
    let prefix = gate.claim(&[(COMPRESSED, &[0, 1])], tag(1, 1)).unwrap();
    gate.publish(Unit(0), &prefix).unwrap();
    let own = gate.claim(&[(COMPRESSED, &[2])], tag(2, 1)).unwrap();
    gate.publish(Unit(0), &own).unwrap();
    let first = [run(COMPRESSED, &[0, 1], tag(1, 1))];
    let second = [run(COMPRESSED, &[0, 1], tag(1, 1)), run(COMPRESSED, &[2], tag(2, 1))];
    let readers = (gate.readable(Unit(0), &first).unwrap(), gate.readable(Unit(0), &second).unwrap());

    gate.revoke(&[run(COMPRESSED, &[0], tag(1, 1))]).unwrap();
    let claim = || gate.claim(&[(COMPRESSED, &[0])], tag(3, 1));
    let busy =
        "page 0 of class compressed is claimed for room 3 epoch 1, but still read or filled under room 1 epoch 1";
    assert_eq!(claim().unwrap_err().to_string(), busy);
    drop(readers.0);
    assert_eq!(claim().unwrap_err().to_string(), busy);
    // Readers that come after the revocation cannot have the page, so they hold nothing up.
    let rest = [run(COMPRESSED, &[1], tag(1, 1))];
    let _later = gate.readable(Unit(0), &rest).unwrap();
    drop(readers.1);
    claim().unwrap();
}

#[test]
fn the_last_copy_publishes_and_a_dropped_countdown_never_does() {
    let gate = gate();
    let pages = Arc::new(gate.claim(&[(COMPRESSED, &[1, 2])], tag(4, 1)).unwrap());
    let runs = [run(COMPRESSED, &[1, 2], tag(4, 1))];
    let landing = gate.landing(Unit(1), &pages, &[("CSA KV", 2), ("CSA index K", 1), ("state", 0)]).unwrap();
    assert!(!landing.done(0).unwrap() && !landing.done(0).unwrap());
    assert_eq!(
        landing.done(0).unwrap_err().to_string(),
        "unit 1, CSA KV: a copy was reported beyond the number announced"
    );
    assert_eq!(landing.missing().collect::<Vec<_>>(), [("CSA index K", 1)]);
    assert!(matches!(gate.readable(Unit(1), &runs), Err(GateError::Unpublished { .. })));
    assert!(landing.done(1).unwrap());
    gate.readable(Unit(1), &runs).unwrap();

    let dropped = gate.landing(Unit(2), &pages, &[("CSA KV", 2)]).unwrap();
    assert!(!dropped.done(0).unwrap());
    drop(dropped);
    assert!(matches!(gate.readable(Unit(2), &runs), Err(GateError::Unpublished { .. })));
    gate.landing(Unit(3), &pages, &[]).unwrap();
    gate.readable(Unit(3), &runs).unwrap();
}

#[test]
fn pages_under_a_landing_are_not_claimed() {
    let gate = gate();
    let pages = Arc::new(gate.claim(&[(WINDOW, &[3])], tag(4, 1)).unwrap());
    let landing = gate.landing(Unit(0), &pages, &[("window KV", 1)]).unwrap();
    gate.revoke(&[run(WINDOW, &[3], tag(4, 1))]).unwrap();
    assert!(matches!(gate.claim(&[(WINDOW, &[3])], tag(5, 1)), Err(GateError::Busy { .. })));
    assert!(matches!(landing.done(0), Err(GateError::Tag { .. })), "revoked under the copy");
    drop(landing);
    gate.claim(&[(WINDOW, &[3])], tag(5, 1)).unwrap();
}

/// The defect of loads whose readers waited for KV alone: with the fault on, a unit is readable before its index keys.
#[test]
fn a_fault_skips_the_wait_for_one_item_only() {
    for (faults, early) in [("gate:CSA index K=skip-wait", true), ("gate:CSA KV=skip-wait", false), ("", false)] {
        let gate = gate_with(faults);
        let pages = Arc::new(gate.claim(&[(COMPRESSED, &[1])], tag(4, 1)).unwrap());
        let runs = [run(COMPRESSED, &[1], tag(4, 1))];
        let landing = gate.landing(Unit(1), &pages, &[("CSA KV", 1), ("CSA index K", 1)]).unwrap();
        landing.done(0).unwrap();
        assert_eq!(gate.readable(Unit(1), &runs).is_ok(), early, "{faults}");
        landing.done(1).unwrap();
        gate.readable(Unit(1), &runs).unwrap();
    }
}

#[test]
fn waits_end_with_the_landing_the_revocation_or_the_deadline() {
    let gate = gate();
    let pages = Arc::new(gate.claim(&[(COMPRESSED, &[1])], tag(4, 1)).unwrap());
    let runs = [run(COMPRESSED, &[1], tag(4, 1))];
    let wait = |unit, ms| gate.wait_readable(unit, &runs, Instant::now() + Duration::from_millis(ms)).map(drop);
    let error = wait(Unit(0), 1).unwrap_err().to_string();
    assert_eq!(error, "deadline: unit 0 of page 1 of class compressed is not published (room 4 epoch 1)");
    std::thread::scope(|scope| {
        let landed = scope.spawn(|| wait(Unit(0), 60_000));
        let revoked = scope.spawn(|| wait(Unit(1), 60_000));
        gate.landing(Unit(0), &pages, &[("CSA KV", 1)]).unwrap().done(0).unwrap();
        landed.join().unwrap().unwrap();
        gate.revoke(&runs).unwrap();
        assert!(matches!(revoked.join().unwrap(), Err(GateError::Tag { found: Holder::Revoked, .. })));
    });
}

#[test]
fn what_is_not_there_is_named() {
    let gate = gate();
    let error = |pages: &[(Class, &[u32])]| gate.claim(pages, tag(1, 1)).unwrap_err().to_string();
    assert_eq!(error(&[(WINDOW, &[4])]), "page 4 of class window: the gate has 4");
    assert_eq!(error(&[(Class(2), &[0])]), "class 2: the gate has 2");
    assert_eq!(error(&[(WINDOW, &[1, 1])]), "page 1 of class window stands twice in a claim for room 1 epoch 1");
    let _held = gate.claim(&[(WINDOW, &[0])], tag(8, 1)).unwrap();
    let taken = "page 0 of class window is claimed for room 1 epoch 1, but it belongs to room 8 epoch 1";
    assert_eq!(error(&[(COMPRESSED, &[0]), (WINDOW, &[0])]), taken);
    assert_eq!(gate.holder(COMPRESSED, 0).unwrap(), Holder::Free, "claimed all or none");
    assert_eq!(gate.readable(Unit(70), &[]).unwrap_err().to_string(), "unit 70: the gate has 70");
    for (room, epoch) in [(1 << 48, 1), (1, 0), (1, 1 << 16)] {
        assert!(matches!(Tag::new(RoomKey { room, epoch }), Err(GateError::Key { .. })));
    }
    let key = RoomKey { room: (1 << 48) - 1, epoch: 65_535 };
    assert_eq!(Tag::new(key).unwrap().key(), key);
}
