//! The edges of the plain operations, by hand: what golden values do not reach.

#[path = "plain/products.rs"]
mod products;
#[path = "plain/rows.rs"]
mod rows;
#[path = "plain/streams.rs"]
mod streams;

use ndarray::{Array1, Array2, ArrayView1};
use proptest::prelude::*;
use reference::formats::{bf16s, f32_bytes, f32s};
use reference::layout::{D_INDEX, D_KV, INDEX_HEADS};
use reference::ops::{Ops, SplitCombine};
use reference::plain::*;
use reference::rng::Rng;

const NEG: f32 = f32::NEG_INFINITY;
const NAN: f32 = f32::NAN;

#[test]
fn selection_by_hand() {
    let table: [(&[f32], usize, &[usize]); 12] = [
        (&[1.0, 3.0, 2.0], 2, &[1, 2]),
        (&[3.0, 1.0, 3.0, 3.0], 2, &[0, 2]),
        (&[0.0, -0.0, 0.0, -0.0], 3, &[0, 1, 2]),
        (&[-0.0, 0.0, 5.0], 2, &[0, 2]),
        (&[NAN, 1.0, NAN, 0.5], 3, &[1, 3]),
        (&[NAN; 4], 2, &[]),
        (&[NEG, 1.0, NEG], 2, &[1]),
        (&[f32::INFINITY, f32::MAX, f32::INFINITY], 2, &[0, 2]),
        (&[-f32::from_bits(1), -0.0, f32::from_bits(1)], 2, &[1, 2]),
        // up to topk values: all, whatever they are
        (&[NAN, NEG], 2, &[0, 1]),
        (&[], 4, &[]),
        (&[7.0], 1, &[0]),
    ];
    for (values, topk, want) in table {
        assert_eq!(select(values, topk), want, "{values:?}, {topk}");
    }
}

proptest! {
    /// Chosen entries are distinct, ascending, as many as can be, and none left out is preferred to one chosen.
    #[test]
    fn selection_by_definition(seed in any::<u64>(), n in 0usize..200, topk in 1usize..80) {
        let mut rng = Rng::new(seed);
        let values: Vec<f32> = (0..n)
            .map(|_| [NAN, NEG, 0.0, -0.0, 1.0, rng.normal() as f32][rng.below(6) as usize])
            .collect();
        let chosen = select(&values, topk);
        prop_assert!(chosen.windows(2).all(|w| w[0] < w[1]));
        if n > topk {
            let valid = values.iter().filter(|v| !v.is_nan() && **v != NEG).count();
            prop_assert_eq!(chosen.len(), topk.min(valid));
            for &c in &chosen {
                prop_assert!(values[c] > NEG);
                for o in (0..n).filter(|o| !chosen.contains(o) && !values[*o].is_nan()) {
                    prop_assert!(values[c] > values[o] || (values[c] == values[o] && c < o), "{c} chosen, {o} not");
                }
            }
        }
    }
}

fn row(values: &[(usize, f64)]) -> Array1<f64> {
    let mut row = Array1::zeros(D_KV);
    values.iter().for_each(|&(c, v)| row[c] = v);
    row
}

fn values(out: &[Exact]) -> Vec<f64> {
    out[..2].iter().map(|e| e.value).collect()
}

#[test]
fn attention_by_hand() {
    let q = row(&[(0, 1.0)]);
    let (a, b) = (row(&[(0, 0.0), (1, 4.0)]), row(&[(0, 3f64.ln())]));
    // scores 0 and ln 3: weights 1/4 and 3/4
    let (out, lse) = attend(q.view(), &[a.clone(), b.clone()], 1.0, None);
    approx::assert_relative_eq!(out[0].value, 0.75 * 3f64.ln(), max_relative = 1e-15);
    approx::assert_relative_eq!(out[1].value, 1.0, max_relative = 1e-15);
    approx::assert_relative_eq!(lse.value, 4f64.ln(), max_relative = 1e-15);
    // a sink as large as all rows together halves the output and leaves the lse
    let (halved, same) = attend(q.view(), &[a.clone(), b.clone()], 1.0, Some(4f64.ln()));
    approx::assert_relative_eq!(halved[1].value, 0.5, max_relative = 1e-15);
    assert_eq!(same, lse);
    // an entry that stands there twice counts twice: weights 1/7, 3/7, 3/7
    let (twice, _) = attend(q.view(), &[a.clone(), b.clone(), b.clone()], 1.0, None);
    approx::assert_relative_eq!(twice[1].value, 4.0 / 7.0, max_relative = 1e-15);
    // sinks at the ends
    assert_eq!(attend(q.view(), &[a.clone(), b.clone()], 1.0, Some(f64::NEG_INFINITY)), (out, lse));
    let (none, same) = attend(q.view(), &[a, b], 1.0, Some(f64::INFINITY));
    assert_eq!((values(&none), same), (vec![0.0, 0.0], lse));
}

#[test]
fn attention_over_nothing() {
    let q = row(&[(0, 1.0)]);
    for sink in [None, Some(0.5), Some(f64::INFINITY), Some(f64::NEG_INFINITY)] {
        let (out, lse) = attend(q.view(), &[], 1.0, sink);
        assert!(out.iter().all(|e| e.value == 0.0));
        assert_eq!(lse.value, f64::NEG_INFINITY);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let q = row(&[(0, 1e4)]);
    let rows = [row(&[(0, 1.0), (1, 1.0)]), row(&[(0, 0.5), (1, -1.0)])];
    let (out, lse) = attend(q.view(), &rows, 1.0, Some(1e5));
    assert_eq!((values(&out), lse.value), (vec![0.0, 0.0], 1e4));
    let (out, _) = attend(q.view(), &rows, 1.0, Some(-1e5));
    assert_eq!(values(&out), [1.0, 1.0]);
}

#[test]
fn index_scores_by_hand() {
    let mut q = Array2::zeros((INDEX_HEADS, D_INDEX));
    let mut w = Array1::zeros(INDEX_HEADS);
    (q[[0, 0]], w[0]) = (2.0, 0.5);
    (q[[1, 0]], w[1]) = (-1.0, 10.0);
    (q[[2, 1]], w[2]) = (3.0, -1.0);
    let key = |a: f64, b: f64| {
        let mut key = Array1::zeros(D_INDEX);
        (key[0], key[1]) = (a, b);
        key
    };
    let score = |key: Array1<f64>, scale| index_score(q.view(), w.view(), scale, key.view());
    // 0.5 * relu(2) + 10 * relu(-1) - relu(6)
    assert_eq!(score(key(1.0, 2.0), 1.0).value, -5.0);
    assert_eq!(score(key(1.0, 2.0), 4.0).value, -20.0);
    assert_eq!(score(key(-1.0, -1.0), 1.0).value, 10.0);
    let nothing = index_score(q.view(), ArrayView1::from(&[1.0; 64]), 1.0, key(0.0, -1.0).view());
    assert_eq!(nothing, Exact { value: 0.0, magnitude: 0.0 });
    assert!(score(key(f64::NAN, 0.0), 1.0).value.is_nan());
    assert!(score(key(0.0, 0.0), f64::NAN).value.is_nan());
}

/// A list that is cut in pieces, attended piece by piece and merged, gives what it gives in one piece.
#[test]
fn merged_splits_equal_one_piece() {
    let mut rng = Rng::new(4);
    let mut draw = |scale: f64| Array1::from_shape_fn(D_KV, |_| scale * rng.normal());
    let (q, rows): (Vec<_>, Vec<_>) = ((0..8).map(|_| draw(0.3)).collect(), (0..10).map(|_| draw(1.0)).collect());
    let sink: Vec<f32> = (0..8).map(|h| h as f32 / 2.0).collect();
    let pieces = [&rows[..3], &rows[3..3], &rows[3..4], &rows[4..]];
    let (mut o_partial, mut lse2_partial) = (Vec::new(), Vec::new());
    for piece in pieces {
        for q in &q {
            let (out, lse) = attend(q.view(), piece, 0.5, None);
            let nan_if_empty = if piece.is_empty() { f32::NAN } else { 0.0 };
            o_partial.extend(out.iter().map(|e| e.value as f32 + nan_if_empty));
            lse2_partial.push((lse.value * std::f64::consts::LOG2_E) as f32);
        }
    }
    let (mut out, mut lse) = (vec![0; 2 * 8 * D_KV], vec![0; 4 * 8]);
    ReferenceOps
        .split_combine(SplitCombine {
            o_partial: &f32_bytes(&o_partial),
            lse2_partial: &f32_bytes(&lse2_partial),
            attn_sink: Some(&f32_bytes(&sink)),
            out: &mut out,
            lse: &mut lse,
            t: 1,
            h: 8,
            num_splits: 4,
            stride_out: [8 * D_KV as u64, D_KV as u64],
        })
        .unwrap();
    let (out, lse) = (bf16s(&out), f32s(&lse));
    for (h, q) in q.iter().enumerate() {
        let (want, want_lse) = attend(q.view(), &rows, 0.5, Some(f64::from(sink[h])));
        approx::assert_relative_eq!(f64::from(lse[h]), want_lse.value, max_relative = 1e-6);
        for (c, want) in want.iter().enumerate() {
            let got = f64::from(out[h * D_KV + c]);
            assert!((got - want.value).abs() <= want.value.abs() / 250.0 + 1e-6, "{got} and {}", want.value);
        }
    }
}

#[test]
fn copies_that_leave_a_buffer_are_refused() {
    let mut buffer = ReferenceOps.alloc(10, "x").unwrap();
    assert_eq!(buffer, [0xff; 10], "fresh memory is NaN");
    let error = ReferenceOps.upload(&mut buffer, 8, &[0; 3]).unwrap_err().to_string();
    assert_eq!(error, "reference: a copy of 3 bytes at offset 8 leaves a buffer of 10 bytes");
    assert!(ReferenceOps.download(&buffer, u64::MAX, &mut [0; 2]).is_err());
}
