//! Asynchronous copies: `cp.async` groups, mbarrier transactions, bulk groups, the async proxy.

use super::support::*;
use ptx_emulator::FindingClass::{AsyncEarlyAccess, GlobalRace, MissingProxyFence, SharedRace};
use ptx_emulator::check::{AccessKind, MemSpace};
use ptx_emulator::ir::{Fence, Ordering, Scope, Space};

#[test]
fn cp_async_must_be_waited_for() {
    each_step_matters(1, AsyncEarlyAccess, |has| {
        let mut play = Play::block(1);
        play.cp_async((0, ALL), 0, G);
        play.blocks[0].cp_async_commit(0, ALL);
        if has(1) {
            play.blocks[0].cp_async_wait(0, ALL, Some(0));
        }
        play.access(0, (0, ALL), MemSpace::Shared, &spread(0, 16), 16, AccessKind::Read, Ordering::Weak, Scope::Cta);
        play
    });
}

#[test]
fn waiting_is_for_the_issuing_thread_alone() {
    // The lane reads its neighbour's copy: both have waited, but only a sync passes that on.
    each_step_matters(1, SharedRace, |has| {
        let mut play = Play::block(1);
        play.cp_async((0, ALL), 0, G);
        play.blocks[0].cp_async_commit(0, ALL);
        play.blocks[0].cp_async_wait(0, ALL, Some(0));
        if has(1) {
            play.blocks[0].warp_sync(0, ALL);
        }
        play.read((0, ALL), 0);
        play
    });
}

#[test]
fn writing_over_a_copy_or_its_source_in_flight() {
    for source in [false, true] {
        each_step_matters(1, AsyncEarlyAccess, |has| {
            let mut play = Play::block(1);
            play.cp_async((0, 1), 0, G);
            if has(1) {
                play.blocks[0].cp_async_wait(0, 1, None);
            }
            if source {
                play.write_global(0, (0, 0), G + 8);
            } else {
                play.write((0, 1), 0);
            }
            play
        });
    }
}

#[test]
fn reading_the_source_of_a_copy_is_harmless() {
    let mut play = Play::block(2);
    play.cp_async((0, 1), 0, G);
    play.read_global(0, (1, 0), G + 8);
    play.clean();
}

#[test]
fn wait_group_counts_groups_per_lane() {
    // Three groups; wait_group N covers all but the last N.
    for pending in 0..4u32 {
        for group in 0..3u64 {
            let mut play = Play::block(1);
            for g in 0..3 {
                play.cp_async((0, 1), g * 512, G);
                play.blocks[0].cp_async_commit(0, ALL);
            }
            play.blocks[0].cp_async_wait(0, ALL, Some(pending));
            play.read((0, 1), group * 512);
            let covered = group + u64::from(pending) < 3;
            play.verdict(usize::from(!covered), AsyncEarlyAccess);
        }
    }
    // Lanes that commit different numbers of groups.
    let mut play = Play::block(1);
    play.cp_async((0, 0b11), 0, G);
    play.blocks[0].cp_async_commit(0, 0b11);
    play.blocks[0].cp_async_commit(0, 0b10);
    play.blocks[0].cp_async_wait(0, 0b11, Some(1));
    play.access(0, (0, 0b10), MemSpace::Shared, &spread(0, 16), 16, AccessKind::Read, Ordering::Weak, Scope::Cta);
    play.clean();
    play.access(0, (0, 0b01), MemSpace::Shared, &spread(0, 16), 16, AccessKind::Read, Ordering::Weak, Scope::Cta);
    play.only(AsyncEarlyAccess);
}

#[test]
fn uncommitted_copies_are_covered_by_wait_all_only() {
    for (groups, covered) in [(Some(0), false), (None, true)] {
        let mut play = Play::block(1);
        play.cp_async((0, 1), 0, G);
        play.blocks[0].cp_async_wait(0, 1, groups);
        play.read((0, 1), 0);
        play.verdict(usize::from(!covered), AsyncEarlyAccess);
    }
}

/// Three-stage `cp.async` ring of two warps; every warp copies half a stage and reads the other half.
fn ring(has: &dyn Fn(usize) -> bool) -> Play {
    let mut play = Play::block(2);
    let issue = |play: &mut Play, tile: u64| {
        for warp in 0..2 {
            play.cp_async((warp, ALL), tile % 3 * 1024 + u64::from(warp) * 512, G + tile * 1024);
        }
    };
    let commit = |play: &mut Play| (0..2).for_each(|warp| play.blocks[0].cp_async_commit(warp, ALL));
    for tile in 0..2 {
        issue(&mut play, tile);
        commit(&mut play);
    }
    for tile in 0..9 {
        if has(1) {
            (0..2).for_each(|warp| play.blocks[0].cp_async_wait(warp, ALL, Some(1)));
        }
        if has(2) {
            play.bar(0, &[0, 1]);
        }
        for warp in 0..2 {
            let addr = spread(tile % 3 * 1024 + 512 - u64::from(warp) * 512, 16);
            play.access(0, (warp, ALL), MemSpace::Shared, &addr, 16, AccessKind::Read, Ordering::Weak, Scope::Cta);
        }
        if tile < 7 {
            issue(&mut play, tile + 2);
        }
        if has(3) {
            commit(&mut play);
        }
    }
    play
}

#[test]
fn a_cp_async_ring() {
    ring(&|_| true).clean();
    // No wait: the copies are in flight. No commit in the loop: the wait covers less than it should.
    ring(&|step| step != 1).only(AsyncEarlyAccess);
    assert!(ring(&|step| step != 3).classes().contains(&AsyncEarlyAccess));
    // No barrier: the neighbour's copy (waited for by its issuer) and the slot that is still being read.
    let without_barrier = ring(&|step| step != 2);
    assert!(without_barrier.classes().contains(&SharedRace), "{:?}", without_barrier.conflicts);
}

#[test]
fn a_copy_into_a_slot_that_is_still_read_races() {
    each_step_matters(1, SharedRace, |has| {
        let mut play = Play::block(2);
        play.read((1, ALL), 0);
        if has(1) {
            play.bar(0, &[0, 1]);
        }
        play.cp_async((0, ALL), 0, G);
        play
    });
}

#[test]
fn cp_async_on_an_mbarrier() {
    // Producer warp 0 copies and lets the copies arrive; consumer warp 1.
    each_step_matters(2, AsyncEarlyAccess, |has| {
        let mut play = Play::block(2);
        play.init((0, 0), 2048);
        play.bar(0, &[0, 1]);
        play.cp_async((0, ALL), 0, G);
        if has(1) {
            let ids: Vec<_> =
                (0..32).map(|l| play.blocks[0].cp_async_mbarrier_arrive(0, l, 2048, 90, &mut play.conflicts)).collect();
            ids.into_iter().for_each(|id| play.blocks[0].cp_async_arrived(id));
        }
        play.complete(2048);
        if has(2) {
            play.observe((1, ALL), 2048);
        }
        play.read((1, ALL), 0);
        play
    });
}

#[test]
fn an_asynchronous_arrival_publishes_the_copies_only() {
    let mut play = Play::block(2);
    play.init((0, 0), 2048);
    play.bar(0, &[0, 1]);
    play.write((0, 1), 256);
    play.cp_async((0, 0b11), 0, G);
    let id = play.blocks[0].cp_async_mbarrier_arrive(0, 0, 2048, 90, &mut play.conflicts);
    play.cp_async((0, 1), 512, G);
    play.blocks[0].cp_async_arrived(id);
    play.complete(2048);
    play.observe((1, 1), 2048);
    play.read((1, 1), 0);
    play.clean();
    // A copy by a lane that did not arrive, one issued after the instruction, and a plain store before it.
    play.read((1, 1), 16);
    play.only(AsyncEarlyAccess);
    play.conflicts.clear();
    play.read((1, 1), 512);
    play.only(AsyncEarlyAccess);
    play.conflicts.clear();
    play.read((1, 1), 256);
    play.only(SharedRace);
}

#[test]
fn a_copys_read_does_not_stand_for_earlier_reads() {
    // Lane 0 copies a word that it or a lane ordered before it has read; whoever saw the copy arrive knows nothing of
    // the first read.
    for first in [None, Some(0), Some(5)] {
        let mut play = Play::block(2);
        play.init((0, 0), 2048);
        play.bar(0, &[0, 1]);
        if let Some(lane) = first {
            play.read_global(0, (0, lane), G);
        }
        play.blocks[0].warp_sync(0, ALL);
        play.cp_async((0, 1), 0, G);
        let id = play.blocks[0].cp_async_mbarrier_arrive(0, 0, 2048, 90, &mut play.conflicts);
        play.blocks[0].cp_async_arrived(id);
        play.complete(2048);
        play.observe((1, 1), 2048);
        play.write_global(0, (1, 0), G);
        play.verdict(first.map_or(0, |_| 1), GlobalRace);
    }
}

#[test]
fn two_loads_of_one_source_land_in_their_own_phases() {
    for both in [false, true] {
        let mut play = Play::block(1);
        play.init((0, 0), 2048);
        play.blocks[0].fence(0, 1, Fence::MbarrierInit);
        let first = play.load((0, 0), 0, G, 64, 2048);
        let second = play.load((0, 0), 64, G, 64, 2048);
        play.blocks[0].bulk_landed(second);
        if both {
            play.blocks[0].bulk_landed(first);
        }
        play.complete(2048);
        play.observe((0, 1), 2048);
        play.write_global(0, (0, 0), G);
        play.verdict(usize::from(!both), AsyncEarlyAccess);
    }
}

/// Ring of two bulk-loaded stages: producer lane 0 of warp 0, consumer warps 1 and 2; full at 2048, empty at 2064.
fn bulk_ring(has: &dyn Fn(usize) -> bool) -> Play {
    let mut play = Play::block(3);
    (0..2).for_each(|s| play.init((0, 0), 2048 + s * 8));
    (0..2).for_each(|s| play.init((0, 0), 2064 + s * 8));
    if has(1) {
        play.blocks[0].fence(0, 1, Fence::MbarrierInit);
    }
    if has(2) {
        play.bar(0, &[0, 1, 2]);
    }
    for tile in 0..6u32 {
        let (stage, full, empty) = (u64::from(tile % 2), 2048 + tile % 2 * 8, 2064 + tile % 2 * 8);
        if tile >= 2 && has(3) {
            play.observe((0, 1), empty);
        }
        play.arrive((0, 1), full);
        let id = play.load((0, 0), stage * 1024, G + u64::from(tile) * 1024, 1024, full);
        play.blocks[0].bulk_landed(id);
        play.complete(full);
        for warp in 1..3 {
            if has(4) {
                play.observe((warp, ALL), full);
            }
            let addr = spread(stage * 1024, 16);
            play.access(0, (warp, ALL), MemSpace::Shared, &addr, 16, AccessKind::Read, Ordering::Weak, Scope::Cta);
            if has(5) || warp == 2 {
                play.arrive((warp, ALL), empty);
            }
        }
        play.complete(empty);
    }
    play
}

#[test]
fn a_bulk_ring() {
    bulk_ring(&|_| true).clean();
    bulk_ring(&|step| step != 1).only(MissingProxyFence);
    // Init not ordered before the consumers' use of the object.
    bulk_ring(&|step| step != 2).only(SharedRace);
    // Stage loaded over while it is read, by a producer that never saw the load before land.
    let overrun = bulk_ring(&|step| step != 3);
    assert!(overrun.classes().contains(&SharedRace) && overrun.classes().contains(&AsyncEarlyAccess));
    // One consumer does not say that it is done.
    bulk_ring(&|step| step != 5).only(SharedRace);
    // Stage read before the bytes were seen to land; then also: its readers never learn of anything.
    let unseen = bulk_ring(&|step| step != 4);
    assert_eq!(unseen.classes()[0], AsyncEarlyAccess, "{:?}", unseen.conflicts);
}

#[test]
fn a_bulk_load_in_flight() {
    for (landed, complete, clean) in [(true, true, true), (false, true, false), (true, false, false)] {
        let mut play = Play::block(2);
        play.init((0, 0), 2048);
        play.blocks[0].fence(0, 1, Fence::MbarrierInit);
        play.bar(0, &[0, 1]);
        play.arrive((0, 1), 2048);
        let id = play.load((0, 0), 0, G, 64, 2048);
        if landed {
            play.blocks[0].bulk_landed(id);
        }
        if complete {
            play.complete(2048);
        }
        play.observe((1, ALL), 2048);
        play.read((1, 1), 0);
        play.verdict(usize::from(!clean), AsyncEarlyAccess);
        if !clean {
            let other = play.conflicts[0].other;
            assert_eq!((other.warp, other.lane, other.write), (0, 0, true));
        }
    }
    // Its source must not be written meanwhile, its destination not be loaded into twice.
    let mut play = Play::block(1);
    play.init((0, 0), 2048);
    play.blocks[0].fence(0, 1, Fence::MbarrierInit);
    play.load((0, 0), 0, G, 64, 2048);
    play.write_global(0, (0, 0), G + 32);
    play.only(AsyncEarlyAccess);
    assert_eq!(play.conflicts[0].addr, G + 32);
    assert!(!play.conflicts[0].other.write);
    play.conflicts.clear();
    play.load((0, 0), 48, G + 4096, 64, 2048);
    play.only(AsyncEarlyAccess);
}

#[test]
fn a_landed_load_passes_on_nothing_of_its_issuer() {
    let mut play = Play::block(2);
    play.init((0, 0), 2048);
    play.blocks[0].fence(0, 1, Fence::MbarrierInit);
    play.bar(0, &[0, 1]);
    play.write((0, 1), 512);
    let id = play.load((0, 0), 0, G, 64, 2048);
    play.blocks[0].bulk_landed(id);
    play.complete(2048);
    play.observe((1, 1), 2048);
    play.read((1, 1), 0);
    play.clean();
    play.read((1, 1), 512);
    play.only(SharedRace);
}

#[test]
fn mbarrier_init_is_fenced_for_the_copies() {
    for (fence, ok) in [
        (None, false),
        (Some(Fence::MbarrierInit), true),
        (Some(Fence::ProxyAsync(Space::Generic)), true),
        (Some(Fence::ProxyAsync(Space::Shared)), true),
        (Some(Fence::ProxyAsync(Space::Global)), false),
        (Some(Fence::AcqRel(Scope::Cta)), false),
    ] {
        let mut play = Play::block(2);
        play.init((1, 3), 2048);
        if let Some(fence) = fence {
            play.blocks[0].fence(1, 1 << 3, fence);
        }
        play.bar(0, &[0, 1]);
        play.load((0, 0), 0, G, 64, 2048);
        play.verdict(usize::from(!ok), MissingProxyFence);
    }
    // A fence by a lane that initialised nothing does not help; one before the init neither.
    let mut play = Play::block(1);
    play.blocks[0].fence(0, ALL, Fence::MbarrierInit);
    play.init((0, 3), 2048);
    play.blocks[0].fence(0, 1, Fence::MbarrierInit);
    play.blocks[0].warp_sync(0, ALL);
    play.load((0, 0), 0, G, 64, 2048);
    play.only(MissingProxyFence);
    // Neither does the fence after an earlier init of the same object.
    let mut play = Play::block(1);
    play.init((0, 0), 2048);
    play.blocks[0].fence(0, 1, Fence::MbarrierInit);
    play.load((0, 0), 0, G, 64, 2048);
    play.clean();
    play.init((0, 0), 2048);
    play.load((0, 0), 64, G, 64, 2048);
    play.only(MissingProxyFence);
}

/// All warps write a tile, one lane stores it away in bulk, all write the next tile.
fn tile_store(has: &dyn Fn(usize) -> bool, fence_after_barrier: bool, read: bool) -> Play {
    let mut play = Play::block(2);
    for tile in 0..3 {
        (0..2).for_each(|warp| play.write((warp, ALL), u64::from(warp) * 128));
        let fence = |play: &mut Play| {
            (0..2).for_each(|warp| play.blocks[0].fence(warp, ALL, Fence::ProxyAsync(Space::Shared)));
        };
        if has(1) && !fence_after_barrier {
            fence(&mut play);
        }
        if has(2) {
            play.bar(0, &[0, 1]);
        }
        if has(1) && fence_after_barrier {
            fence(&mut play);
        }
        play.store((0, 0), G + tile * 256, 0, 256, false);
        play.blocks[0].bulk_commit(0, 1);
        if has(3) {
            play.blocks[0].bulk_wait(0, 1, 0, read);
        }
        if has(4) {
            play.bar(0, &[0, 1]);
        }
    }
    play
}

#[test]
fn a_tile_stored_in_bulk() {
    for fence_after_barrier in [false, true] {
        for read in [false, true] {
            let run = |left_out| tile_store(&|step| step != left_out, fence_after_barrier, read);
            run(0).clean();
            run(1).only(MissingProxyFence);
            assert!(run(2).classes().contains(&SharedRace));
            run(3).only(AsyncEarlyAccess);
            run(4).only(SharedRace);
        }
    }
}

#[test]
fn the_proxy_fence_covers_its_own_lanes_writes_only() {
    // Lane 0 fences, lane 1 does not; both are then ordered before the store by lane 0.
    let mut play = Play::block(1);
    play.write((0, 0b11), 0);
    play.blocks[0].fence(0, 1, Fence::ProxyAsync(Space::Generic));
    play.blocks[0].warp_sync(0, ALL);
    play.store((0, 0), G, 0, 4, false);
    play.clean();
    play.store((0, 0), G + 16, 4, 4, false);
    play.only(MissingProxyFence);
    assert_eq!(play.conflicts[0].other.lane, 1);
}

#[test]
fn what_follows_the_proxy_fence_is_not_covered_by_it() {
    let mut play = Play::block(1);
    play.write((0, 1), 0);
    play.blocks[0].fence(0, 1, Fence::ProxyAsync(Space::Generic));
    play.write((0, 1), 4);
    play.store((0, 0), G, 0, 4, false);
    play.clean();
    play.store((0, 0), G + 16, 4, 4, false);
    play.only(MissingProxyFence);
}

#[test]
fn a_load_over_generic_writes_needs_the_fence_and_over_reads_does_not() {
    for (write, fence, ok) in [(true, true, true), (true, false, false), (false, false, true)] {
        let mut play = Play::block(1);
        play.init((0, 0), 2048);
        play.blocks[0].fence(0, 1, Fence::MbarrierInit);
        if write {
            play.write((0, 1), 0);
        } else {
            play.read((0, 1), 0);
        }
        if fence {
            play.blocks[0].fence(0, 1, Fence::ProxyAsync(Space::Generic));
        }
        play.load((0, 0), 0, G, 64, 2048);
        play.verdict(usize::from(!ok), MissingProxyFence);
    }
}

#[test]
fn global_data_written_in_the_launch_is_fenced_for_bulk_loads() {
    for (fence, ok) in [(Space::Global, true), (Space::Generic, true), (Space::Shared, false)] {
        let mut play = Play::block(1);
        play.init((0, 0), 2048);
        play.blocks[0].fence(0, 1, Fence::MbarrierInit);
        play.write_global(0, (0, 0), G);
        play.blocks[0].fence(0, 1, Fence::ProxyAsync(fence));
        play.load((0, 0), 0, G, 64, 2048);
        play.verdict(usize::from(!ok), MissingProxyFence);
    }
}

#[test]
fn cp_async_writes_belong_to_the_generic_proxy() {
    for fence in [false, true] {
        let mut play = Play::block(1);
        play.cp_async((0, 1), 0, G);
        play.blocks[0].cp_async_wait(0, 1, None);
        if fence {
            play.blocks[0].fence(0, 1, Fence::ProxyAsync(Space::Generic));
        }
        play.store((0, 0), G + 4096, 0, 16, false);
        play.verdict(usize::from(!fence), MissingProxyFence);
    }
}

#[test]
fn a_bulk_store_is_seen_after_the_full_wait_only() {
    for (wait, ok) in [(None, false), (Some(true), false), (Some(false), true)] {
        let mut play = Play::block(1);
        play.store((0, 0), G, 0, 64, false);
        play.blocks[0].bulk_commit(0, 1);
        if let Some(read) = wait {
            play.blocks[0].bulk_wait(0, 1, 0, read);
        }
        play.read_global(0, (0, 0), G + 32);
        play.verdict(usize::from(!ok), AsyncEarlyAccess);
    }
    // A read wait does not use up the group.
    let mut play = Play::block(1);
    play.store((0, 0), G, 0, 64, false);
    play.blocks[0].bulk_commit(0, 1);
    play.blocks[0].bulk_wait(0, 1, 0, true);
    play.blocks[0].bulk_wait(0, 1, 0, false);
    play.read_global(0, (0, 0), G + 32);
    play.clean();
}

#[test]
fn bulk_reductions_do_not_race_with_each_other() {
    let mut play = Play::block(2);
    play.store((0, 0), G, 0, 64, true);
    play.store((1, 0), G, 64, 64, true);
    play.clean();
    // An atomic of the generic proxy is no match for one of the async proxy.
    play.strong(0, (1, 0), G, AccessKind::Atomic, Ordering::Relaxed, Scope::Gpu);
    assert_eq!(play.classes()[0], AsyncEarlyAccess);
    let mut play = Play::block(2);
    play.store((0, 0), G, 0, 64, true);
    play.store((1, 0), G, 64, 64, false);
    play.only(AsyncEarlyAccess);
}

#[test]
fn copies_of_other_blocks_race() {
    let mut play = Play::new(2, 1);
    play.store((0, 0), G, 0, 64, false);
    play.read_global(1, (0, 0), G);
    play.only(GlobalRace);
    assert_eq!(play.conflicts[0].other.block, 0);
}

#[test]
fn old_events_are_dropped_and_live_ones_are_kept() {
    // Some hundred thousand epochs between the issue of a load and its landing, with a record to be found before them.
    let mut play = Play::block(2);
    play.init((0, 0), 2048);
    play.blocks[0].fence(0, 1, Fence::MbarrierInit);
    play.bar(0, &[0, 1]);
    play.write((1, 1), 512);
    let written = play.place;
    (0..2).for_each(|warp| play.read((warp, 1), 768));
    play.read((1, 2), 764);
    let id = play.load((0, 0), 0, G, 64, 2048);
    for _ in 0..200_000 {
        play.read((0, ALL), 1024);
        play.write((0, 1), 3000);
        play.blocks[0].warp_sync(0, ALL);
    }
    play.clean();
    play.read((0, 1), 512);
    play.only(SharedRace);
    assert_eq!(play.conflicts[0].other.place, written);
    play.conflicts.clear();
    play.write((0, 1), 768);
    play.only(SharedRace);
    let readers = play.conflicts.iter().map(|c| (c.other.warp, c.other.lane, c.other.place));
    assert_eq!(readers.collect::<Vec<_>>(), [(1, 0, written + 2), (1, 1, written + 3)]);
    play.conflicts.clear();
    play.read((0, 1), 0);
    play.only(AsyncEarlyAccess);
    play.conflicts.clear();
    play.blocks[0].bulk_landed(id);
    play.complete(2048);
    play.observe((1, 1), 2048);
    play.read((1, 1), 0);
    play.clean();
}
