//! The only source of chance, and how many runs there are.

use std::time::Duration;

/// xorshift64*: the same run on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give neighbouring runs; zero is the one state to avoid.
        let mixed = (seed.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = Self((mixed ^ mixed >> 29) | 1);
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    /// True in `permille` of 1,000 cases.
    pub(crate) fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.below(1000) < u64::from(permille)
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(low * 1000 + self.below((high - low) * 1000 + 1))
    }
}

/// Seeds of a test: as many as usual, or as the environment says.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let first = number("SIMULATION_FIRST", 0);
    first..first + number("SIMULATION_SEEDS", usual)
}
