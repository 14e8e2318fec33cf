//! F2, F5, F17: who may write a page, and when it is free.

use crate::endpoints::faults::Faults;
use crate::endpoints::world::{World, ms};
use crate::endpoints::{ALL, quiet_faults, settle, sound};
use crate::hosts::{self, Troubles};

pub(crate) fn late_writes() -> Faults {
    Faults { post_hangs: 150, post_fails_and_writes: 100, abort: 60, ..quiet_faults() }
}

/// The same for drivers.
pub(crate) fn late_pages() -> Troubles {
    let pages =
        "completion=never-end@0.1; completion=error-then-write(120)@0.1; post=delay(200)@0.1; page-copy=delay(100)@0.1";
    Troubles { leave: 60, pages, ..Troubles::default() }
}

#[test]
fn f02_a_late_write_never_meets_another_owner() {
    for seed in 0..200 {
        sound(seed, late_writes());
    }
    for seed in 0..40 {
        hosts::sound(seed, late_pages());
    }
}

#[test]
fn f05_every_way_out_gives_everything_back() {
    for stage in 0..4 {
        for seed in 0..20 {
            let mut world = World::new(seed, 1, late_writes(), ALL);
            for _ in 0..20 {
                if let Some(side) = world.decode_side(1) {
                    side.request_aborted_at(1, Some(stage));
                }
                world.step_in(ms(0), 1);
                world.run(world.now + ms(200));
            }
            settle(&mut world);
            assert!(world.violations.is_empty(), "stage {stage}, seed {seed}: {:#?}", world.violations);
            assert!(world.tally.failed >= 20, "{:?}", world.tally);
        }
    }
}

pub(crate) fn failed_posts() -> Faults {
    Faults { post_fails_and_writes: 300, ..quiet_faults() }
}

#[test]
fn f17_a_failed_post_may_still_write() {
    for seed in 0..200 {
        sound(seed, failed_posts());
    }
}
