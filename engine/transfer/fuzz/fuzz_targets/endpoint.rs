//! An endpoint that is told anything: no panic, outcomes and proofs stay, nothing grows beyond its bound. The bytes are the
//! choices of `tests/failure_modes/anything.rs`.
#![no_main]

#[path = "../../tests/failure_modes/anything.rs"]
mod anything;
#[path = "../../tests/failure_modes/words.rs"]
mod words;

use anything::{Choices, Play};
use libfuzzer_sys::fuzz_target;
use transfer::hello::Side;
use words::hello;

/// Choices out of bytes; zeros behind the last.
struct Bytes<'a>(&'a [u8]);

impl Choices for Bytes<'_> {
    fn below(&mut self, end: u64) -> u64 {
        let mut number = 0;
        // Most choices are small and take a byte.
        for _ in 0..if end > 256 { 2 } else { 1 } {
            let Some((&first, rest)) = self.0.split_first() else { return 0 };
            (number, self.0) = (number << 8 | u64::from(first), rest);
        }
        number % end
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Bytes(data);
    let sides = if choices.below(2) == 0 { [Side::Decode, Side::Prefill] } else { [Side::Prefill, Side::Decode] };
    let [own, other] = sides.map(|side| hello(side, 0, 0, 1));
    let mut play = Play::new(own, other);
    while !choices.0.is_empty() {
        play.step(&mut choices);
    }
});
