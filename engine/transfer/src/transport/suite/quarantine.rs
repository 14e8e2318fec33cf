//! F2: a pool so small that pages are reused at once, half of the rooms aborted while they travel.

use super::super::{End, Op};
use super::*;
use crate::fault::mix;
use std::collections::BTreeMap;

const WRITER: PeerId = PeerId(1);
const TARGET: PeerId = PeerId(2);
const ROOMS: u64 = 60;

/// Landing pages. A room's have two owners: its request, and its writer until there is proof.
struct Pool {
    free: PagesByClass,
    rooms: BTreeMap<RoomKey, Held>,
    /// False: pages go with the request alone, which is what quarantine is there against.
    until_proof: bool,
}

struct Held {
    pages: PagesByClass,
    request: bool,
    writer: bool,
}

impl Pool {
    fn of(layout: &Layout, until_proof: bool) -> Self {
        let free = layout.classes().iter().map(|class| (0..class.num_pages).rev().collect()).collect();
        Self { free, rooms: BTreeMap::new(), until_proof }
    }

    fn take(&mut self, room: RoomKey, counts: &[usize]) -> Option<PagesByClass> {
        let fits = self.free.iter().zip(counts).all(|(free, &count)| free.len() >= count);
        let take = |(free, &count): (&mut Vec<u32>, &usize)| free.split_off(free.len() - count);
        let pages: PagesByClass = fits.then(|| self.free.iter_mut().zip(counts).map(take).collect())?;
        self.rooms.insert(room, Held { pages: pages.clone(), request: true, writer: self.until_proof });
        Some(pages)
    }

    /// One owner less; without any the pages are free.
    fn leave(&mut self, room: RoomKey, leave: impl Fn(&mut Held)) {
        let Some(held) = self.rooms.get_mut(&room) else { return };
        leave(held);
        if held.request || held.writer {
            return;
        }
        for (free, pages) in self.free.iter_mut().zip(self.rooms.remove(&room).into_iter().flat_map(|held| held.pages))
        {
            free.extend(pages);
        }
    }

    fn request_leaves(&mut self, room: RoomKey) {
        self.leave(room, |held| held.request = false);
    }

    fn writer_leaves(&mut self, room: RoomKey) {
        self.leave(room, |held| held.writer = false);
    }
}

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
    let foreign = foreign_bytes(rig, true);
    assert_eq!(foreign, Vec::<String>::new());
}

/// Runs rooms and returns the reports of those that have foreign bytes. Pages are reused when there is proof, or as soon as their
/// request has gone. A failed post leads to tear-down of its peer, after which a new writer takes over.
pub fn foreign_bytes(rig: &mut dyn Rig, until_proof: bool) -> Vec<String> {
    let mut target = Side::new(rig, 16);
    let mut pool = Pool::of(&target.layout, until_proof);
    let (mut foreign, mut done, mut incarnation) = (Vec::new(), 0, 0);
    while done < ROOMS {
        incarnation += 100;
        let mut writer = Side::new(rig, 64);
        let (writer_is, target_is) = (PeerId(WRITER.0 + incarnation), PeerId(TARGET.0 + incarnation));
        connect(&mut writer, &mut target, target_is, writer_is);
        let (mut travelling, mut unproven): (Vec<Travelling>, Vec<_>) = Default::default();
        let mut failed = false;
        let start = Instant::now();
        while !failed && (done < ROOMS || !travelling.is_empty() || (until_proof && !unproven.is_empty())) {
            assert!(start.elapsed() < PATIENCE, "rooms do not end");
            let room = done + 1;
            let tag = RoomKey { room, epoch: 1 };
            let src: PagesByClass =
                vec![vec![(room * 7 % 64) as u32, ((room * 7 + 1) % 64) as u32], vec![(room % 32) as u32]];
            let free = !travelling.iter().any(|other| overlap(&other.src, &src));
            if done < ROOMS
                && free
                && let Some(dst) = pool.take(tag, &[2, 1])
            {
                done += 1;
                target.transport.admit(tag);
                writer.compute(room, &src);
                let ticket = writer.post(Op::Write, target_is, tag, copies(&writer, &src, &target, &dst));
                travelling.push(Travelling { tag, src, dst, ticket, aborted: mix(room).is_multiple_of(2) });
                let last = travelling.len() - 1;
                if travelling[last].aborted {
                    // The request goes at once, while its writer is at work.
                    pool.request_leaves(tag);
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
                pool.request_leaves(room.tag);
                unproven.push((room.tag, room.ticket));
            }
            unproven.retain(|&(tag, ticket)| {
                let proven = writer.transport.prove_quiet(target_is, ticket).is_some();
                if proven {
                    target.transport.expire(tag);
                    pool.writer_leaves(tag);
                }
                !proven
            });
            rig.wait();
            if failed && !until_proof {
                // Without quarantine nobody would think of a tear-down.
                failed = false;
            }
        }
        for room in travelling {
            pool.request_leaves(room.tag);
        }
        target.transport.tear_down(writer_is);
        for tag in pool.rooms.keys().copied().collect::<Vec<_>>() {
            target.transport.expire(tag);
            pool.writer_leaves(tag);
        }
    }
    for (mut free, pages) in pool.free.into_iter().zip([16, 8]) {
        free.sort_unstable();
        assert_eq!(free, (0..pages).collect::<Vec<u32>>(), "every page once");
    }
    foreign
}

fn overlap(a: &PagesByClass, b: &PagesByClass) -> bool {
    a.iter().zip(b).any(|(a, b)| a.iter().any(|page| b.contains(page)))
}
