//! Traffic of memory instructions.

use super::block::Block;
use super::lanes::L64;
use super::program::Space;
use crate::counters;

impl Block<'_, '_> {
    /// Counts one warp request. Addresses are those of the space; shared ones may be addresses or offsets, the banks are
    /// the same.
    #[inline(never)]
    pub(crate) fn count_access(&mut self, pc: u32, space: Space, addresses: &L64, mask: u32, width: u32, store: bool) {
        let Some(block) = &mut self.counters else { return };
        let traffic = &mut block.per_instruction[pc as usize];
        let bytes = u64::from(mask.count_ones()) * u64::from(width);
        match space {
            Space::Global => {
                let sectors = counters::sectors(&addresses.0, mask, width);
                if store {
                    traffic.global_store_requests += 1;
                    traffic.global_store_sectors += sectors;
                    traffic.global_store_bytes += bytes;
                } else {
                    traffic.global_load_requests += 1;
                    traffic.global_load_sectors += sectors;
                    traffic.global_load_bytes += bytes;
                }
            }
            Space::Shared => {
                let (passes, least) = counters::wavefronts(&addresses.0.map(|a| a as u32), mask, width);
                traffic.bank_conflicts += passes - least;
                if store {
                    traffic.shared_store_requests += 1;
                    traffic.shared_store_wavefronts += passes;
                    traffic.shared_store_bytes += bytes;
                } else {
                    traffic.shared_load_requests += 1;
                    traffic.shared_load_wavefronts += passes;
                    traffic.shared_load_bytes += bytes;
                }
            }
            Space::Local => traffic.local_bytes += bytes,
            Space::Const | Space::Param | Space::Generic => {}
        }
    }
}
