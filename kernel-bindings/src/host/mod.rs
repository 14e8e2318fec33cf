//! The operations on the host: f32 sums, threads that share an operation (`host/threads.rs`), loops that the compiler turns into vector instructions.
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
mod hc_products;
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
mod sparse_mla_prefill;
mod split_combine;
mod swiglu;
mod threads;
mod tiles;
mod topk_select;

use reference::for_each_operation;
use reference::ops::{Ops, OpsError, Pages};

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

/// Checks the operands and runs the operation, which cannot fail then.
macro_rules! checked_and_run {
    ($($op:ident($operands:ident),)*) => {$(
        fn $op(&self, args: reference::ops::$operands<'_, HostBuffer>) -> Result<(), OpsError> {
            args.check(len)?;
            $op::run(args);
            Ok(())
        }
    )*};
}

impl Ops for HostOps {
    type Buffer = HostBuffer;
    type Graph = std::convert::Infallible;

    fn name(&self) -> String {
        DEVICE.into()
    }

    fn alloc(&self, bytes: u64, label: &str) -> Result<HostBuffer, OpsError> {
        let refused = |why: String| OpsError::Device { device: DEVICE.into(), message: why };
        let size = usize::try_from(bytes).ok().filter(|&size| isize::try_from(size).is_ok());
        let size = size.ok_or_else(|| refused(format!("`{label}`: {bytes} bytes do not fit the address space")))?;
        // What the system refuses is an error here; `vec!` by itself would end the process.
        let refusal = Vec::<u8>::new().try_reserve_exact(size);
        refusal.map_err(|_| refused(format!("`{label}`: no memory for {bytes} bytes")))?;
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

    for_each_operation!(checked_and_run);
}
