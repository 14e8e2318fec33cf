//! A small deterministic generator for test data: the same seed gives the same data everywhere.

/// splitmix64: a counter and a mixing function, so that nearby seeds give unrelated streams.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A stream for `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// A stream for `seed` and a text, so that cases and tensors of the same seed do not share their data.
    pub fn named(seed: u64, name: &str) -> Rng {
        // FNV-1a
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Rng::new(seed ^ hash)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; `n` must not be 0. The bias, at most `n / 2^64`, does not matter here.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Symmetric with heavy tails: a normal times a log-normal. About one value in a thousand exceeds 40 times the
    /// median, as index logits of real prompts do.
    pub fn heavy(&mut self) -> f64 {
        let scale = (1.5 * self.normal()).exp();
        self.normal() * scale
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }

    /// Brings `items` into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_of_splitmix64() {
        // Published test vector of the algorithm for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn moments_and_tails() {
        let mut rng = Rng::new(1);
        let n = 100_000;
        let normal: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let mean = normal.iter().sum::<f64>() / n as f64;
        let variance = normal.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.02, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.02, "variance {variance}");
        let mut heavy: Vec<f64> = (0..n).map(|_| rng.heavy().abs()).collect();
        heavy.sort_by(f64::total_cmp);
        let ratio = heavy[n * 999 / 1000] / heavy[n / 2];
        assert!(ratio > 40.0, "the 999th thousandth is {ratio} times the median");
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut rng = Rng::new(2);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[rng.below(7) as usize] = true;
        }
        assert!(seen.iter().all(|&s| s));
    }
}
