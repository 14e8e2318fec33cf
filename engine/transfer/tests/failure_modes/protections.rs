//! Each protection taken away in turn, and what notices.
//!
//! The switches are [`Protections`] of endpoints and drivers, `gate=skip-wait` of the gate, and the exchange of the simulated
//! servers. A case names the runs in which the protection is needed and what one of them must report.

use crate::chance::Rng;
use crate::endpoints::faults::Faults as EndpointFaults;
use crate::endpoints::{ALL, broken};
use crate::frames::garbage;
use crate::hosts::{self, Pace, Troubles};
use crate::pages::{failed_posts, late_pages, late_writes};
use crate::ranks::skewed;
use crate::rooms::{NO_SEQUENCE, losses, overtaken_aborts, refusals, repeats, replays};
use std::sync::Arc;
use std::time::Duration;
use transfer::arena::Arena;
use transfer::fault::Faults;
use transfer::gate::{PageGate, Pages, Tag};
use transfer::ids::{Class, RoomKey, Unit};
use transfer::layout::ClassSpec;
use transfer::room::Protections;

/// Some run of endpoints reports a violation, and the first one is of these words.
fn noticed(name: &str, on: Protections, faults: impl Fn() -> EndpointFaults, words: &[&str]) {
    let first = broken(name, 300, on, faults);
    println!("without {name}: {first}");
    assert!(words.iter().any(|word| first.contains(word)), "{name}: {first}");
}

const LEFT: [&str; 2] = ["not served", "not idle"];

#[test]
fn f01_frame_guard() {
    let on = Protections { frame_guard: false, ..ALL };
    noticed("frame guard", on, garbage, &["not served"]);
    noticed_by_drivers("frame guard", || Troubles { noise: true, on, ..Troubles::default() }, &["not served"]);
}

#[test]
fn f02_quarantine() {
    let on = Protections { quarantine: false, ..ALL };
    noticed("quarantine", on, late_writes, &["wrote a page of"]);
    noticed_by_drivers("quarantine", || Troubles { on, ..late_pages() }, &["were nobody's"]);
}

#[test]
fn f03_sticky_failure() {
    let on = Protections { sticky_failure: false, ..ALL };
    noticed("sticky failure", on, overtaken_aborts, &["was Failed", "answered twice"]);
}

#[test]
fn f04_generation() {
    let on = Protections { generation: false, ..NO_SEQUENCE };
    noticed("generation", on, replays, &["foreign bytes"]);
}

#[test]
fn f05_owner_drop() {
    noticed("owner drop", Protections { owner_drop: false, ..ALL }, late_writes, &LEFT);
}

#[test]
fn f06_leases() {
    noticed("leases", Protections { leases: false, ..ALL }, losses, &LEFT);
}

/// Without FAIL the next beat meets a tombstone: later, and without the words.
#[test]
fn f07_f08_telling_failure() {
    let (time, reasons) = refusals(Protections { tell_failure: false, ..ALL });
    assert!(time > Duration::from_millis(400), "{time:?}");
    assert!(reasons.keys().all(|reason| !reason.contains("refusé")), "{reasons:?}");
}

/// A server that goes by what its first rank saw takes rooms of which the second has not seen the end.
#[test]
fn f09_f10_decision_exchange() {
    let pace = Pace { skew: 50, exchange: false };
    noticed_by_drivers("exchange", || Troubles { pace, ..skewed() }, &["wrong bytes"]);
}

#[test]
fn f16_first_open_and_tombstones() {
    noticed("first open", Protections { first_open: false, ..NO_SEQUENCE }, repeats, &["was Finished, now Opening"]);
    let faults = || EndpointFaults { reorder: 300, ..repeats() };
    noticed("tombstones", Protections { tombstones: false, ..NO_SEQUENCE }, faults, &["was Failed"]);
}

#[test]
fn f17_failed_posts_are_no_proof() {
    noticed("failed posts", Protections { failed_post_writes: false, ..ALL }, failed_posts, &["wrote a page of"]);
}

fn noticed_by_drivers(name: &str, troubles: impl Fn() -> Troubles, words: &[&str]) {
    let first = (0..100).find_map(|seed| hosts::run(seed, troubles()).violations.into_iter().next());
    let first = first.unwrap_or_else(|| panic!("{name}: nothing noticed in 100 seeds"));
    println!("without {name}, drivers: {first}");
    assert!(words.iter().any(|word| first.contains(word)), "{name}: {first}");
}

/// Copies of a unit's items, in any order; whoever gets the unit from the gate must find every item. What was not there.
fn read_early(seed: u64, faults: &str) -> Vec<&'static str> {
    const ITEMS: [&str; 3] = ["window KV", "CSA KV", "CSA index K"];
    let mut rng = Rng::new(seed);
    let class = ClassSpec { name: "compressed".into(), num_pages: 4 };
    let gate = Arc::new(PageGate::new(&[class], 1, Arc::new(Faults::parse(faults).expect("rules"))));
    let arena = Arena::new(ITEMS.len() as u64 * 64).expect("a small arena");
    let tag = Tag::new(RoomKey { room: 1 + seed, epoch: 1 }).expect("a small number");
    let pages = Arc::new(gate.claim(&[(Class(0), &[2])], tag).expect("a free page"));
    let landing = gate.landing(Unit(0), &pages, &ITEMS.map(|item| (item, 1))).expect("claimed");
    let mut order = vec![0, 1, 2];
    let mut missed = vec![];
    while !order.is_empty() {
        let item = order.remove(rng.below(order.len() as u64) as usize);
        arena.fill(item as u64 * 64, 64, 1).expect("inside");
        landing.done(item).expect("announced");
        let run = Pages { class: Class(0), pages: &[2], tag };
        if gate.readable(Unit(0), &[run]).is_ok() {
            missed.extend(order.iter().map(|&item| ITEMS[item]));
        }
    }
    missed
}

#[test]
fn h1_gate_wait() {
    let missed = |faults| (0..50).flat_map(|seed| read_early(seed, faults)).collect::<Vec<_>>();
    assert_eq!(missed(""), Vec::<&str>::new());
    let early = missed("gate:CSA index K=skip-wait");
    assert!(!early.is_empty() && early.iter().all(|item| *item == "CSA index K"), "{early:?}");
}
