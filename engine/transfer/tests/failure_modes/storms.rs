//! Runs in which everything goes wrong at once, by seed.

use crate::chance::seeds;
use crate::endpoints::faults::Faults;
use crate::endpoints::world::ms;
use crate::endpoints::{ALL, quiet_faults, run, sound};
use crate::hosts::{self, Troubles};
use crate::words::UNITS;

#[test]
fn without_faults_every_request_is_answered() {
    for seed in 0..20 {
        let world = sound(seed, quiet_faults());
        assert_eq!((world.tally.answered, world.tally.failed, world.tally.dropped), (7, 0, 0), "seed {seed}");
        assert_eq!(world.tally.posts, 7 * 2 * UNITS, "one post per request, rank and unit");
        assert_eq!(world.tally.torn_down, 0);
    }
}

#[test]
fn storm_of_endpoints() {
    let (mut answered, mut failed, mut restarts) = (0, 0, 0);
    for seed in seeds(4000) {
        let world = sound(seed, Faults::storm(ms(6000)));
        answered += world.tally.answered;
        failed += world.tally.failed;
        restarts += world.tally.restarts;
    }
    println!("{answered} requests answered, {failed} failed, {restarts} processes killed");
    assert!(answered > failed / 4 && failed > 0 && restarts > 0);
}

#[test]
fn without_troubles_every_request_is_answered() {
    for seed in 0..10 {
        let hosts = hosts::sound(seed, Troubles { verify: true, ..Troubles::default() });
        assert_eq!((hosts.tally.answered, hosts.tally.failed), (13, 0), "seed {seed}: {:?}", hosts.tally);
        assert_eq!((hosts.tally.verified, hosts.tally.malformed), (26, 0), "rooms of both ranks");
    }
}

#[test]
fn storm_of_drivers() {
    let (mut answered, mut failed, mut restarts, mut cut) = (0, 0, 0, 0);
    for seed in seeds(700) {
        let hosts = hosts::sound(seed, Troubles::storm(seed));
        answered += hosts.tally.answered;
        failed += hosts.tally.failed;
        restarts += hosts.tally.restarts;
        cut += hosts.tally.cut + hosts.tally.held;
    }
    println!("{answered} requests answered, {failed} failed, {restarts} servers killed, {cut} networks held or cut");
    assert!(answered > failed / 4 && failed > 0 && restarts > 0 && cut > 0);
}

#[test]
fn a_run_is_its_seed() {
    let tally = |seed| run(seed, Faults::storm(ms(6000)), ALL).tally;
    assert_eq!(tally(3), tally(3));
    assert_ne!(tally(3), tally(4));
    let tally = |seed| hosts::sound(seed, Troubles::storm(seed)).tally;
    assert_eq!(tally(5), tally(5));
    assert_ne!(tally(5), tally(6));
}
