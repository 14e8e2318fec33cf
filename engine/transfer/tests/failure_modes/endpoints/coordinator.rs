//! The two servers' loops, as small as they can be: what all ranks see together leads to the same commands on all.

use super::pool::Pool;
use super::world::{World, ms};
use crate::words::{RANKS, UNITS, layout};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use transfer::endpoint::{NewRoom, RoomView};
use transfer::hello::Side;
use transfer::ids::{RoomKey, Unit};
use transfer::layout::{Layout, PagesByClass};
use transfer::reason::{Code, Reason};
use transfer::room::{Outcome, UnitSet};

/// What a page of a room must hold.
fn content(key: RoomKey, rank: usize, unit: Unit, item: usize, page: usize) -> u64 {
    [u64::from(key.epoch), rank as u64, u64::from(unit.0), item as u64, page as u64]
        .into_iter()
        .fold(key.room, |sum, part| (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
}

/// Offsets of a unit's pages in the order of the layout, with their contents.
fn unit_pages(layout: &Layout, key: RoomKey, rank: usize, unit: Unit, pages: &PagesByClass) -> Vec<(u64, u64)> {
    let items = layout.unit(unit).enumerate();
    let places = items.flat_map(|(i, item)| {
        let pages = pages[item.spec.class.0 as usize].iter().enumerate();
        pages.map(move |(p, &page)| (layout.place(item, page).0, content(key, rank, unit, i, p)))
    });
    places.collect()
}

fn views(world: &World, number: usize, key: RoomKey) -> Vec<Option<RoomView>> {
    world.processes[number].ranks.iter().map(|rank| rank.endpoint.room(key)).collect()
}

fn failure(views: &[Option<RoomView>]) -> Option<Reason> {
    views.iter().flatten().find_map(|view| match &view.outcome {
        Outcome::Failed(reason) => Some(reason.clone()),
        Outcome::Opening | Outcome::Placed | Outcome::Moving | Outcome::Published | Outcome::Finished => None,
    })
}

fn abort(world: &mut World, number: usize, key: RoomKey, reason: &Reason) {
    let now = world.now;
    world.processes[number].ranks.iter_mut().for_each(|rank| rank.endpoint.abort(key, reason.clone(), now));
}

fn all(views: &[Option<RoomView>], holds: impl Fn(&RoomView) -> bool) -> bool {
    views.len() == RANKS && views.iter().all(|view| view.as_ref().is_some_and(&holds))
}

#[derive(Debug)]
struct Live {
    pages: PagesByClass,
    tries: u32,
    answered: Option<Result<(), Reason>>,
    verified: [UnitSet; RANKS],
    /// The client goes away when the room is that far.
    abort_at: Option<u8>,
    since: Duration,
}

/// Decode's loop.
#[derive(Debug)]
pub(crate) struct DecodeSide {
    pool: Pool,
    waiting: VecDeque<(RoomKey, u32, Option<u8>)>,
    live: BTreeMap<RoomKey, Live>,
    next_room: u64,
    /// From OPEN until all pages were back, of rooms that failed.
    pub(crate) slowest_failure: Duration,
}

impl DecodeSide {
    pub(crate) fn new(first_room: u64) -> Self {
        let (waiting, live) = (VecDeque::new(), BTreeMap::new());
        Self { pool: Pool::new(Side::Decode), waiting, live, next_room: first_room, slowest_failure: ms(0) }
    }

    /// A request; one that fails is repeated under the next epoch while `tries` are left.
    pub(crate) fn request(&mut self, tries: u32) {
        self.request_aborted_at(tries, None);
    }

    /// A request whose client goes away at a stage: 0 Opening, 1 Placed, 2 Moving, 3 Published.
    pub(crate) fn request_aborted_at(&mut self, tries: u32, abort_at: Option<u8>) {
        self.next_room += 1;
        self.waiting.push_back((RoomKey { room: self.next_room, epoch: 1 }, tries, abort_at));
    }

    pub(crate) fn left(&self) -> Option<String> {
        let idle = self.pool.is_full() && self.waiting.is_empty() && self.live.is_empty();
        (!idle).then(|| format!("pages {:?}, waiting {:?}, live {:?}", self.pool.free(), self.waiting, self.live))
    }

    pub(crate) fn step(&mut self, world: &mut World, number: usize) {
        let keys: Vec<_> = self.live.keys().copied().collect();
        for key in keys {
            self.look_at(world, number, key);
        }
        self.admit(world, number);
    }

    fn look_at(&mut self, world: &mut World, number: usize, key: RoomKey) {
        let now = world.now;
        let views = views(world, number, key);
        let Some(live) = self.live.get_mut(&key) else { return };
        for (rank, view) in views.iter().enumerate() {
            let Some(view) = view.as_ref().filter(|view| !matches!(view.outcome, Outcome::Failed(_))) else { continue };
            for unit in view.landed.without(live.verified[rank]).iter() {
                verify(world, number, rank, key, unit, &live.pages);
            }
            live.verified[rank] = view.landed;
        }
        if live.answered.is_none() {
            let stage = views.iter().flatten().filter_map(|view| view.outcome.stage()).min();
            let leaves = stage.is_some_and(|stage| live.abort_at == Some(stage as u8));
            let leaves = leaves || (world.faulty() && world.rng.chance(world.faults.abort));
            let gone = leaves.then(|| Reason::new(Code::Aborted, "the client is gone"));
            if let Some(reason) = failure(&views).or(gone) {
                abort(world, number, key, &reason);
                live.answered = Some(Err(reason.clone()));
                answer(world, key, Err(reason));
            } else if all(&views, |view| view.outcome == Outcome::Published) {
                for (rank, view) in views.iter().enumerate() {
                    // Once more at the last moment: a late write shows here.
                    (0..UNITS).for_each(|unit| verify(world, number, rank, key, Unit(unit), &live.pages));
                    let record = view.as_ref().and_then(|view| view.handover.clone());
                    if record.as_deref() != Some(&key.room.to_le_bytes()[..]) {
                        world.violation(format!("{key} rank {rank}: handover record {record:?}"));
                    }
                    let taken = world.processes[number].ranks[rank].endpoint.taken(key, now);
                    taken.unwrap_or_else(|error| world.violation(error.to_string()));
                }
                live.answered = Some(Ok(()));
                answer(world, key, Ok(()));
            }
        }
        let views = self::views(world, number, key);
        if live.answered.is_none() || !all(&views, |view| view.free) {
            return;
        }
        let live = self.live.remove(&key).unwrap();
        for rank in &mut world.processes[number].ranks {
            rank.owners.retain(|_, owner| *owner != key);
            rank.endpoint.forget(key).unwrap();
        }
        self.pool.give(&live.pages);
        if let Some(Err(_)) = live.answered {
            self.slowest_failure = self.slowest_failure.max(now - live.since);
            if live.tries > 1 {
                let again = RoomKey { epoch: key.epoch + 1, ..key };
                self.waiting.push_back((again, live.tries - 1, None));
            }
        }
    }

    fn admit(&mut self, world: &mut World, number: usize) {
        while let Some(&(key, tries, abort_at)) = self.waiting.front() {
            let peers: Vec<_> = world.processes[number]
                .ranks
                .iter()
                .filter_map(|rank| rank.endpoint.peers().find(|peer| peer.ready).map(|peer| peer.id))
                .collect();
            if peers.len() < RANKS {
                return;
            }
            let Some(pages) = self.pool.take(&[1 + (key.room % 2) as usize, 1]) else { return };
            self.waiting.pop_front();
            let layout = layout(Side::Decode);
            let (now, request) = (world.now, Arc::from(key.room.to_le_bytes()));
            for (rank, peer) in peers.into_iter().enumerate() {
                let state = &mut world.processes[number].ranks[rank];
                for unit in (0..UNITS).map(Unit) {
                    for (offset, _) in unit_pages(&layout, key, rank, unit, &pages) {
                        state.owners.insert(offset, key);
                    }
                }
                let (request, pages) = (Arc::clone(&request), pages.clone());
                let new = NewRoom { key, peer, request, pages, deadline: None, priority: 0 };
                state.endpoint.open(new, now).unwrap();
            }
            let verified = [UnitSet::EMPTY; RANKS];
            self.live.insert(key, Live { pages, tries, answered: None, verified, abort_at, since: now });
        }
    }
}

/// Exactly one answer per room and epoch.
fn answer(world: &mut World, key: RoomKey, result: Result<(), Reason>) {
    if !world.answers.insert(key) {
        world.violation(format!("{key} was answered twice"));
    }
    match result {
        Ok(()) => world.tally.answered += 1,
        Err(reason) => {
            world.tally.failed += 1;
            *world.tally.reasons.entry(reason.to_string()).or_insert(0) += 1;
        }
    }
}

/// All pages of a landed unit hold what was sent, and what should have been sent.
fn verify(world: &mut World, number: usize, rank: usize, key: RoomKey, unit: Unit, pages: &PagesByClass) {
    let state = &world.processes[number].ranks[rank];
    let sums = state.endpoint.checksums(key, unit).unwrap_or_default();
    let places = unit_pages(&layout(Side::Decode), key, rank, unit, pages);
    let wrong: Vec<_> = places
        .iter()
        .enumerate()
        .filter(|(i, (offset, value))| state.memory.get(offset) != Some(value) || sums.get(*i) != Some(value))
        .map(|(_, (offset, _))| *offset)
        .collect();
    if !wrong.is_empty() {
        world.violation(format!("{key} rank {rank} unit {unit}: foreign bytes at {wrong:?}"));
    }
}

#[derive(Debug, Default)]
struct Work {
    pages: Option<PagesByClass>,
    next: [u32; RANKS],
    over: bool,
}

/// Prefill's loop.
#[derive(Debug)]
pub(crate) struct PrefillSide {
    pool: Pool,
    live: BTreeMap<RoomKey, Work>,
    /// When the next step comes by itself.
    next: Option<Duration>,
}

impl PrefillSide {
    pub(crate) fn new() -> Self {
        Self { pool: Pool::new(Side::Prefill), live: BTreeMap::new(), next: None }
    }

    pub(crate) fn left(&self) -> Option<String> {
        let idle = self.pool.is_full() && self.live.is_empty();
        (!idle).then(|| format!("pages {:?}, live {:?}", self.pool.free(), self.live))
    }

    pub(crate) fn step(&mut self, world: &mut World, number: usize) {
        self.next = self.next.filter(|&next| next > world.now);
        let keys = world.processes[number].ranks.iter().flat_map(|rank| rank.endpoint.view().into_keys());
        for key in keys.collect::<Vec<_>>() {
            self.live.entry(key).or_default();
        }
        let keys: Vec<_> = self.live.keys().copied().collect();
        for key in keys {
            self.look_at(world, number, key);
        }
        if self.next.is_none() && self.live.values().any(|work| work.pages.is_some() && !work.over) {
            let time = world.rng.between(1, 30);
            self.next = Some(world.now + time);
            world.step_in(time, number);
        }
    }

    fn look_at(&mut self, world: &mut World, number: usize, key: RoomKey) {
        let views = views(world, number, key);
        let Some(work) = self.live.get_mut(&key) else { return };
        if let Some(reason) = failure(&views).filter(|_| !work.over) {
            work.over = true;
            // On the ranks that have not seen it yet, too.
            abort(world, number, key, &reason);
        }
        let views = self::views(world, number, key);
        if views.iter().flatten().all(|view| view.free) {
            for rank in &mut world.processes[number].ranks {
                if rank.endpoint.room(key).is_some() {
                    rank.endpoint.forget(key).unwrap();
                }
            }
            let work = self.live.remove(&key).unwrap();
            work.pages.iter().for_each(|pages| self.pool.give(pages));
            return;
        }
        // A sibling rank may have finished already.
        if work.over || !all(&views, |_| true) {
            return;
        }
        match &work.pages {
            None => {
                if world.faulty() && world.rng.chance(world.faults.refuse) {
                    work.over = true;
                    return abort(world, number, key, &Reason::new(Code::Refused, format!("refusé: {key}")));
                }
                let counts: Vec<_> = views[0].iter().flat_map(|view| view.pages.iter().map(Vec::len)).collect();
                let Some(pages) = self.pool.take(&counts) else { return };
                for rank in &mut world.processes[number].ranks {
                    rank.endpoint.place(key, pages.clone(), world.now).unwrap();
                }
                work.pages = Some(pages);
            }
            Some(pages) => {
                for rank in 0..RANKS {
                    let unit = work.next[rank];
                    if unit < UNITS && world.rng.chance(600) {
                        compute(world, number, rank, key, Unit(unit), pages);
                        work.next[rank] += 1;
                    }
                    if unit + 1 == UNITS && work.next[rank] == UNITS {
                        let (record, now) = (Arc::from(key.room.to_le_bytes()), world.now);
                        world.processes[number].ranks[rank].endpoint.finish(key, record, now).unwrap();
                    }
                }
            }
        }
    }
}

/// Writes a unit's pages and hands it over for sending.
fn compute(world: &mut World, number: usize, rank: usize, key: RoomKey, unit: Unit, pages: &PagesByClass) {
    let now = world.now;
    let places = unit_pages(&layout(Side::Prefill), key, rank, unit, pages);
    let state = &mut world.processes[number].ranks[rank];
    state.memory.extend(places.iter().copied());
    let sums = places.into_iter().map(|(_, value)| value).collect();
    state.endpoint.unit_ready(key, unit, sums, now).unwrap();
}
