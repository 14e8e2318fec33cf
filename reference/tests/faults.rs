//! The suite can fail: an implementation with one fault is caught by a quick case, for every fault that others have
//! shipped and that can be put in front of, or behind, a correct implementation.

#[path = "faults/attention.rs"]
mod attention;
#[path = "faults/index.rs"]
mod index;
#[path = "faults/products.rs"]
mod products;
#[path = "faults/rows.rs"]
mod rows;
#[path = "faults/streams.rs"]
mod streams;
#[path = "faults/write.rs"]
mod write;

use reference::cases::{self, Size};
use reference::formats::{f32_bytes, f32s, s32_bytes, s32s};
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};
use reference::problem::Fill;
use reference::suite;

use attention::{sparse_mla_decode, sparse_mla_prefill, split_combine};
use index::{index_logits_decode, index_logits_prefill, topk_select};
use products::{linear, moe_experts};
use rows::{compress, hadamard, index_q_quantise, norm_rope};
use streams::{embed, gather_rows, hc_mix, hc_post, router, sample, swiglu};
use write::{index_k_write, kv_write};

/// Every operation with the names of its faults.
fn faults() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let tables: [&[(&str, &[&str])]; 6] =
        [&index::FAULTS, &attention::FAULTS, &write::FAULTS, &streams::FAULTS, &rows::FAULTS, &products::FAULTS];
    tables.into_iter().flatten().copied()
}

/// The reference with one fault, chosen by name.
struct Faulty(&'static str);

/// Rows of f32 rounded to bf16, which no format may do but bf16.
fn rounded(dtype: Dtype, rows: &Bytes) -> Bytes {
    let round = |x| reference::formats::bf16::from_f32(x).to_f32();
    if dtype == Dtype::F32 { map_f32(rows, round) } else { rows.clone() }
}

fn map_s32(buffer: &Bytes, change: impl Fn(i32) -> i32) -> Bytes {
    s32_bytes(&s32s(buffer).into_iter().map(change).collect::<Vec<_>>())
}

fn map_f32(buffer: &Bytes, change: impl Fn(f32) -> f32) -> Bytes {
    f32_bytes(&f32s(buffer).into_iter().map(change).collect::<Vec<_>>())
}

/// Copies pages from one stride to another.
fn restride(cache: &Bytes, pages: &Pages, stride: u64) -> Bytes {
    let mut moved = vec![0xff; (u64::from(pages.num_pages) * stride.max(pages.page_stride_bytes)) as usize];
    moved[..cache.len()].copy_from_slice(cache);
    moved
}

/// The function of this name in one of the modules runs the reference with a fault.
macro_rules! faulty {
    ($($op:ident($operands:ident),)*) => {$(
        fn $op(&self, args: reference::ops::$operands<'_, Bytes>) -> Result<(), OpsError> {
            $op(self.0, args)
        }
    )*};
}

impl Ops for Faulty {
    type Buffer = Bytes;
    type Graph = std::convert::Infallible;

    fn name(&self) -> String {
        format!("reference with fault: {}", self.0)
    }
    fn alloc(&self, bytes: u64, label: &str) -> Result<Bytes, OpsError> {
        ReferenceOps.alloc(bytes, label)
    }
    fn upload(&self, dst: &mut Bytes, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        ReferenceOps.upload(dst, offset, bytes)
    }
    fn download(&self, src: &Bytes, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        ReferenceOps.download(src, offset, bytes)
    }
    fn len_bytes(&self, buffer: &Bytes) -> u64 {
        ReferenceOps.len_bytes(buffer)
    }

    reference::for_each_operation!(faulty);
}

#[test]
fn every_fault_is_caught_by_a_quick_case() {
    let cases = cases::all(Size::Quick);
    let prepared: Vec<_> = cases.iter().map(|case| case.prepare(1)).collect();
    let mut missed = Vec::new();
    for (op, faults) in faults() {
        for fault in faults {
            let mut caught = prepared.iter().filter(|p| p.case.op == op);
            if !caught.any(|p| suite::run_prepared(&Faulty(fault), p, Fill::Poison).fails()) {
                missed.push(format!("{op}: {fault}"));
            }
        }
    }
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}

#[test]
fn without_a_fault_the_wrapper_passes() {
    for case in cases::all(Size::Quick) {
        let report = suite::run_case(&Faulty("none"), &case, 1, Fill::Poison);
        assert!(report.passes(), "{report}");
    }
}
