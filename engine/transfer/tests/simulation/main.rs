//! Decode and prefill servers on a virtual clock, with everything going wrong that can: frames, posts, processes.
//!
//! A run is a seed. Invariants are checked at every event: a page is written by its owner's posts alone, what is published
//! is what was sent, Failed and Finished stay, every request is answered once. When the faults are over the next request is
//! served, and then every room is forgotten and every page is back.
//!
//! `SIMULATION_SEEDS=20000 cargo test -p transfer --test simulation storm` runs more seeds, `SIMULATION_FIRST=n` others.

mod coordinator;
mod faults;
mod network;
mod world;

use faults::Faults;
use std::time::Duration;
use transfer::frame::Kind;
use transfer::room::Protections;
use world::{World, ms};

const ALL: Protections = Protections::ALL;

/// Requests while things go wrong, one when they are over, and a look at what is left.
fn run(seed: u64, faults: Faults, on: Protections) -> World {
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
fn settle(world: &mut World) {
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

fn sound(seed: u64, faults: Faults) -> World {
    let world = run(seed, faults, ALL);
    assert!(world.violations.is_empty(), "seed {seed}: {:#?}\n{:?}", world.violations, world.tally);
    world
}

/// First violation among some seeds when a protection is off.
fn broken(name: &str, seeds: u64, on: Protections, faults: impl Fn() -> Faults) -> String {
    let found = (0..seeds).find_map(|seed| run(seed, faults(), on).violations.into_iter().next());
    found.unwrap_or_else(|| panic!("{name}: nothing noticed in {seeds} seeds"))
}

fn quiet_faults() -> Faults {
    Faults { until: ms(4000), ..Faults::default() }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let first = number("SIMULATION_FIRST", 0);
    first..first + number("SIMULATION_SEEDS", usual)
}

#[test]
fn without_faults_every_request_is_answered() {
    for seed in 0..20 {
        let world = sound(seed, quiet_faults());
        assert_eq!((world.tally.answered, world.tally.failed, world.tally.dropped), (7, 0, 0), "seed {seed}");
        assert_eq!(world.tally.posts, 7 * 2 * world::UNITS, "one post per request, rank and unit");
        assert_eq!(world.tally.torn_down, 0);
    }
}

#[test]
fn storm() {
    let (mut answered, mut failed, mut restarts) = (0, 0, 0);
    for seed in seeds(2000) {
        let world = sound(seed, Faults::storm(ms(6000)));
        answered += world.tally.answered;
        failed += world.tally.failed;
        restarts += world.tally.restarts;
    }
    println!("{answered} requests answered, {failed} failed, {restarts} processes killed");
    assert!(answered > failed / 4 && failed > 0 && restarts > 0);
}

#[test]
fn a_run_is_its_seed() {
    let tally = |seed| run(seed, Faults::storm(ms(6000)), ALL).tally;
    assert_eq!(tally(3), tally(3));
    assert_ne!(tally(3), tally(4));
}

#[test]
fn f01_no_byte_string_ends_the_service() {
    let faults = || Faults { garbage: 100, truncate: 10, flip: 10, ..quiet_faults() };
    for seed in 0..100 {
        sound(seed, faults());
    }
    let first = broken("frame guard", 20, Protections { frame_guard: false, ..ALL }, faults);
    assert!(first.contains("not served"), "{first}");
    // Noise on an idle pair, thousands of times, and then a request.
    let mut world = World::new(1, 1, quiet_faults(), ALL);
    for _ in 0..3000 {
        let noise = world.noise();
        world.inject(&noise);
        world.run(world.now + ms(10));
    }
    settle(&mut world);
    assert!(world.violations.is_empty(), "{:?}", world.violations);
}

fn late_writes() -> Faults {
    Faults { post_hangs: 150, post_fails_and_writes: 100, abort: 60, ..quiet_faults() }
}

#[test]
fn f02_a_late_write_never_meets_another_owner() {
    for seed in 0..200 {
        sound(seed, late_writes());
    }
    let first = broken("quarantine", 200, Protections { quarantine: false, ..ALL }, late_writes);
    assert!(first.contains("wrote a page of"), "{first}");
}

#[test]
fn f03_a_failed_room_stays_failed() {
    let faults = || Faults { abort: 60, reorder: 200, delay: 200, ..quiet_faults() };
    let first = broken("sticky failure", 200, Protections { sticky_failure: false, ..ALL }, faults);
    assert!(first.contains("was Failed") || first.contains("answered twice"), "{first}");
}

fn replays() -> Faults {
    Faults { replay: 400, duplicate: 100, reorder: 100, abort: 60, refuse: 200, ..quiet_faults() }
}

#[test]
fn f04_frames_of_an_old_epoch_change_nothing() {
    let open = Protections { sequence: false, ..ALL };
    for seed in 0..200 {
        let world = run(seed, replays(), open);
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
    broken("generation", 200, Protections { generation: false, ..open }, replays);
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
    let first = broken("owner drop", 20, Protections { owner_drop: false, ..ALL }, late_writes);
    assert!(first.contains("not served") || first.contains("not idle"), "{first}");
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
    let faults = || Faults { drop: 100, post_hangs: 100, ..quiet_faults() };
    let first = broken("leases", 50, Protections { leases: false, ..ALL }, faults);
    assert!(first.contains("not served") || first.contains("not idle"), "{first}");
}

#[test]
fn f07_f08_a_refusal_frees_decode_within_a_second_and_keeps_its_words() {
    let slowest = |on: Protections| {
        let faults = Faults { until: Duration::from_secs(3600), refuse: 1000, ..Faults::default() };
        let mut world = World::new(7, 1, faults, on);
        let side = world.decode_side(1).unwrap();
        (0..1000).for_each(|_| side.request(1));
        world.run(Duration::from_secs(3000));
        assert!(world.violations.is_empty(), "{:?}", world.violations);
        assert_eq!(world.tally.failed, 1000);
        (world.decode_side(1).unwrap().slowest_failure, world.tally.reasons)
    };
    let (time, reasons) = slowest(ALL);
    assert!(time < ms(100), "round trips, no timers: {time:?}");
    assert_eq!(reasons.len(), 1000);
    assert!(reasons.keys().all(|reason| reason.starts_with("Refused: refusé: room ")));
    // Without FAIL the next beat meets a tombstone: later, and without the words.
    let (time, reasons) = slowest(Protections { tell_failure: false, ..ALL });
    assert!(time > ms(400) && reasons.keys().all(|reason| !reason.contains("refusé")), "{time:?} {reasons:?}");
}

#[test]
fn f09_done_and_data_in_any_order() {
    let faults = || Faults { reorder: 400, delay: 300, ..quiet_faults() };
    for seed in 0..200 {
        sound(seed, faults());
    }
    // The sequence drops what was overtaken; without it the rooms must cope alone.
    for seed in 0..200 {
        let world = run(seed, faults(), Protections { sequence: false, ..ALL });
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
}

#[test]
fn f11_killed_stopped_and_restarted_processes() {
    for seed in 0..300 {
        sound(seed, Faults { kill: 30, stop: 30, cut: 20, post_hangs: 50, ..quiet_faults() });
    }
}

#[test]
fn f16_repeated_opens_and_retries_share_nothing() {
    let faults = || Faults { duplicate: 500, abort: 40, post_hangs: 50, ..quiet_faults() };
    let open = Protections { sequence: false, ..ALL };
    for seed in 0..200 {
        let world = run(seed, faults(), open);
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
    broken("first open", 200, Protections { first_open: false, ..open }, faults);
    let faults = || Faults { reorder: 300, ..faults() };
    broken("tombstones", 300, Protections { tombstones: false, ..open }, faults);
}

#[test]
fn f17_a_failed_post_may_still_write() {
    let faults = || Faults { post_fails_and_writes: 300, ..quiet_faults() };
    for seed in 0..200 {
        sound(seed, faults());
    }
    let first = broken("failed posts", 200, Protections { failed_post_writes: false, ..ALL }, faults);
    assert!(first.contains("wrote a page of"), "{first}");
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
            whole += 2 * world::UNITS;
            settle(&mut world);
            assert!(world.violations.is_empty(), "stage {stage}, seed {seed}: {:#?}", world.violations);
        }
        let limit = [whole / 4, whole / 2, whole][stage as usize];
        assert!(posts < limit, "stage {stage}: {posts} posts of {whole} for nobody");
    }
}

#[test]
fn f19_a_stopped_receiver_holds_up_nobody_else() {
    for seed in 0..50 {
        let mut world = World::new(seed, 2, quiet_faults(), ALL);
        world.run(ms(500));
        // One room there: the pages it holds at prefill until the tear-down leave enough for the others.
        world.request(1, 1);
        (0..3).for_each(|_| world.request(2, 1));
        world.run(world.now + ms(20));
        // 10 s: posts to it never end, and neither beats nor closes come from it.
        world.stop(1, Duration::from_secs(10));
        world.run(world.now + ms(980));
        let served = world.tally.answered;
        (0..3).for_each(|_| world.request(2, 1));
        world.run(world.now + ms(1500));
        assert!(world.tally.answered >= served + 3, "seed {seed}: {:?}", world.tally);
        settle(&mut world);
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
}
