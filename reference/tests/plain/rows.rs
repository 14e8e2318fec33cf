//! Operations on rows: published values, and a compressor that does not see how its tokens are cut into steps.

use proptest::prelude::*;
use reference::cases::compress::{Gates, Shape};
use reference::formats::{f32_bytes, f32s, s32_bytes, s32s};
use reference::ops::{Compress, Dtype, Hadamard, Norm, NormRope, Ops, Rope};
use reference::plain::{Bytes, ReferenceOps};

/// Values written down with the definition of the transform.
#[test]
fn hadamard_of_a_ramp() {
    let ramp: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let mut out = vec![0; 512];
    let args = Hadamard { dtype: Dtype::F32, x: &f32_bytes(&ramp), out: &mut out, rows: 1, d: 128 };
    ReferenceOps.hadamard(args).unwrap();
    let out = f32s(&out);
    for (i, want) in [(0, 718.42053), (1, -5.656854), (2, -11.313708), (3, 0.0), (4, -22.627417), (64, -362.03867)] {
        approx::assert_relative_eq!(out[i], want, max_relative = 1.2e-7);
    }
}

/// One row of mean square 12.5, whose last two channels turn by a right angle at position 1.
fn row_of_four(norm: Norm<'_, Bytes>, position: i32, inverse: bool) -> Vec<f32> {
    let (table, positions) = (f32_bytes(&[1.0, 0.0, 0.0, 1.0]), s32_bytes(&[position]));
    let mut out = vec![0; 16];
    let args = NormRope {
        dtype: Dtype::F32,
        x: &f32_bytes(&[3.0, -4.0, 3.0, 4.0]),
        norm,
        rope: Some(Rope { table: &table, max_positions: 2, positions: &positions, d_rope: 2, inverse }),
        out: &mut out,
        t: 1,
        h: 1,
        d: 4,
        stride_x: 4,
        stride_out: 4,
        eps: 1e-20,
    };
    ReferenceOps.norm_rope(args).unwrap();
    f32s(&out)
}

#[test]
fn norm_and_rotation_by_hand() {
    assert_eq!(row_of_four(Norm::None, 0, false), [3.0, -4.0, 3.0, 4.0]);
    assert_eq!(row_of_four(Norm::None, 1, false), [3.0, -4.0, -4.0, 3.0]);
    assert_eq!(row_of_four(Norm::None, 1, true), [3.0, -4.0, 4.0, -3.0]);
    for outside in [2, -1, i32::MIN, i32::MAX] {
        assert_eq!(row_of_four(Norm::None, outside, false), [3.0, -4.0, 3.0, 4.0]);
    }
    let root = 12.5f32.sqrt();
    assert_eq!(row_of_four(Norm::Unweighted, 1, false), [3.0, -4.0, -4.0, 3.0].map(|x| x / root));
    let weight = f32_bytes(&[1.0, 2.0, 0.5, -1.0]);
    // The weight belongs to the channel before it turns.
    assert_eq!(row_of_four(Norm::Weighted(&weight), 1, false), [3.0, -8.0, 4.0, 1.5].map(|x| x / root));
}

/// What one sequence has after a step: its rows, in order, and the state.
struct Sequence {
    tokens: Vec<f32>,
    ape: Bytes,
    state: Bytes,
    table: Vec<i32>,
    rows: Vec<Bytes>,
    shape: Shape,
    num_state_pages: u32,
}

impl Sequence {
    /// Feeds the tokens of `from..to`, of which the first is token 0 of `self.tokens`.
    fn step(&mut self, start: u32, from: u32, to: u32) {
        let shape = &self.shape;
        let row = 2 * shape.d as usize * if shape.overlap { 2 } else { 1 };
        let part = &self.tokens[(from - start) as usize * row..(to - start) as usize * row];
        let positions: Vec<i32> = (from..to).map(|p| p as i32).collect();
        let ends: Vec<i32> =
            (from..to).filter(|p| (p + 1).is_multiple_of(shape.ratio)).map(|p| (p - from) as i32).collect();
        let (t, n) = (to - from, ends.len());
        let size = shape.dtype.bytes() as usize * shape.d as usize;
        let mut out = vec![0xa5; n * size];
        let args = Compress {
            dtype: shape.dtype,
            kv_gate: &f32_bytes(part),
            ape: &self.ape,
            state: &mut self.state,
            state_table: &s32_bytes(&self.table),
            positions: &s32_bytes(&positions),
            seq: &s32_bytes(&vec![0; t as usize]),
            cu_seqlens: &s32_bytes(&[0, t as i32]),
            row_tokens: &s32_bytes(&ends),
            out: &mut out,
            t,
            b: 1,
            n: n as u32,
            ratio: shape.ratio,
            d: shape.d,
            overlap: shape.overlap,
            max_state_pages: self.table.len() as u32,
            num_state_pages: self.num_state_pages,
            state_page_tokens: shape.state_page_tokens,
            ring_rows: shape.ring_rows,
            stride_kv_gate: row as u64,
        };
        ReferenceOps.compress(args).unwrap();
        self.rows.extend(out.chunks_exact(size).map(<[u8]>::to_vec));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However a sequence is cut into steps, the rows and the state at the end are the same, bit for bit.
    #[test]
    fn a_compressor_does_not_see_its_cuts(
        seed in any::<u64>(),
        overlap in any::<bool>(),
        start in 0u32..300,
        spare_ring in 0u32..9,
        per_request in any::<bool>(),
        lens in prop::collection::vec(prop_oneof![1u32..9, 120u32..136], 1..5),
    ) {
        let ratio = if overlap { 4 } else { 16 };
        let total: u32 = lens.iter().sum();
        let shape = Shape {
            dtype: Dtype::Bf16,
            ratio,
            overlap,
            ring_rows: ratio * 2 + spare_ring,
            state_page_tokens: if per_request { 1 << 30 } else { 128 },
            gates: Gates::Normal,
            ..Shape::csa(4, &[(start, total)])
        };
        let problem = shape.build(seed);
        let make = || Sequence {
            tokens: f32s(&problem.kv_gate.image()),
            ape: problem.ape.image(),
            state: problem.state.image(),
            table: s32s(&problem.state_table.image()),
            rows: Vec::new(),
            shape: shape.clone(),
            num_state_pages: problem.num_state_pages,
        };
        let mut whole = make();
        whole.step(start, start, start + total);
        prop_assert_eq!(whole.rows.len() as u32, (start + total) / ratio - start / ratio);
        let mut cut = make();
        let mut from = start;
        for len in lens {
            cut.step(start, from, from + len);
            from += len;
        }
        prop_assert!(whole.rows == cut.rows, "rows differ");
        prop_assert!(whole.state == cut.state, "states differ");
    }
}
