//! The operations on the host: f32 sums, threads by rayon, loops that the compiler turns into vector instructions.
//!
//! Same contract and same checks as a device; the arithmetic and the byte layouts are written here a second time, without
//! the reference that judges them. Nothing is ever random: a sum has one order, whatever the number of threads.

mod compress;
mod dots;
mod elements;
mod embed;
mod gather_rows;
mod hadamard;
mod hc_mix;
mod hc_post;
mod index_k_write;
mod index_logits;
mod index_logits_decode;
mod index_logits_prefill;
mod index_q_quantise;
mod kv_write;
mod linear;
mod moe_experts;
mod norm_rope;
mod numbers;
mod products;
mod router;
mod rows;
mod sample;
mod simd;
mod sparse_mla_decode;
mod split_combine;
mod swiglu;
mod tiles;
mod topk_select;

use reference::ops::{
    Compress, Embed, GatherRows, Hadamard, HcMix, HcPost, IndexKWrite, IndexLogitsDecode, IndexLogitsPrefill,
    IndexQQuantise, KvWrite, Linear, MoeExperts, NormRope, Ops, OpsError, Pages, Router, Sample, SparseMlaDecode,
    SparseMlaPrefill, SplitCombine, Swiglu, TopkSelect,
};

/// The operations in plain Rust, on the widest vectors of the machine; `SM120_HOST_VECTORS=portable`, or `avx2`, narrows them.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOps;

/// Memory of [`HostOps`].
#[derive(Debug, Clone)]
pub struct HostBuffer {
    bytes: Vec<u8>,
    label: String,
}

const DEVICE: &str = "host";

fn len(buffer: &HostBuffer) -> u64 {
    buffer.bytes.len() as u64
}

fn range(buffer: &HostBuffer, offset: u64, bytes: usize) -> Result<std::ops::Range<usize>, OpsError> {
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= len(buffer) => Ok(offset as usize..end as usize),
        _ => Err(OpsError::Device {
            device: DEVICE.into(),
            message: format!(
                "copy of {bytes} bytes at offset {offset} leaves `{}`, which has {} bytes",
                buffer.label,
                len(buffer)
            ),
        }),
    }
}

/// Page and row of a slot, if it lies in the pool.
fn place(pages: &Pages, slot: i32) -> Option<(usize, usize)> {
    let size = pages.page_size as usize;
    let slot = usize::try_from(slot).ok()?;
    (slot / size < pages.num_pages as usize).then_some((slot / size, slot % size))
}

/// First byte of a page.
fn page_start(pages: &Pages, page: usize) -> usize {
    page * pages.page_stride_bytes as usize
}

impl Ops for HostOps {
    type Buffer = HostBuffer;

    fn name(&self) -> String {
        DEVICE.into()
    }

    fn alloc(&self, bytes: u64, label: &str) -> Result<HostBuffer, OpsError> {
        let refused = |why: String| OpsError::Device { device: DEVICE.into(), message: why };
        let size = usize::try_from(bytes).ok().filter(|&size| isize::try_from(size).is_ok());
        let size = size.ok_or_else(|| refused(format!("`{label}`: {bytes} bytes do not fit the address space")))?;
        Ok(HostBuffer { bytes: vec![0; size], label: label.into() })
    }

    fn upload(&self, dst: &mut HostBuffer, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        let range = range(dst, offset, bytes.len())?;
        dst.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn download(&self, src: &HostBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        let range = range(src, offset, bytes.len())?;
        bytes.copy_from_slice(&src.bytes[range]);
        Ok(())
    }

    fn len_bytes(&self, buffer: &HostBuffer) -> u64 {
        len(buffer)
    }

    fn index_logits_decode(&self, args: IndexLogitsDecode<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        index_logits_decode::run(args);
        Ok(())
    }

    fn index_logits_prefill(&self, args: IndexLogitsPrefill<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        index_logits_prefill::run(args);
        Ok(())
    }

    fn topk_select(&self, args: TopkSelect<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        topk_select::run(args);
        Ok(())
    }

    /// Splits are for devices that must fill many processors: here they are not made.
    fn sparse_mla_decode(&self, args: SparseMlaDecode<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        sparse_mla_decode::run(args, None);
        Ok(())
    }

    fn sparse_mla_prefill(&self, args: SparseMlaPrefill<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        sparse_mla_decode::run(args.attention, args.max_logits);
        Ok(())
    }

    fn split_combine(&self, args: SplitCombine<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        split_combine::run(args);
        Ok(())
    }

    fn kv_write(&self, args: KvWrite<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        kv_write::run(args);
        Ok(())
    }

    fn index_k_write(&self, args: IndexKWrite<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        index_k_write::run(args);
        Ok(())
    }

    fn linear(&self, args: Linear<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        linear::run(args);
        Ok(())
    }

    fn moe_experts(&self, args: MoeExperts<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        moe_experts::run(args);
        Ok(())
    }

    fn embed(&self, args: Embed<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        embed::run(args);
        Ok(())
    }

    fn gather_rows(&self, args: GatherRows<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        gather_rows::run(args);
        Ok(())
    }

    fn hc_mix(&self, args: HcMix<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        hc_mix::run(args);
        Ok(())
    }

    fn hc_post(&self, args: HcPost<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        hc_post::run(args);
        Ok(())
    }

    fn swiglu(&self, args: Swiglu<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        swiglu::run(args);
        Ok(())
    }

    fn router(&self, args: Router<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        router::run(args);
        Ok(())
    }

    fn sample(&self, args: Sample<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        sample::run(args);
        Ok(())
    }

    fn norm_rope(&self, args: NormRope<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        norm_rope::run(args);
        Ok(())
    }

    fn hadamard(&self, args: Hadamard<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        hadamard::run(args);
        Ok(())
    }

    fn index_q_quantise(&self, args: IndexQQuantise<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        index_q_quantise::run(args);
        Ok(())
    }

    fn compress(&self, args: Compress<'_, HostBuffer>) -> Result<(), OpsError> {
        args.check(len)?;
        compress::run(args);
        Ok(())
    }
}
