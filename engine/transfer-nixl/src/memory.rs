//! An arena as NIXL registers it.

use nixl_sys::{MemType, MemoryRegion, NixlDescriptor};
use std::sync::Arc;
use transfer::arena::Arena;

/// The arena, kept alive. Its bytes are atomic words of ours and never behind a reference, so whoever writes them from
/// outside breaks no promise of Rust's.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) Arc<Arena>);

impl MemoryRegion for Memory {
    // SAFETY: (of the implementation) the pointer is that of the arena's first byte, `size` bytes follow, and neither changes
    // while the arena lives. The caller's part, not to use it longer, is kept by `Peer`, which drops its arena last.
    unsafe fn as_ptr(&self) -> *const u8 {
        self.0.base().cast()
    }

    fn size(&self) -> usize {
        // An arena exists in memory.
        self.0.bytes() as usize
    }
}

impl NixlDescriptor for Memory {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}
