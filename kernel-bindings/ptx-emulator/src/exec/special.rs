//! Special registers.

use super::block::Block;
use super::lanes::{FULL, L32, L64, Lanes};
use super::launch::Launch;
use super::poison;
use super::program::{Any, Program};
use super::run::narrow;
use super::warp::Warp;
use crate::ir::Special;
use crate::machine::LaunchConfig;

/// Sets the special registers that do not change while a warp runs.
pub(crate) fn set_up(warp: &mut Warp, launch: &Launch<'_>, coords: [u32; 3]) {
    let program: &Program = launch.program;
    for (slot, special) in &program.specials {
        let values = Lanes(std::array::from_fn(|lane| fixed(*special, launch, warp.id, lane as u32, coords)));
        warp.r32[*slot as usize] = values;
        if let Some(shadow) = warp.shadow.p32.get_mut(*slot as usize) {
            *shadow = L32::splat(0);
            warp.shadow.dirty32[*slot as usize] = false;
        }
    }
    for (slot, special) in &program.specials64 {
        if *special == Special::GridId {
            warp.r64[*slot as usize] = L64::splat(launch.grid_id);
        }
        if let Some(shadow) = warp.shadow.p64.get_mut(*slot as usize) {
            *shadow = L64::splat(0);
            warp.shadow.dirty64[*slot as usize] = false;
        }
    }
}

fn fixed(special: Special, launch: &Launch<'_>, warp: u32, lane: u32, coords: [u32; 3]) -> u32 {
    let LaunchConfig { grid, block, .. } = *launch.dims;
    let clusters = launch.clusters.as_ref();
    let thread = warp * 32 + lane;
    let linear_block = coords[0] + grid[0] * (coords[1] + grid[1] * coords[2]);
    let axis = |v: [u32; 3], i: u8| v.get(i as usize).copied().unwrap_or(0);
    match special {
        Special::Tid(0) => thread % block[0],
        Special::Tid(1) => thread / block[0] % block[1],
        Special::Tid(2) => thread / block[0] / block[1],
        Special::Tid(_) => 0,
        Special::Ntid(i) => axis(block, i),
        Special::Ctaid(i) => axis(coords, i),
        Special::Nctaid(i) => axis(grid, i),
        Special::ClusterId(i) => axis(clusters.map_or(coords, |c| c.cluster_of(coords).0), i),
        Special::NClusterId(i) => axis(clusters.map_or(grid, |c| std::array::from_fn(|k| grid[k] / c.shape[k])), i),
        Special::LaneId => lane,
        Special::WarpId => warp,
        Special::NWarpId => launch.config.device.max_threads_per_sm / 32,
        Special::SmId => linear_block % launch.config.device.num_sms,
        Special::NSmId => launch.config.device.num_sms,
        Special::GridId => launch.grid_id as u32,
        Special::LaneMaskEq => 1 << lane,
        Special::LaneMaskLe => FULL >> (31 - lane),
        Special::LaneMaskLt => (1 << lane) - 1,
        Special::LaneMaskGe => FULL << lane,
        Special::LaneMaskGt => FULL.checked_shl(lane + 1).unwrap_or(0),
        Special::ClusterCtaid(i) => axis(clusters.map_or([0; 3], |c| c.place_of(coords).0), i),
        Special::ClusterCtaRank => clusters.map_or(0, |c| c.place_of(coords).1),
        Special::ClusterNctaid(i) => axis(clusters.map_or([1; 3], |c| c.shape), i),
        Special::ClusterNctaRank => clusters.map_or(1, |c| c.size()),
        Special::DynamicSmemSize => launch.dims.dynamic_shared,
        Special::TotalSmemSize | Special::AggrSmemSize => launch.shared_bytes,
        Special::Clock
        | Special::ClockHi
        | Special::Clock64
        | Special::GlobalTimer
        | Special::GlobalTimerLo
        | Special::GlobalTimerHi
        | Special::IsExplicitCluster => u32::from(special == Special::IsExplicitCluster && clusters.is_some()),
    }
}

impl Block<'_, '_> {
    /// Clocks: one tick per warp instruction of the block, so that time passes and a seed repeats it.
    pub(crate) fn read_special(&mut self, warp: &mut Warp, special: Special, d: Any, mask: u32) {
        let ticks = self.executed;
        let nanoseconds = 1_700_000_000_000_000_000 + ticks / 2;
        let value = match special {
            Special::Clock => ticks & 0xffff_ffff,
            Special::ClockHi => ticks >> 32,
            Special::Clock64 => ticks,
            Special::GlobalTimer => nanoseconds,
            Special::GlobalTimerLo => nanoseconds & 0xffff_ffff,
            Special::GlobalTimerHi => nanoseconds >> 32,
            _ => 0,
        };
        narrow(warp, d, &L64::splat(value), mask);
        if self.check.is_some() {
            poison::clean(warp, d, mask);
        }
    }
}
