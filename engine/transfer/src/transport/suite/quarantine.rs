//! F2: a pool so small that pages are reused at once, half of the rooms aborted while they travel.

use super::super::{End, Op};
use super::*;
use crate::fault::{Faults, mix};
use crate::landing::{LandingPool, Leaving, Owner};
use crate::room::Proof;

const WRITER: PeerId = PeerId(1);
const TARGET: PeerId = PeerId(2);
const ROOMS: u64 = 60;

/// A room that travels.
struct Travelling {
    tag: RoomKey,
    src: PagesByClass,
    dst: PagesByClass,
    ticket: Ticket,
    aborted: bool,
}

/// Rooms of one pool of landing pages: every room that was not aborted matches, whatever the aborted ones still wrote.
pub fn pages_are_reused_only_after_proof(rig: &mut dyn Rig) {
    let foreign = foreign_bytes(rig, "");
    assert_eq!(foreign, Vec::<String>::new());
}

/// Runs rooms and returns the reports of those that have foreign bytes. A failed post leads to tear-down of its peer, after
/// which a new writer takes over.
pub fn foreign_bytes(rig: &mut dyn Rig, pool_faults: &str) -> Vec<String> {
    let mut target = Side::new(rig, 16);
    let faults = Arc::new(Faults::parse(pool_faults).expect("faults"));
    let mut pool = LandingPool::of(&target.layout, u64::MAX, PATIENCE, faults);
    let (mut foreign, mut done, mut incarnation) = (Vec::new(), 0, 0);
    while done < ROOMS {
        incarnation += 100;
        let mut writer = Side::new(rig, 64);
        let (writer_is, target_is) = (PeerId(WRITER.0 + incarnation), PeerId(TARGET.0 + incarnation));
        connect(&mut writer, &mut target, target_is, writer_is);
        let (mut travelling, mut unproven): (Vec<Travelling>, Vec<_>) = Default::default();
        let mut failed = false;
        let start = Instant::now();
        while !failed && (done < ROOMS || !travelling.is_empty() || (pool_faults.is_empty() && !unproven.is_empty())) {
            assert!(start.elapsed() < PATIENCE, "rooms do not end");
            let room = done + 1;
            let tag = RoomKey { room, epoch: 1 };
            let src: PagesByClass =
                vec![vec![(room * 7 % 64) as u32, ((room * 7 + 1) % 64) as u32], vec![(room % 32) as u32]];
            let free = !travelling.iter().any(|other| overlap(&other.src, &src));
            if done < ROOMS
                && free
                && let Some(dst) = pool.alloc(tag, writer_is, &[2, 1]).expect("a new room")
            {
                done += 1;
                pool.enter(tag, Owner::Writer).expect("its first writer");
                target.transport.admit(tag);
                writer.compute(room, &src);
                let ticket = writer.post(Op::Write, target_is, tag, copies(&writer, &src, &target, &dst));
                travelling.push(Travelling { tag, src, dst, ticket, aborted: mix(room).is_multiple_of(2) });
                let last = travelling.len() - 1;
                if travelling[last].aborted {
                    // The request goes at once, while its writer is at work.
                    pool.release(tag, Leaving::Request, start.elapsed()).expect("owned");
                }
            }
            let mut i = 0;
            while i < travelling.len() {
                let Some(end) = writer.ended(travelling[i].ticket) else {
                    i += 1;
                    continue;
                };
                let room = travelling.swap_remove(i);
                failed |= matches!(end, End::Failed(_));
                // A failed room is judged by nobody; its request leaves, its writer does not.
                if end == End::Done && !room.aborted {
                    let report = compared(&target, &room.dst, &writer, &room.src);
                    if !report.matches() {
                        foreign.push(format!("{}: {report}", room.tag));
                    }
                }
                if !room.aborted {
                    let _ = pool.release(room.tag, Leaving::Request, start.elapsed());
                }
                unproven.push((room.tag, room.ticket));
            }
            unproven.retain(|&(tag, ticket)| {
                let proven = writer.transport.prove_quiet(target_is, ticket).is_some();
                if proven {
                    target.transport.expire(tag);
                    let _ = pool.release(tag, Leaving::Writer(Proof::Done), start.elapsed());
                }
                !proven
            });
            rig.wait();
            if failed && !pool_faults.is_empty() {
                // Without quarantine nobody would think of a tear-down.
                failed = false;
            }
        }
        for room in travelling {
            if !room.aborted {
                pool.release(room.tag, Leaving::Request, start.elapsed()).expect("owned");
            }
        }
        target.transport.tear_down(writer_is);
        for tag in pool.rooms().collect::<Vec<_>>() {
            target.transport.expire(tag);
            let _ = pool.release(tag, Leaving::Writer(Proof::TornDown), start.elapsed());
        }
        pool.audit().expect("balanced");
    }
    assert_eq!(pool.num_free(), [16, 8]);
    foreign
}

fn overlap(a: &PagesByClass, b: &PagesByClass) -> bool {
    a.iter().zip(b).any(|(a, b)| a.iter().any(|page| b.contains(page)))
}
