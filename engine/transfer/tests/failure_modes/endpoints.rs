//! Endpoints on a virtual clock, with everything going wrong that can: frames, posts, processes.
//!
//! A run is a seed. Invariants are checked at every event: a page is written by its owner's posts alone, what is published
//! is what was sent, Failed and Finished stay, every request is answered once. When the faults are over the next request is
//! served, and then every room is forgotten and every page is back.

mod coordinator;
pub(crate) mod faults;
pub(crate) mod network;
pub(crate) mod pool;
mod turn;
pub(crate) mod world;

use faults::Faults;
use std::time::Duration;
use transfer::room::Protections;
use world::{World, ms};

pub(crate) const ALL: Protections = Protections::ALL;

/// Requests while things go wrong, one when they are over, and a look at what is left.
pub(crate) fn run(seed: u64, faults: Faults, on: Protections) -> World {
    let mut world = World::new(seed, 1, faults, on);
    let calm = world.faults.until;
    for i in 0..6u64 {
        world.run(calm * i as u32 / 6);
        world.request(1, 3);
    }
    settle(&mut world);
    world
}

/// Waits until everything is idle, as long as all deadlines behind each other may take, asks once more, and waits again.
pub(crate) fn settle(world: &mut World) {
    let idle = |world: &mut World, limit: u64| {
        for _ in 0..limit {
            world.run(world.now + Duration::from_secs(1));
            if world.busy().is_empty() {
                break;
            }
        }
    };
    // Processes that stopped last run again, and those that start again are connected.
    world.run(world.now.max(world.faults.until) + Duration::from_secs(9));
    idle(world, 60);
    let before = world.tally.answered;
    world.request(1, 1);
    idle(world, 30);
    if world.tally.answered != before + 1 {
        world.violation(format!("the next request was not served: {:?}", world.tally));
    }
    for busy in world.busy() {
        world.violation(busy);
    }
}

pub(crate) fn sound(seed: u64, faults: Faults) -> World {
    let world = run(seed, faults, ALL);
    assert!(world.violations.is_empty(), "seed {seed}: {:#?}\n{:?}", world.violations, world.tally);
    world
}

/// First violation among some seeds when a protection is off.
pub(crate) fn broken(name: &str, seeds: u64, on: Protections, faults: impl Fn() -> Faults) -> String {
    let found = (0..seeds).find_map(|seed| run(seed, faults(), on).violations.into_iter().next());
    found.unwrap_or_else(|| panic!("{name}: nothing noticed in {seeds} seeds"))
}

pub(crate) fn quiet_faults() -> Faults {
    Faults { until: ms(4000), ..Faults::default() }
}
