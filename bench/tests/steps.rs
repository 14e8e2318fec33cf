//! The engine's attention step gives the same on the reference, the host and the emulated kernels.

use bench::parity::emulated_ops;
use bench::steps::{Batch, Output};
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use kernels::Variant;
use reference::plain::ReferenceOps;

fn bf16(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Picks are equal; outputs differ by the two bf16 roundings of values of order 1 (2.5 x 2^-8, as in the tolerance table).
fn agree(device: &str, got: &Output, expected: &Output) {
    assert_eq!(got.topk_slots, expected.topk_slots, "{device}: other rows were picked");
    let worst = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let out = worst(bf16(&got.out), bf16(&expected.out));
    assert!(out < 2.5 / 256.0, "{device}: out is off by {out}");
    let lse = worst(f32s(&got.lse), f32s(&expected.lse));
    assert!(lse < 1e-4, "{device}: lse is off by {lse}");
}

#[test]
fn the_attention_step_is_the_same_everywhere() {
    let batch = Batch::new(2, 2_400, 3);
    let expected = batch.run(&ReferenceOps).expect("the reference runs everything");
    assert!(expected.topk_slots.chunks_exact(4).all(|slot| slot != [0xff; 4]), "600 rows are more than 512");
    agree("host", &batch.run(&HostOps).expect("host"), &expected);
    agree("portable", &batch.run(&emulated_ops(Variant::Sm89, 1)).expect("no finding"), &expected);
    // Best variant of every operation: both kinds of module in one step.
    let best = KernelOps::new(Emulated::new(EmulatedConfig::checked(2)));
    agree("best variants", &batch.run(&best).expect("no finding"), &expected);
}

/// The token's own window row and the compressed row that it completes are seen in the same step.
#[test]
fn the_new_rows_are_seen_at_once() {
    // 512 compressed rows: all are picked, the new one among them.
    let batch = Batch::new(1, 2_048, 4);
    let got = batch.run(&HostOps).expect("host");
    let slots: Vec<i32> =
        got.topk_slots.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(slots, (0..512).collect::<Vec<i32>>());
    agree("host", &got, &batch.run(&ReferenceOps).expect("the reference runs everything"));
}
