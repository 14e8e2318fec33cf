//! F1: bytes of any kind on a control connection.

use crate::anything::{Choices, Play};
use crate::chance::Rng;
use crate::endpoints::faults::Faults;
use crate::endpoints::network::noise;
use crate::endpoints::world::{World, ms};
use crate::endpoints::{ALL, quiet_faults, settle, sound};
use crate::hosts::{self, Troubles};
use crate::words::hello;
use transfer::hello::Side;
use transfer::room::Outcome;

impl Choices for Rng {
    fn below(&mut self, end: u64) -> u64 {
        Rng::below(self, end)
    }
}

pub(crate) fn garbage() -> Faults {
    Faults { garbage: 100, truncate: 10, flip: 10, ..quiet_faults() }
}

#[test]
fn f01_control_thread_survives_any_frame() {
    for seed in 0..100 {
        sound(seed, garbage());
    }
    // Noise on an idle pair, thousands of times, and then a request.
    let mut world = World::new(1, 1, quiet_faults(), ALL);
    for _ in 0..3000 {
        let noise = noise(&mut world.rng);
        world.inject(&noise);
        world.run(world.now + ms(10));
    }
    settle(&mut world);
    assert!(world.violations.is_empty(), "{:?}", world.violations);
}

#[test]
fn f01_a_driver_survives_strangers() {
    let mut dropped = 0;
    for seed in 0..20 {
        let hosts = hosts::sound(seed, Troubles { noise: true, ..Troubles::default() });
        assert_eq!((hosts.tally.answered, hosts.tally.failed), (13, 0), "seed {seed}: {:?}", hosts.tally);
        dropped += hosts.tally.malformed;
    }
    assert!(dropped > 100, "{dropped} frames were noise");
}

#[test]
fn f01_an_endpoint_takes_anything() {
    let mut rng = Rng::new(1);
    let (mut frames, mut finished, mut failed) = (0, 0, 0);
    for life in 0..5000 {
        let sides = if life % 2 == 0 { [Side::Decode, Side::Prefill] } else { [Side::Prefill, Side::Decode] };
        let [own, other] = sides.map(|side| hello(side, 0, 0, 1));
        let mut play = Play::new(own, other);
        (0..200).for_each(|_| play.step(&mut rng));
        frames += play.frames;
        for room in play.endpoint.view().values() {
            finished += u32::from(room.outcome == Outcome::Finished);
            failed += u32::from(matches!(room.outcome, Outcome::Failed(_)));
        }
    }
    assert!(frames > 300_000 && finished > 0 && failed > 100, "{frames} frames, {finished} and {failed} rooms");
}
