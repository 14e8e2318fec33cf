//! Order inside a block: warps, barriers, mbarriers, flags in shared memory.

use super::support::*;
use ptx_emulator::FindingClass::{NcLoadOfWritten, SharedRace};
use ptx_emulator::check::{AccessKind, MemSpace};
use ptx_emulator::ir::{Fence, Ordering, Scope};

/// Weak access of one shared word (or less) by some lanes.
fn word(play: &mut Play, who: (u32, u32), addr: u64, bytes: u32, kind: AccessKind) {
    play.access(0, who, MemSpace::Shared, &[addr; 32], bytes, kind, Ordering::Weak, Scope::Cta);
}

/// Strong access of one shared word by some lanes.
fn flag(play: &mut Play, who: (u32, u32), addr: u64, kind: AccessKind, ordering: Ordering) {
    play.access(0, who, MemSpace::Shared, &[addr; 32], 4, kind, ordering, Scope::Cta);
}

use AccessKind::{Atomic, Read, Reduce, Write};

#[test]
fn a_thread_is_ordered_with_itself() {
    let mut play = Play::block(1);
    play.write((0, ALL), 0);
    play.read((0, ALL), 0);
    play.write((0, ALL), 0);
    play.blocks[0].warp_sync(0, 0xff);
    play.read((0, ALL), 0);
    play.write((0, ALL), 0);
    play.clean();
}

#[test]
fn lanes_of_a_warp_are_threads() {
    for second in [Read, Write] {
        each_step_matters(1, SharedRace, |has| {
            let mut play = Play::block(1);
            word(&mut play, (0, 1), 64, 4, Write);
            if has(1) {
                play.blocks[0].warp_sync(0, ALL);
            }
            word(&mut play, (0, 2), 64, 4, second);
            play
        });
    }
}

#[test]
fn warp_sync_orders_only_the_lanes_of_its_mask() {
    let mut play = Play::block(1);
    word(&mut play, (0, 1), 64, 4, Write);
    play.blocks[0].warp_sync(0, 0b11);
    word(&mut play, (0, 2), 64, 4, Read);
    play.clean();
    word(&mut play, (0, 4), 64, 4, Read);
    play.only(SharedRace);
    let conflict = play.conflicts[0];
    assert_eq!((conflict.lane, conflict.addr), (2, 64));
    assert_eq!((conflict.other.warp, conflict.other.lane, conflict.other.place), (0, 0, 1));
    assert!(conflict.other.write);
}

#[test]
fn two_lanes_of_one_store_to_one_byte_race() {
    let mut play = Play::block(1);
    word(&mut play, (0, 0b11), 64, 4, Write);
    play.only(SharedRace);
    assert_eq!(play.conflicts.len(), 1);
    assert_eq!(play.conflicts[0].other.place, 1);
    // Lanes that are no neighbours, overlapping in the middle of a word only.
    let mut play = Play::block(1);
    let mut addr = spread(0, 8);
    addr[7] = addr[2] + 2;
    play.access(0, (0, ALL), MemSpace::Shared, &addr, 4, Write, Ordering::Weak, Scope::Cta);
    play.only(SharedRace);
    assert_eq!((play.conflicts[0].lane, play.conflicts[0].other.lane, play.conflicts[0].addr), (7, 2, 18));
}

#[test]
fn bytes_of_one_word_are_apart() {
    let mut play = Play::block(2);
    word(&mut play, (0, 1), 64, 1, Write);
    word(&mut play, (0, 2), 65, 1, Write);
    word(&mut play, (1, 1), 66, 2, Write);
    word(&mut play, (1, 2), 68, 8, Write);
    play.clean();
    word(&mut play, (1, 4), 64, 4, Read);
    // One report for each earlier instruction.
    play.only(SharedRace);
    assert_eq!(play.conflicts.iter().map(|c| (c.addr, c.other.place)).collect::<Vec<_>>(), [(64, 1), (65, 2), (66, 3)]);
}

#[test]
fn reads_do_not_race_with_reads() {
    let mut play = Play::block(4);
    for round in 0..3 {
        for warp in 0..4 {
            play.read((warp, ALL), 0);
            word(&mut play, (warp, ALL), 16 * round, 16, Read);
        }
    }
    play.clean();
}

#[test]
fn every_reader_counts_against_a_write() {
    // The write is ordered after all readers but one.
    for missing in 0..6 {
        let mut play = Play::block(6);
        (0..6).for_each(|warp| play.read((warp, ALL), 0));
        for warp in 0..6 {
            if warp != missing {
                play.blocks[0].barrier_arrive(1, warp, ALL, warp == 5);
            }
        }
        play.blocks[0].barrier_arrive(1, 5, ALL, true);
        play.blocks[0].barrier_complete(1);
        play.write((5, ALL), 0);
        if missing == 5 {
            play.clean();
        } else {
            play.only(SharedRace);
            assert_eq!(play.conflicts[0].other.warp, missing);
            assert!(!play.conflicts[0].other.write);
        }
    }
}

#[test]
fn bar_sync_passes_messages() {
    each_step_matters(1, SharedRace, |has| {
        let mut play = Play::block(3);
        play.write((0, ALL), 0);
        if has(1) {
            play.bar(0, &[0, 1, 2]);
        }
        play.read((2, ALL), 0);
        play
    });
}

#[test]
fn a_tile_loop_needs_both_barriers() {
    each_step_matters(2, SharedRace, |has| {
        let mut play = Play::block(2);
        for _ in 0..3 {
            (0..2).for_each(|warp| play.write((warp, ALL), u64::from(warp) * 128));
            if has(1) {
                play.bar(0, &[0, 1]);
            }
            (0..2).for_each(|warp| play.read((warp, ALL), 128 - u64::from(warp) * 128));
            if has(2) {
                play.bar(0, &[0, 1]);
            }
        }
        play
    });
}

#[test]
fn arrive_only_participants_release_and_do_not_acquire() {
    // Producer warp 0 arrives at "full" (1) and syncs at "empty" (2); consumer warp 1 the other way round.
    each_step_matters(2, SharedRace, |has| {
        let mut play = Play::block(2);
        for _ in 0..3 {
            play.write((0, ALL), 0);
            if has(1) {
                play.blocks[0].barrier_arrive(1, 0, ALL, false);
                play.blocks[0].barrier_arrive(1, 1, ALL, true);
                play.blocks[0].barrier_complete(1);
            }
            play.read((1, ALL), 0);
            if has(2) {
                play.blocks[0].barrier_arrive(2, 1, ALL, false);
                play.blocks[0].barrier_arrive(2, 0, ALL, true);
                play.blocks[0].barrier_complete(2);
            }
        }
        play
    });
    let mut play = Play::block(2);
    play.write((1, ALL), 0);
    play.blocks[0].barrier_arrive(1, 0, ALL, false);
    play.blocks[0].barrier_arrive(1, 1, ALL, true);
    play.blocks[0].barrier_complete(1);
    play.read((0, ALL), 0);
    play.only(SharedRace);
}

#[test]
fn what_follows_an_arrival_is_not_published_by_it() {
    let mut play = Play::block(2);
    play.blocks[0].barrier_arrive(1, 0, ALL, false);
    play.write((0, ALL), 0);
    play.blocks[0].barrier_arrive(1, 1, ALL, true);
    play.blocks[0].barrier_complete(1);
    play.read((1, ALL), 0);
    play.only(SharedRace);
}

#[test]
fn a_barrier_reached_by_parts_of_a_warp_joins_them() {
    let mut play = Play::block(2);
    word(&mut play, (0, 1), 0, 4, Write);
    play.blocks[0].barrier_arrive(0, 0, 0xffff, true);
    play.blocks[0].barrier_arrive(0, 1, ALL, true);
    play.blocks[0].barrier_arrive(0, 0, 0xffff_0000, true);
    play.blocks[0].barrier_complete(0);
    word(&mut play, (0, ALL), 0, 4, Read);
    word(&mut play, (1, ALL), 0, 4, Read);
    play.clean();
}

#[test]
fn order_is_transitive() {
    let mut play = Play::block(3);
    play.write((0, ALL), 0);
    play.bar(1, &[0, 1]);
    play.bar(2, &[1, 2]);
    play.read((2, ALL), 0);
    play.clean();
    // The same barriers the other way round pass nothing on.
    let mut play = Play::block(3);
    play.write((0, ALL), 0);
    play.bar(2, &[1, 2]);
    play.bar(1, &[0, 1]);
    play.read((2, ALL), 0);
    play.only(SharedRace);
}

#[test]
fn a_warp_synchronous_reduction_needs_its_syncs() {
    // Tree over 32 words in shared memory, one warp; a step reads the neighbour's word and writes its own.
    each_step_matters(2, SharedRace, |has| {
        let mut play = Play::block(1);
        play.write((0, ALL), 0);
        play.blocks[0].warp_sync(0, ALL);
        for distance in [16u32, 8, 4, 2, 1] {
            let lanes = (1 << distance) - 1;
            let other = spread(u64::from(distance) * 4, 4);
            play.access(0, (0, lanes), MemSpace::Shared, &other, 4, Read, Ordering::Weak, Scope::Cta);
            if has(1) {
                play.blocks[0].warp_sync(0, ALL);
            }
            play.write((0, lanes << distance | lanes), 0);
            if has(2) {
                play.blocks[0].warp_sync(0, ALL);
            }
        }
        play
    });
}

#[test]
fn an_mbarrier_ring_needs_all_four_steps() {
    // Producer warp 0, consumers 1 and 2, generic writes; full at 1024, empty at 1032.
    each_step_matters(4, SharedRace, |has| {
        let mut play = Play::block(3);
        play.init((0, 0), 1024);
        play.init((0, 0), 1032);
        play.bar(0, &[0, 1, 2]);
        for round in 0..4 {
            if round > 0 && has(1) {
                play.observe((0, ALL), 1032);
            }
            play.write((0, ALL), 0);
            if has(2) {
                play.arrive((0, ALL), 1024);
            }
            play.complete(1024);
            for warp in 1..3 {
                if has(3) {
                    play.observe((warp, ALL), 1024);
                }
                play.read((warp, ALL), 0);
                if has(4) || warp == 1 {
                    play.arrive((warp, ALL), 1032);
                }
            }
            play.complete(1032);
        }
        play
    });
}

#[test]
fn a_phase_publishes_its_own_arrivals_only() {
    // Warp 0 arrives for the first phase, writes, arrives for the second; warp 1 has seen the first alone.
    let mut play = Play::block(2);
    play.init((0, 0), 1024);
    play.bar(0, &[0, 1]);
    play.arrive((0, ALL), 1024);
    play.complete(1024);
    play.write((0, ALL), 0);
    play.arrive((0, ALL), 1024);
    play.observe((1, ALL), 1024);
    play.read((1, ALL), 0);
    play.only(SharedRace);
}

#[test]
fn only_the_lane_that_waited_knows() {
    each_step_matters(1, SharedRace, |has| {
        let mut play = Play::block(2);
        play.init((0, 0), 1024);
        play.bar(0, &[0, 1]);
        play.write((0, ALL), 0);
        play.arrive((0, ALL), 1024);
        play.complete(1024);
        play.observe((1, 1), 1024);
        if has(1) {
            play.blocks[0].warp_sync(1, ALL);
        }
        play.read((1, ALL), 0);
        play
    });
}

#[test]
fn mbarrier_init_must_be_ordered_before_its_use() {
    each_step_matters(1, SharedRace, |has| {
        let mut play = Play::block(2);
        play.init((0, 0), 1024);
        if has(1) {
            play.bar(0, &[0, 1]);
        }
        play.arrive((1, 1), 1024);
        play
    });
    each_step_matters(1, SharedRace, |has| {
        let mut play = Play::block(2);
        play.init((0, 0), 1024);
        play.bar(0, &[0, 1]);
        play.arrive((1, 1), 1024);
        if has(1) {
            play.bar(0, &[0, 1]);
        }
        play.blocks[0].mbarrier_inval(0, 0, 1024, 99, &mut play.conflicts);
        play
    });
}

#[test]
fn relaxed_mbarrier_operations_order_with_fences_only() {
    each_step_matters(2, SharedRace, |has| {
        let mut play = Play::block(2);
        play.init((0, 0), 1024);
        play.bar(0, &[0, 1]);
        play.write((0, ALL), 0);
        if has(1) {
            play.blocks[0].fence(0, ALL, Fence::AcqRel(Scope::Cta));
        }
        let (relaxed, cta) = (Ordering::Relaxed, Scope::Cta);
        play.blocks[0].mbarrier_arrive(0, ALL, 1024, relaxed, cta, 90, &mut play.conflicts);
        play.complete(1024);
        play.blocks[0].mbarrier_observe(1, ALL, 1024, relaxed, cta, 91, &mut play.conflicts);
        if has(2) {
            play.blocks[0].fence(1, ALL, Fence::AcqRel(Scope::Cta));
        }
        play.read((1, ALL), 0);
        play
    });
}

#[test]
fn a_flag_in_shared_memory() {
    for with_fences in [false, true] {
        each_step_matters(2, SharedRace, |has| {
            let mut play = Play::block(2);
            let fence = |play: &mut Play, warp| play.blocks[0].fence(warp, 1, Fence::AcqRel(Scope::Cta));
            let (release, acquire) = if with_fences {
                (Ordering::Relaxed, Ordering::Volatile)
            } else if has(1) && has(2) {
                (Ordering::Release, Ordering::Acquire)
            } else if has(2) {
                (Ordering::Relaxed, Ordering::Acquire)
            } else {
                (Ordering::Release, Ordering::Relaxed)
            };
            word(&mut play, (0, 1), 0, 4, Write);
            if with_fences && has(1) {
                fence(&mut play, 0);
            }
            flag(&mut play, (0, 1), 512, Write, release);
            flag(&mut play, (1, 1), 512, Read, acquire);
            if with_fences && has(2) {
                fence(&mut play, 1);
            }
            word(&mut play, (1, 1), 0, 4, Read);
            play
        });
    }
}

#[test]
fn a_fence_speaks_for_its_own_lane() {
    // All lanes fence, lane 0 raises the flag: what lane 1 wrote is not ordered before it.
    let mut play = Play::block(2);
    play.write((0, ALL), 0);
    play.blocks[0].fence(0, ALL, Fence::AcqRel(Scope::Cta));
    flag(&mut play, (0, 1), 512, Write, Ordering::Relaxed);
    flag(&mut play, (1, ALL), 512, Read, Ordering::Acquire);
    play.read((1, 1), 0);
    play.clean();
    play.read((1, 2), 0);
    play.only(SharedRace);
}

#[test]
fn what_follows_a_fence_is_not_covered_by_it() {
    for before in [true, false] {
        let mut play = Play::block(2);
        if before {
            word(&mut play, (0, 1), 0, 4, Write);
        }
        play.blocks[0].fence(0, ALL, Fence::AcqRel(Scope::Cta));
        if !before {
            word(&mut play, (0, 1), 0, 4, Write);
        }
        flag(&mut play, (0, 1), 512, Write, Ordering::Relaxed);
        flag(&mut play, (1, 1), 512, Read, Ordering::Acquire);
        word(&mut play, (1, 1), 0, 4, Read);
        play.verdict(usize::from(!before), SharedRace);
    }
}

#[test]
fn a_fence_before_a_barrier_counts_for_the_flag_after_it() {
    each_step_matters(2, SharedRace, |has| {
        let mut play = Play::block(3);
        (0..2).for_each(|warp| play.write((warp, ALL), u64::from(warp) * 128));
        if has(1) {
            (0..2).for_each(|warp| play.blocks[0].fence(warp, ALL, Fence::Sc(Scope::Cta)));
        }
        if has(2) {
            play.bar(0, &[0, 1]);
        }
        flag(&mut play, (0, 1), 512, Atomic, Ordering::Relaxed);
        flag(&mut play, (2, ALL), 512, Read, Ordering::Acquire);
        play.read((2, ALL), 128);
        play
    });
}

#[test]
fn a_plain_store_ends_a_release_and_an_atomic_carries_it_on() {
    for (middle, ordered) in [(Write, false), (Atomic, true), (Reduce, true)] {
        let mut play = Play::block(3);
        word(&mut play, (0, 1), 0, 4, Write);
        flag(&mut play, (0, 1), 512, Write, Ordering::Release);
        flag(&mut play, (1, 1), 512, middle, Ordering::Relaxed);
        flag(&mut play, (2, 1), 512, Read, Ordering::Acquire);
        word(&mut play, (2, 1), 0, 4, Read);
        play.verdict(usize::from(!ordered), SharedRace);
    }
    // The releasing thread's own later store keeps the release.
    let mut play = Play::block(2);
    word(&mut play, (0, 1), 0, 4, Write);
    flag(&mut play, (0, 1), 512, Write, Ordering::Release);
    flag(&mut play, (0, 1), 512, Write, Ordering::Relaxed);
    flag(&mut play, (1, 1), 512, Read, Ordering::Acquire);
    word(&mut play, (1, 1), 0, 4, Read);
    play.clean();
    // So does a weak store one of whose bytes is the flag's, among many flags.
    let mut play = Play::block(2);
    word(&mut play, (0, 1), 0, 4, Write);
    (0..9).for_each(|i| flag(&mut play, (0, 1), 512 + i * 4, Write, Ordering::Release));
    word(&mut play, (0, 1), 512, 4, Write);
    for (i, reports) in [(0, 2), (1, 0)] {
        play.conflicts.clear();
        flag(&mut play, (1, 1 << i), 512 + i * 4, Read, Ordering::Acquire);
        word(&mut play, (1, 1 << i), 0, 4, Read);
        assert_eq!(play.conflicts.len(), reports, "flag {i}: {:?}", play.conflicts);
    }
    // A weak store ends it, and races with the flag's readers.
    let mut play = Play::block(2);
    word(&mut play, (0, 1), 0, 4, Write);
    flag(&mut play, (0, 1), 512, Write, Ordering::Release);
    word(&mut play, (0, 1), 512, 4, Write);
    flag(&mut play, (1, 1), 512, Read, Ordering::Acquire);
    word(&mut play, (1, 1), 0, 4, Read);
    play.only(SharedRace);
    assert_eq!(play.conflicts.len(), 2);
}

#[test]
fn a_reduction_is_no_acquire() {
    for (kind, ordered) in [(Atomic, true), (Reduce, false)] {
        let mut play = Play::block(2);
        word(&mut play, (0, 1), 0, 4, Write);
        flag(&mut play, (0, 1), 512, Write, Ordering::Release);
        flag(&mut play, (1, 1), 512, kind, Ordering::Relaxed);
        play.blocks[0].fence(1, 1, Fence::AcqRel(Scope::Cta));
        word(&mut play, (1, 1), 0, 4, Read);
        play.verdict(usize::from(!ordered), SharedRace);
    }
}

#[test]
fn strong_accesses_do_not_race_with_each_other_but_with_weak_ones() {
    let mut play = Play::block(2);
    flag(&mut play, (0, ALL), 512, Atomic, Ordering::Relaxed);
    flag(&mut play, (1, ALL), 512, Atomic, Ordering::Relaxed);
    flag(&mut play, (1, 1), 512, Write, Ordering::Volatile);
    flag(&mut play, (0, 1), 512, Read, Ordering::Volatile);
    play.clean();
    word(&mut play, (0, 1), 512, 4, Read);
    play.only(SharedRace);
}

#[test]
fn lanes_that_add_together_do_not_read_together() {
    let mut play = Play::block(1);
    flag(&mut play, (0, 0b11), 512, Atomic, Ordering::Relaxed);
    play.blocks[0].warp_sync(0, 0b11);
    word(&mut play, (0, 0b11), 512, 4, Read);
    play.clean();
    flag(&mut play, (0, 0b11), 516, Atomic, Ordering::Relaxed);
    word(&mut play, (0, 0b11), 516, 4, Read);
    play.only(SharedRace);
}

#[test]
fn a_histogram_is_read_after_every_adder() {
    // Warp 0 is ordered after the last adder and not after the first.
    for skipped in 1..4 {
        let mut play = Play::block(4);
        (1..4).for_each(|warp| flag(&mut play, (warp, ALL), 512, Atomic, Ordering::Relaxed));
        for warp in (1..4).filter(|&warp| warp != skipped) {
            play.blocks[0].barrier_arrive(1, warp, ALL, false);
        }
        play.blocks[0].barrier_arrive(1, 0, ALL, true);
        play.blocks[0].barrier_complete(1);
        word(&mut play, (0, 1), 512, 4, Read);
        play.only(SharedRace);
        assert_eq!(play.conflicts[0].other.warp, skipped);
    }
}

#[test]
fn a_weak_reset_is_remembered_behind_atomics() {
    // Warp 0 zeroes a counter and tells warp 1, which adds; warp 2 adds untold.
    let mut play = Play::block(3);
    word(&mut play, (0, 1), 512, 4, Write);
    play.bar(1, &[0, 1]);
    flag(&mut play, (1, 1), 512, Atomic, Ordering::Relaxed);
    play.clean();
    flag(&mut play, (2, 1), 512, Atomic, Ordering::Relaxed);
    play.only(SharedRace);
    assert_eq!(play.conflicts[0].other.place, 1);
}

#[test]
fn a_lock_protects_weak_accesses() {
    each_step_matters(2, SharedRace, |has| {
        let mut play = Play::block(4);
        for warp in 0..4 {
            let (take, give) = (
                if has(1) { Ordering::Acquire } else { Ordering::Relaxed },
                if has(2) { Ordering::Release } else { Ordering::Relaxed },
            );
            flag(&mut play, (warp, 1), 512, Atomic, take);
            word(&mut play, (warp, 1), 0, 4, Read);
            word(&mut play, (warp, 1), 0, 4, Write);
            flag(&mut play, (warp, 1), 512, Atomic, give);
        }
        play
    });
}

#[test]
fn nc_loads_must_not_meet_writes_of_the_launch() {
    let read_nc = |play: &mut Play, addr: u64| {
        let (kind, weak) = (AccessKind::ReadNc, Ordering::Weak);
        play.access(0, (0, 1), MemSpace::Global, &[addr; 32], 16, kind, weak, Scope::Gpu);
    };
    let mut play = Play::block(1);
    play.write_global(0, (0, 0), G + 4);
    read_nc(&mut play, G + 16);
    play.clean();
    read_nc(&mut play, G);
    play.only(NcLoadOfWritten);
    let mut play = Play::block(1);
    read_nc(&mut play, G);
    play.read_global(0, (0, 0), G + 4);
    play.clean();
    play.write_global(0, (0, 0), G + 4);
    play.only(NcLoadOfWritten);
}

#[test]
fn shared_and_global_bytes_of_one_number_are_apart() {
    let mut play = Play::block(2);
    play.write_global(0, (0, 0), 64);
    word(&mut play, (1, 1), 64, 4, Write);
    play.clean();
}
