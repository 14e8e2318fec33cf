//! Every interleaving, memory order included: `RUSTFLAGS="--cfg loom" cargo test -p transfer --lib`.
//! Bytes of a page are one relaxed word here, as in an arena.

use super::*;
use crate::ids::RoomKey;
use loom::sync::atomic::AtomicU64 as Word;
use loom::thread;
use std::time::Duration;

const CLASS: Class = Class(0);

fn gate() -> Arc<PageGate> {
    let class = ClassSpec { name: "window".into(), num_pages: 1 };
    Arc::new(PageGate::new(&[class], 1, Arc::new(Faults::none())))
}

fn tag(room: u64) -> Tag {
    Tag::new(RoomKey { room, epoch: 1 }).unwrap()
}

fn run(tag: Tag) -> [Pages<'static>; 1] {
    [Pages { class: CLASS, pages: &[0], tag }]
}

#[test]
fn who_may_read_sees_the_bytes() {
    loom::model(|| {
        let (gate, bytes) = (gate(), Arc::new(Word::new(0)));
        let writer = thread::spawn({
            let (gate, bytes) = (gate.clone(), bytes.clone());
            move || {
                let pages = gate.claim(&[(CLASS, &[0])], tag(1)).unwrap();
                bytes.store(1, Ordering::Relaxed);
                gate.publish(Unit(0), &pages).unwrap();
            }
        });
        // Held over the read: to leave takes the lock, which would order what the gate itself must order.
        if let Ok(_readable) = gate.readable(Unit(0), &run(tag(1))) {
            assert_eq!(bytes.load(Ordering::Relaxed), 1);
        }
        writer.join().unwrap();
        gate.readable(Unit(0), &run(tag(1))).unwrap();
    });
}

#[test]
fn the_last_of_two_copies_publishes_both() {
    two_copies(&[("KV", 1), ("index K", 1)], [0, 1]);
    two_copies(&[("KV", 2)], [0, 0]);
}

fn two_copies(announced: &'static [(&'static str, usize)], items: [usize; 2]) {
    loom::model(move || {
        let gate = gate();
        let bytes = Arc::new([Word::new(0), Word::new(0)]);
        let pages = Arc::new(gate.claim(&[(CLASS, &[0])], tag(1)).unwrap());
        let landing = Arc::new(gate.landing(Unit(0), &pages, announced).unwrap());
        let copies = [0, 1].map(|copy| {
            let (landing, bytes) = (landing.clone(), bytes.clone());
            thread::spawn(move || {
                bytes[copy].store(1, Ordering::Relaxed);
                landing.done(items[copy]).unwrap()
            })
        });
        if let Ok(_readable) = gate.readable(Unit(0), &run(tag(1))) {
            assert_eq!(bytes.each_ref().map(|word| word.load(Ordering::Relaxed)), [1, 1]);
        }
        let last = copies.map(|copy| copy.join().unwrap());
        assert!(last[0] != last[1], "one of them publishes");
        gate.readable(Unit(0), &run(tag(1))).unwrap();
    });
}

#[test]
fn a_page_is_not_refilled_under_its_reader() {
    loom::model(|| {
        let (gate, bytes) = (gate(), Arc::new(Word::new(1)));
        let pages = gate.claim(&[(CLASS, &[0])], tag(1)).unwrap();
        gate.publish(Unit(0), &pages).unwrap();
        let reader = thread::spawn({
            let (gate, bytes) = (gate.clone(), bytes.clone());
            move || {
                let runs = run(tag(1));
                if let Ok(_readable) = gate.readable(Unit(0), &runs) {
                    assert_eq!(bytes.load(Ordering::Relaxed), 1, "another room's bytes under a reader");
                }
            }
        });
        gate.revoke(&run(tag(1))).unwrap();
        match gate.claim(&[(CLASS, &[0])], tag(2)) {
            Ok(_pages) => bytes.store(2, Ordering::Relaxed),
            Err(error) => assert!(matches!(error, GateError::Busy { .. }), "{error}"),
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_page_is_not_given_away_under_a_late_copy() {
    loom::model(|| {
        let (gate, bytes) = (gate(), Arc::new(Word::new(0)));
        let pages = Arc::new(gate.claim(&[(CLASS, &[0])], tag(1)).unwrap());
        let landing = gate.landing(Unit(0), &pages, &[("KV", 1)]).unwrap();
        let copy = thread::spawn({
            let bytes = bytes.clone();
            move || {
                bytes.store(1, Ordering::Relaxed);
                let _ = landing.done(0);
            }
        });
        gate.revoke(&run(tag(1))).unwrap_or_default();
        let claimed = gate.claim(&[(CLASS, &[0])], tag(2)).is_ok();
        if claimed {
            bytes.store(2, Ordering::Relaxed);
        }
        copy.join().unwrap();
        assert!(!claimed || bytes.load(Ordering::Relaxed) == 2, "the copy wrote into another room's page");
    });
}

#[test]
fn a_waiting_reader_is_woken_by_landing_and_by_revocation() {
    for lands in [true, false] {
        loom::model(move || {
            let gate = gate();
            let pages = Arc::new(gate.claim(&[(CLASS, &[0])], tag(1)).unwrap());
            let reader = thread::spawn({
                let gate = gate.clone();
                // Loom's condition variable has no clock: a lost wake-up shows as a deadlock.
                move || gate.wait_readable(Unit(0), &run(tag(1)), Instant::now() + Duration::from_secs(3600)).is_ok()
            });
            if lands {
                gate.publish(Unit(0), &pages).unwrap();
            } else {
                gate.revoke(&run(tag(1))).unwrap();
            }
            assert_eq!(reader.join().unwrap(), lands);
        });
    }
}
