//! A token per row: the largest logit, with Gumbel noise where a temperature asks for it.

use reference::ops::Sample;

use super::HostBuffer;
use super::numbers::f32_at;
use super::rows::for_rows;

/// Temperatures up to here are none.
const COLD: f32 = 1e-5;
/// Above the largest noise, -ln(-ln(1 - 2^-25)) = 17.33.
const MOST_NOISE: f32 = 17.5;

pub(super) fn run(args: Sample<'_, HostBuffer>) {
    let vocab = args.vocab as usize;
    let (logits, temperature, seeds) = (&args.logits.bytes, &args.temperature.bytes, &args.seeds.bytes);
    for_rows(&mut args.out.bytes, 4, args.n as usize, vocab, |row, out| {
        let line = &logits[4 * vocab * row..4 * vocab * (row + 1)];
        let key = [f32_at(seeds, 2 * row).to_bits(), f32_at(seeds, 2 * row + 1).to_bits()];
        let chosen = pick(line, f32_at(temperature, row), key);
        out.copy_from_slice(&(chosen as u32).to_le_bytes());
    });
}

fn pick(line: &[u8], temperature: f32, seed: [u32; 2]) -> usize {
    let logits = line.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).enumerate();
    let (mut best, mut most) = (0, f32::NEG_INFINITY);
    let noisy = temperature > COLD;
    let mut drawn = (usize::MAX, [0; 4]);
    for (v, logit) in logits {
        let key = if noisy {
            let quotient = logit / temperature;
            // Most entries are too small for any noise to lift them.
            if quotient.is_nan() || quotient + MOST_NOISE <= most {
                continue;
            }
            if drawn.0 != v / 4 {
                drawn = (v / 4, philox(seed, v as u32 / 4));
            }
            quotient + gumbel(drawn.1[v % 4])
        } else {
            logit
        };
        if key > most {
            (best, most) = (v, key);
        }
    }
    best
}

/// Philox4x32-10 of the counter (`block`, 0, 0, 0).
fn philox(mut key: [u32; 2], block: u32) -> [u32; 4] {
    let mut c = [block, 0, 0, 0];
    for _ in 0..10 {
        let low = u64::from(c[0]) * 0xd251_1f53;
        let high = u64::from(c[2]) * 0xcd9e_8d57;
        c = [(high >> 32) as u32 ^ c[1] ^ key[0], high as u32, (low >> 32) as u32 ^ c[3] ^ key[1], low as u32];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    c
}

/// `-ln(-ln u)` of `u = (2 r + 1) 2^-25`, `r` the upper 24 bits. Above a half `1 - u` is exact where `u` would be rounded.
fn gumbel(word: u32) -> f32 {
    const STEP: f32 = 1.0 / (1 << 25) as f32;
    let odd = 2 * (word >> 8) + 1;
    let surprise =
        if odd < 1 << 24 { -(odd as f32 * STEP).ln() } else { -(-(((1 << 25) - odd) as f32 * STEP)).ln_1p() };
    -surprise.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::plain::streams as reference;

    #[test]
    fn noise_agrees_with_the_reference_at_both_ends() {
        let words = [0, 255, 256, 1 << 20, 0x7fff_ffff, 0x8000_0000, u32::MAX - 256, u32::MAX];
        let many = (0..100_000u32).map(|i| i.wrapping_mul(2_654_435_761));
        for word in words.into_iter().chain(many) {
            let (here, there) = (f64::from(gumbel(word)), reference::gumbel(word));
            assert!((here - there).abs() < 1e-5, "{word:#x}: {here} and {there}");
            assert!(here < f64::from(MOST_NOISE));
        }
    }

    #[test]
    fn words_agree_with_the_reference() {
        for block in [0, 1, 32_319, u32::MAX] {
            let key = [0xa409_3822, 0x299f_31d0];
            assert_eq!(philox(key, block), reference::philox(key, [block, 0, 0, 0]));
        }
    }
}
