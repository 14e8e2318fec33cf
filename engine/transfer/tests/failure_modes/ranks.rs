//! F9: data, metadata and the ranks of a server apart from each other.

use crate::endpoints::faults::Faults;
use crate::endpoints::{quiet_faults, run, sound};
use crate::hosts::{self, Pace, Troubles};
use crate::rooms::NO_SEQUENCE;

#[test]
fn f09_done_and_data_in_any_order() {
    let faults = || Faults { reorder: 400, delay: 300, ..quiet_faults() };
    for seed in 0..200 {
        sound(seed, faults());
    }
    // The sequence drops what was overtaken; without it the rooms must cope alone.
    for seed in 0..200 {
        let world = run(seed, faults(), NO_SEQUENCE);
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
}

/// Pages, frames and decisions reach one rank up to 50 ms after the other.
pub(crate) fn skewed() -> Troubles {
    let pace = Pace { skew: 50, exchange: true };
    Troubles { pages: "page-copy=delay(50)@0.3; post=delay(50)@0.2", hold: 20, pace, ..Troubles::default() }
}

#[test]
fn f09_ranks_that_see_things_apart_decide_together() {
    for seed in 0..40 {
        hosts::sound(seed, skewed());
    }
}
