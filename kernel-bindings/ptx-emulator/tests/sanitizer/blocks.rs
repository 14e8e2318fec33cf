//! Order between blocks of a launch: releases and acquires through global memory, and their scopes.

use super::support::*;
use ptx_emulator::FindingClass::{GlobalRace, MissingProxyFence};
use ptx_emulator::check::AccessKind::{Atomic, Read, Write};
use ptx_emulator::check::{Access, AccessKind, BlockCheck, LaunchCheck, MemSpace};
use ptx_emulator::ir::{Fence, Ordering, Scope, Space};
use std::sync::Arc;

const FLAG: u64 = G + 4096;

#[test]
fn blocks_are_not_ordered_by_themselves() {
    let mut play = Play::new(2, 1);
    play.write_global(0, (0, 0), G);
    play.write_global(1, (0, 0), G + 4);
    play.clean();
    play.read_global(1, (0, 0), G);
    play.only(GlobalRace);
    let other = play.conflicts[0].other;
    assert_eq!((other.block, other.warp, other.lane, other.place), (0, 0, 0, 1));
}

#[test]
fn a_flag_between_blocks() {
    // Release store and acquire load, each of them at a scope; a block scope does not reach.
    for release in [Scope::Cta, Scope::Cluster, Scope::Gpu, Scope::Sys] {
        for acquire in [Scope::Cta, Scope::Gpu] {
            let mut play = Play::new(2, 1);
            play.write_global(0, (0, 0), G);
            play.strong(0, (0, 0), FLAG, Write, Ordering::Release, release);
            play.strong(1, (0, 0), FLAG, Read, Ordering::Acquire, acquire);
            play.read_global(1, (0, 0), G);
            let ordered = release >= Scope::Gpu && acquire >= Scope::Gpu;
            play.verdict(usize::from(!ordered), GlobalRace);
            // The flag itself is a race too when its scopes do not reach.
            assert_eq!(play.conflicts.len(), if ordered { 0 } else { 2 });
        }
    }
}

#[test]
fn a_narrow_scope_serves_inside_a_block() {
    for (release, acquire) in [(Scope::Gpu, Scope::Cta), (Scope::Cta, Scope::Gpu), (Scope::Cta, Scope::Cta)] {
        let mut play = Play::new(1, 2);
        play.write_global(0, (0, 0), G);
        play.strong(0, (0, 0), FLAG, Write, Ordering::Release, release);
        play.strong(0, (1, 0), FLAG, Read, Ordering::Acquire, acquire);
        play.read_global(0, (1, 0), G);
        play.clean();
    }
}

/// Every block writes a partial result with all its warps; the last one to count reads them all.
fn last_block(has: &dyn Fn(usize) -> bool, scope: Scope) -> Play {
    let (blocks, warps) = (5usize, 2u32);
    let mut play = Play::new(blocks as u32, warps);
    let bar = |play: &mut Play, block: usize| {
        (0..warps).for_each(|warp| play.blocks[block].barrier_arrive(0, warp, ALL, true));
        play.blocks[block].barrier_complete(0);
    };
    let row = |block: usize, warp: u32| spread(G + block as u64 * 256 + u64::from(warp) * 128, 4);
    let weak = Ordering::Weak;
    for block in 0..blocks {
        for warp in 0..warps {
            play.access(block, (warp, ALL), MemSpace::Global, &row(block, warp), 4, Write, weak, Scope::Gpu);
        }
        if has(1) {
            bar(&mut play, block);
        }
        if has(2) {
            play.blocks[block].fence(0, 1, Fence::AcqRel(scope));
        }
        play.strong(block, (0, 0), FLAG, Atomic, Ordering::Relaxed, Scope::Gpu);
        if block == blocks - 1 {
            if has(3) {
                play.blocks[block].fence(0, 1, Fence::AcqRel(scope));
            }
            if has(4) {
                bar(&mut play, block);
            }
            for from in 0..blocks {
                for warp in 0..warps {
                    play.access(block, (1 - warp, ALL), MemSpace::Global, &row(from, warp), 4, Read, weak, Scope::Gpu);
                }
            }
        }
    }
    play
}

#[test]
fn the_last_block_reads_all_partials() {
    each_step_matters(4, GlobalRace, |has| last_block(has, Scope::Gpu));
    last_block(&|_| true, Scope::Sys).clean();
    last_block(&|_| true, Scope::Cta).only(GlobalRace);
}

#[test]
fn a_fence_of_the_block_releases_to_the_block_only() {
    for (fence, ordered) in [(Scope::Cta, false), (Scope::Cluster, false), (Scope::Gpu, true)] {
        let mut play = Play::new(2, 1);
        play.write_global(0, (0, 0), G);
        play.blocks[0].fence(0, 1, Fence::AcqRel(fence));
        play.strong(0, (0, 0), FLAG, Write, Ordering::Relaxed, Scope::Gpu);
        play.strong(1, (0, 0), FLAG, Read, Ordering::Acquire, Scope::Gpu);
        play.read_global(1, (0, 0), G);
        play.verdict(usize::from(!ordered), GlobalRace);
    }
}

#[test]
fn release_and_acquire_on_the_counter_itself() {
    for (ordering, ordered) in
        [(Ordering::AcqRel, true), (Ordering::Release, false), (Ordering::Acquire, false), (Ordering::Relaxed, false)]
    {
        let mut play = Play::new(4, 1);
        for block in 0..4 {
            play.write_global(block, (0, 0), G + block as u64 * 4);
            play.strong(block, (0, 0), FLAG, Atomic, ordering, Scope::Gpu);
        }
        (0..4).for_each(|block| play.read_global(3, (0, 0), G + block * 4));
        play.verdict(usize::from(!ordered), GlobalRace);
    }
}

#[test]
fn knowledge_passes_through_a_third_block() {
    each_step_matters(2, GlobalRace, |has| {
        let mut play = Play::new(3, 1);
        play.write_global(0, (0, 0), G);
        play.strong(0, (0, 0), FLAG, Write, Ordering::Release, Scope::Gpu);
        let acquire = if has(1) { Ordering::Acquire } else { Ordering::Relaxed };
        play.strong(1, (0, 0), FLAG, Read, acquire, Scope::Gpu);
        let release = if has(2) { Ordering::Release } else { Ordering::Relaxed };
        play.strong(1, (0, 0), FLAG + 64, Write, release, Scope::Gpu);
        play.strong(2, (0, 0), FLAG + 64, Read, Ordering::Acquire, Scope::Gpu);
        play.read_global(2, (0, 0), G);
        play
    });
}

#[test]
fn a_grid_barrier_every_round() {
    // Counter at gpu scope; every block reads its neighbour's word of the round before.
    each_step_matters(2, GlobalRace, |has| {
        let mut play = Play::new(3, 1);
        for round in 0..3u64 {
            for block in 0..3usize {
                play.write_global(block, (0, 0), G + (round % 2) * 64 + block as u64 * 4);
                let arrive = if has(1) { Ordering::Release } else { Ordering::Relaxed };
                play.strong(block, (0, 0), FLAG, Atomic, arrive, Scope::Gpu);
            }
            for block in 0..3usize {
                let wait = if has(2) { Ordering::Acquire } else { Ordering::Relaxed };
                play.strong(block, (0, 0), FLAG, Read, wait, Scope::Gpu);
                play.read_global(block, (0, 0), G + (round % 2) * 64 + (block as u64 + 1) % 3 * 4);
            }
        }
        play
    });
}

#[test]
fn cluster_scope_reaches_the_cluster() {
    let launch = Arc::new(LaunchCheck::new());
    let block = |index, cluster| BlockCheck::new(launch.clone(), index, cluster, 32, 0);
    for reader in [1u32, 2] {
        let (mut from, mut to) = (block(0, 0), block(reader, reader / 2));
        let mut out = Vec::new();
        let data = G + u64::from(reader) * 64;
        let mut step = |block: &mut BlockCheck, addr: u64, kind: AccessKind, ordering: Ordering| {
            let (space, scope) = (MemSpace::Global, Scope::Cluster);
            let access =
                Access { space, warp: 0, mask: 1, addr: &[addr; 32], bytes: 4, kind, ordering, scope, place: 0 };
            block.access(&access, &mut out);
        };
        step(&mut from, data, Write, Ordering::Weak);
        step(&mut from, data + 4096, Write, Ordering::Release);
        step(&mut to, data + 4096, Read, Ordering::Acquire);
        step(&mut to, data, Read, Ordering::Weak);
        assert_eq!(out.is_empty(), reader == 1, "{out:?}");
    }
}

#[test]
fn a_cluster_barrier_orders_its_blocks() {
    for (complete, release) in [(true, true), (true, false), (false, true)] {
        let launch = Arc::new(LaunchCheck::new());
        let mut blocks: Vec<_> = (0..2).map(|b| BlockCheck::new(launch.clone(), b, 0, 64, 0)).collect();
        let mut out = Vec::new();
        let mut word = |block: &mut BlockCheck, warp: u32, kind: AccessKind| {
            let (space, ordering, scope) = (MemSpace::Global, Ordering::Weak, Scope::Gpu);
            let addr = &[G; 32];
            let access = Access { space, warp, mask: 1, addr, bytes: 4, kind, ordering, scope, place: 0 };
            block.access(&access, &mut out);
        };
        word(&mut blocks[0], 1, Write);
        for block in &mut blocks {
            (0..2).for_each(|warp| block.cluster_arrive(warp, u32::MAX, release));
        }
        if complete {
            launch.cluster_complete(0);
        }
        for block in &mut blocks {
            (0..2).for_each(|warp| block.cluster_wait(warp, u32::MAX));
        }
        word(&mut blocks[0], 0, Read);
        word(&mut blocks[1], 0, Read);
        assert_eq!(out.len(), if complete && release { 0 } else { 2 }, "{out:?}");
    }
}

#[test]
fn a_proxy_fence_of_the_writing_block_is_passed_on() {
    for fence in [false, true] {
        let mut play = Play::new(2, 1);
        play.write_global(1, (0, 0), G);
        if fence {
            play.blocks[1].fence(0, 1, Fence::ProxyAsync(Space::Global));
        }
        play.strong(1, (0, 0), FLAG, Write, Ordering::Release, Scope::Gpu);
        play.init((0, 0), 2048);
        play.blocks[0].fence(0, 1, Fence::MbarrierInit);
        play.strong(0, (0, 0), FLAG, Read, Ordering::Acquire, Scope::Gpu);
        play.load((0, 0), 0, G, 64, 2048);
        play.verdict(usize::from(!fence), MissingProxyFence);
    }
}

#[test]
fn the_same_thread_of_another_block_is_another_thread() {
    let mut play = Play::new(2, 1);
    play.read_global(0, (0, 0), G);
    play.read_global(1, (0, 0), G);
    play.clean();
    play.write_global(1, (0, 0), G);
    play.only(GlobalRace);
    assert_eq!(play.conflicts[0].other.block, 0);
}

#[test]
fn many_readers_then_an_unordered_write() {
    let mut play = Play::new(64, 1);
    (0..64).for_each(|block| play.read_global(block, (0, 0), G));
    play.clean();
    play.write_global(7, (0, 0), G);
    play.only(GlobalRace);
}

#[test]
fn many_adders_then_an_unordered_read() {
    let mut play = Play::new(64, 1);
    (0..64).for_each(|block| play.strong(block, (0, 0), G, Atomic, Ordering::Relaxed, Scope::Gpu));
    play.clean();
    play.read_global(7, (0, 0), G);
    play.only(GlobalRace);
}

#[test]
fn wide_rows_over_the_seams_of_the_shadow() {
    // A bulk store over several parts of the address space, then a scattered read that touches each.
    let mut play = Play::block(2);
    let base = G + (1 << 16) - 64;
    play.store((0, 0), base, 0, 1 << 17, false);
    for at in [0, 60, 64, 4096, (1 << 16) + 32, (1 << 17) - 4] {
        play.conflicts.clear();
        play.read_global(0, (1, 0), base + at);
        assert_eq!(play.conflicts.len(), 1, "at {at}");
        assert_eq!(play.conflicts[0].addr, base + at);
    }
    play.conflicts.clear();
    play.read_global(0, (1, 0), base - 4);
    play.read_global(0, (1, 0), base + (1 << 17));
    play.clean();
}

#[test]
fn parts_of_global_memory_do_not_share_event_numbers() {
    // Two addresses in different parts; each part's first event is a write, of the same block and of another.
    let (near, far) = (G, G + (1 << 16));
    for kind in [Read, Write] {
        let mut play = Play::new(2, 2);
        play.write_global(0, (0, 0), near);
        play.write_global(1, (0, 0), far);
        play.bar(0, &[0, 1]);
        let mut addr = [near; 32];
        addr[1] = far;
        play.access(0, (1, 0b11), MemSpace::Global, &addr, 4, kind, Ordering::Weak, Scope::Gpu);
        play.only(GlobalRace);
        assert_eq!((play.conflicts[0].lane, play.conflicts[0].addr), (1, far));
    }
    // The same with reads that are to be remembered: one superseded, one not.
    let mut play = Play::new(2, 2);
    play.read_global(0, (0, 0), near);
    play.read_global(1, (0, 0), far);
    play.bar(0, &[0, 1]);
    let mut addr = [near; 32];
    addr[1] = far;
    play.access(0, (1, 0b11), MemSpace::Global, &addr, 4, Read, Ordering::Weak, Scope::Gpu);
    play.bar(0, &[0, 1]);
    play.write_global(0, (0, 0), near);
    play.clean();
    play.write_global(0, (0, 0), far);
    play.only(GlobalRace);
    assert_eq!(play.conflicts[0].other.block, 1);
}
