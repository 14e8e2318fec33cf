//! Streams, experts and tokens by hand, and by the check values of the model's description.

use proptest::prelude::*;
use reference::plain::streams::*;

fn near(got: f64, want: f64, digits: f64) {
    assert!((got - want).abs() <= digits, "{got}, expected {want}");
}

/// The printed digits are those of an f32 computation.
#[test]
fn sinkhorn_of_the_description() {
    let m = sinkhorn(std::array::from_fn(|i| (0.3 * i as f64).sin()), 1e-6, 20);
    for (i, want) in [0.14148550, 0.20550939, 0.28464639, 0.36835781].into_iter().enumerate() {
        near(m[i], want, 6e-8);
    }
    for (i, want) in [0.30420539, 0.25729784, 0.22657137, 0.21192442].into_iter().enumerate() {
        near(m[12 + i], want, 6e-8);
    }
    for i in 0..4 {
        near((0..4).map(|k| m[4 * i + k]).sum(), 0.99999905, 6e-8);
        near((0..4).map(|j| m[4 * j + i]).sum(), 0.99999905, 6e-8);
    }
}

#[test]
fn sinkhorn_takes_one_iteration_for_the_softmax_and_a_division_by_columns() {
    // Rows e^0 : e^ln 3 = 1/4 : 3/4 of the first two columns; the others are e^-1000 = 0.
    let mut logits = [-1000.0; 16];
    for j in 0..4 {
        logits[4 * j] = 0.0;
        logits[4 * j + 1] = 3f64.ln();
    }
    let m = sinkhorn(logits, 0.0, 1);
    for j in 0..4 {
        near(m[4 * j], 0.25, 1e-15);
        near(m[4 * j + 1], 0.25, 1e-15);
    }
    assert!(m[2].is_nan(), "an empty column without an epsilon is 0 / 0");
}

#[test]
fn affinities_of_the_description() {
    let table = [
        (-20.0, 4.53999e-5, 5e-11),
        (-5.0, 0.0819472, 5e-8),
        (-1.0, 0.5596979, 5e-8),
        (0.0, 0.8325546, 5e-8),
        (1.0, 1.1459763, 5e-8),
        (5.0, 2.2375691, 5e-8),
        (25.0, 5.0, 0.0),
    ];
    for (z, want, digits) in table {
        near(affinity(z), want, digits);
    }
}

#[test]
fn gated_values_of_the_description() {
    for (a, b, want, digits) in
        [(12.0, 3.0, 29.998638, 5e-7), (-12.0, 11.0, -7.373010e-4, 5e-11), (1.0, -20.0, -7.3105860, 3e-7)]
    {
        near(gated(a, b, 10.0), want, digits);
    }
    assert!(gated(f64::NAN, 1.0, 10.0).is_nan());
    assert!(gated(1.0, f64::NAN, 10.0).is_nan());
    assert!(gated(f64::NEG_INFINITY, 1.0, 10.0).is_nan());
    assert_eq!(gated(f64::INFINITY, f64::NEG_INFINITY, 2.0), -2.0 * gated(2.0, 1.0, f64::INFINITY));
}

#[test]
fn picks_by_hand() {
    const NEG: f64 = f64::NEG_INFINITY;
    let table: [(&[f64], usize, &[usize]); 6] = [
        (&[1.0, 3.0, 2.0], 2, &[1, 2]),
        (&[3.0, 1.0, 3.0, 3.0], 3, &[0, 2, 3]),
        (&[f64::NAN, 1.0, f64::NAN], 2, &[1, 0]),
        (&[NEG, f64::NAN, 5.0, NEG], 4, &[2, 0, 1, 3]),
        (&[-0.0, 0.0], 2, &[0, 1]),
        (&[7.0], 1, &[0]),
    ];
    for (keys, topk, want) in table {
        assert_eq!(pick(keys, topk), want, "{keys:?}");
    }
}

/// Published vectors of the generator (Random123, `kat_vectors`).
#[test]
fn philox_of_the_published_vectors() {
    let table = [
        ([0; 2], [0; 4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 2], [u32::MAX; 4], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0xa409_3822, 0x299f_31d0],
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (key, counter, want) in table {
        assert_eq!(philox(key, counter), want);
    }
}

#[test]
fn noise_has_the_mean_and_the_spread_of_gumbel() {
    let words = (0..25_000).flat_map(|block| philox([1, 2], [block, 0, 0, 0]));
    let noise: Vec<f64> = words.map(gumbel).collect();
    let mean = noise.iter().sum::<f64>() / noise.len() as f64;
    let variance = noise.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / noise.len() as f64;
    near(mean, 0.577_215_66, 0.02);
    near(variance, std::f64::consts::PI.powi(2) / 6.0, 0.04);
    // The ends: u = 2^-25 and 1 - 2^-25.
    near(gumbel(0), -(25.0 * 2f64.ln()).ln(), 1e-12);
    near(gumbel(u32::MAX), 25.0 * 2f64.ln(), 1e-7);
}

/// Tokens come up in proportion to `e^(logit / temperature)`.
#[test]
fn samples_follow_the_softmax() {
    let logits = [0.0, 1.0, 2.0, -1.0, 0.5, 0.0, 0.0];
    let temperature = 0.8;
    let weights: Vec<f64> = logits.iter().map(|&l| f64::from(l / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let draws = 20_000;
    let mut counts = [0.0; 7];
    for seed in 0..draws {
        counts[largest(&sample_keys(&logits, temperature, [seed, 99]))] += 1.0;
    }
    for (count, weight) in counts.iter().zip(weights) {
        let p = weight / sum;
        near(count / f64::from(draws), p, 5.0 * (p * (1.0 - p) / f64::from(draws)).sqrt());
    }
}

#[test]
fn cold_rows_take_the_largest_logit() {
    let nan = f32::NAN;
    for temperature in [0.0, 1e-5, -3.0, nan] {
        let best = |logits: &[f32]| largest(&sample_keys(logits, temperature, [5, 6]));
        assert_eq!(best(&[1.0, 3.0, 3.0, nan]), 1);
        assert_eq!(best(&[nan, f32::NEG_INFINITY]), 0);
        assert_eq!(best(&[f32::MIN, f32::INFINITY, f32::INFINITY]), 1);
    }
}

proptest! {
    /// Sums of rows and columns of any matrix end near 1, whatever the logits are.
    #[test]
    fn sinkhorn_balances(logits in prop::array::uniform16(-30.0..30.0f64)) {
        let m = sinkhorn(logits, 1e-6, 20);
        for k in 0..4 {
            let column: f64 = (0..4).map(|j| m[4 * j + k]).sum();
            prop_assert!((column - 1.0).abs() < 1e-3, "column {k}: {column}");
        }
        prop_assert!(m.iter().all(|&x| x > 0.0 && x <= 1.0));
    }
}
