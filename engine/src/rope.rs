//! Rotary frequencies and the table of cosines and sines that queries, keys and outputs share.

use std::f64::consts::{LN_2, PI};

use crate::config::ModelConfig;

/// Frequencies of window-only layers and the draft layer: `theta^(-2i / d)`.
pub fn window_frequencies(config: &ModelConfig) -> Vec<f32> {
    plain(config.rope_theta, config.rope_dim).map(|f| f as f32).collect()
}

/// Frequencies of layers with a compressor, for everything in the layer: base `compress_rope_theta`, stretched (YaRN) without a
/// factor on cosines and sines.
///
/// `dimat(r) = d ln(original / (2 pi r)) / (2 ln theta)`; between `floor(dimat(beta_fast))` and `ceil(dimat(beta_slow))` a
/// ramp leads from the plain frequency to the one divided by `factor`.
pub fn compress_frequencies(config: &ModelConfig) -> Vec<f32> {
    let (theta, d, yarn) = (config.compress_rope_theta, config.rope_dim, &config.yarn);
    let dim_at = |rotations: f64| {
        f64::from(d) * (f64::from(yarn.original_positions) / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
    };
    let low = dim_at(yarn.beta_fast).floor().max(0.0);
    let high = dim_at(yarn.beta_slow).ceil().min(f64::from(d) - 1.0);
    // Equal ends would divide by zero; a thousandth of a channel keeps the step a step.
    let width = if low == high { 0.001 } else { high - low };
    let stretch = |(i, f): (usize, f64)| {
        let ramp = ((i as f64 - low) / width).clamp(0.0, 1.0);
        (f * (1.0 - ramp) + f / yarn.factor * ramp) as f32
    };
    plain(theta, d).enumerate().map(stretch).collect()
}

fn plain(theta: f64, d: u32) -> impl Iterator<Item = f64> {
    (0..d / 2).map(move |i| (-(2.0 * f64::from(i) / f64::from(d)) * theta.log2() * LN_2).exp())
}

/// `[positions, d / 2, 2]`: cosine and sine of `position * frequency`, the product rounded to f32 as everywhere else in the
/// field: a more exact angle would be another model.
pub fn table(frequencies: &[f32], positions: u32) -> Vec<f32> {
    let mut table = Vec::with_capacity(positions as usize * frequencies.len() * 2);
    for position in 0..positions {
        for &frequency in frequencies {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            table.extend([cos as f32, sin as f32]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f32, expected: f64) {
        assert!((f64::from(got) - expected).abs() <= 1e-7 * expected, "{got} is not {expected}");
    }

    /// Published check values of V4: theta 10,000; theta 160,000 stretched 16-fold from 65,536 positions.
    #[test]
    fn frequencies() {
        let config = ModelConfig::v4_flash();
        let (window, compress) = (window_frequencies(&config), compress_frequencies(&config));
        let expected = [
            (0, 1.0, 1.0),
            (1, 7.498942093e-1, 6.876560219e-1),
            (5, 2.371373706e-1, 1.537645610e-1),
            (10, 5.623413252e-2, 2.364354023e-2),
            (15, 1.333521432e-2, 3.635538584e-3),
            (16, 1.000000000e-2, 2.265625000e-3),
            (18, 5.623413252e-3, 8.496897268e-4),
            (20, 3.162277660e-3, 2.969777783e-4),
            (22, 1.778279410e-3, 9.086784295e-5),
            (24, 1.000000000e-3, 1.953125000e-5),
            (25, 7.498942093e-4, 5.372312671e-6),
            (31, 1.333521432e-4, 5.680529037e-7),
        ];
        assert_eq!([window.len(), compress.len()], [32, 32]);
        for (i, w, c) in expected {
            close(window[i], w);
            close(compress[i], c);
        }
    }

    #[test]
    fn table_is_cosine_then_sine_of_the_rounded_angle() {
        let table = table(&[1.0, 0.3], 4);
        let angle = 3.0_f32 * 0.3;
        assert_eq!(table.len(), 16);
        assert_eq!(table[14..], [f64::from(angle).cos() as f32, f64::from(angle).sin() as f32]);
        assert_eq!(table[..4], [1.0, 0.0, 1.0, 0.0]);
    }
}
