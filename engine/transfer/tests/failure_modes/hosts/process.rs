//! A server of two ranks: decisions to both, reports from both, nothing else acts.

use super::minds::{Decode, Mind, Prefill, Work};
use super::rank::{Ends, Memory, Slot, host};
use crate::chance::Rng;
use crate::endpoints::world::ms;
use crate::words::{RANKS, UNITS};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use transfer::exchange::{Chain, Command, Decision, Report, RoomPort, RoomSeen, merge};
use transfer::hello::Side;
use transfer::ids::{RoomKey, Unit};
use transfer::layout::PagesByClass;

/// How the ranks of a server work together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// A decision reaches a rank up to that many milliseconds late.
    pub(crate) skew: u64,
    /// Off: the coordinator goes by what rank 0 saw.
    pub(crate) exchange: bool,
}

/// A decision on its way, and what prefill computes behind it.
#[derive(Debug)]
struct Order {
    decision: Decision,
    work: Vec<Work>,
}

#[derive(Debug, Default)]
struct Rank {
    chain: Chain,
    due: Duration,
    report: Option<Report>,
    /// Rooms that this rank was told of, with their pages.
    rooms: BTreeMap<RoomKey, PagesByClass>,
}

/// A server while it lives.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) side: Side,
    slots: Vec<Rc<RefCell<Slot>>>,
    ranks: Vec<Rank>,
    chain: Chain,
    order: Order,
    pub(crate) mind: Mind,
}

impl Process {
    /// The ranks' hosts run already.
    pub(crate) fn new(side: Side, slots: &[Rc<RefCell<Slot>>], rng: &mut Rng) -> Self {
        let mut chain = Chain::default();
        let order = Order { decision: chain.decide(Vec::new()), work: Vec::new() };
        let mind = match side {
            Side::Prefill => Mind::Prefill(Prefill::new()),
            Side::Decode => Mind::Decode(Decode::new(rng.next() >> 1)),
        };
        let ranks = (0..RANKS).map(|_| Rank::default()).collect();
        Self { side, slots: slots.to_vec(), ranks, chain, order, mind }
    }

    /// Lets the ranks carry out what has reached them, and decides when all have reported.
    pub(crate) fn step(&mut self, now: Duration, pace: Pace, rng: &mut Rng) -> Result<(), String> {
        let name = |number| host(self.side, number);
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            if rank.report.is_none() && rank.due <= now {
                let mut slot = self.slots[number].borrow_mut();
                let ends = slot.process.as_mut().expect("a process that runs");
                rank.carry_out(&self.order, ends).map_err(|error| format!("{}: {error}", name(number)))?;
                let rooms = ends.port.view();
                rank.look(&rooms, &ends.memory).map_err(|error| format!("{}: {error}", name(number)))?;
                let applied = rank.chain.last();
                rank.report = Some(Report { rank: number as u32, applied, rooms, ..Report::default() });
            }
        }
        let reports: Vec<Report> = self.ranks.iter().filter_map(|rank| rank.report.clone()).collect();
        if reports.len() < RANKS {
            return Ok(());
        }
        let counted = if pace.exchange { RANKS } else { 1 };
        let agreed = merge(&reports[..counted]).map_err(|error| error.to_string())?;
        let (commands, work) = self.mind.think(&agreed, rng)?;
        self.order = Order { decision: self.chain.decide(commands), work };
        for rank in &mut self.ranks {
            rank.report = None;
            rank.due = now + ms(5) + rng.between(0, pace.skew);
        }
        Ok(())
    }

    /// What is left of rooms and pages, in words.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left: Vec<_> = self.mind.left().into_iter().collect();
        for (number, slot) in self.slots.iter().enumerate() {
            let slot = slot.borrow();
            let Some(ends) = &slot.process else { continue };
            let snapshot = ends.port.snapshot();
            let rooms: Vec<_> = snapshot.rooms.iter().map(|(key, room)| format!("{key} {:?}", room.outcome)).collect();
            if !rooms.is_empty() || !snapshot.ghosts.is_empty() {
                left.push(format!("rank {number}: rooms {rooms:?}, ghosts {:?}", snapshot.ghosts));
            }
            if !snapshot.peers.iter().any(|peer| peer.ready) {
                left.push(format!("rank {number} is not connected"));
            }
        }
        left
    }

    /// Free pages of an idle server hold nothing.
    pub(crate) fn written(&self) -> Option<String> {
        let free = self.mind.free_pages();
        let written =
            self.slots.iter().map(|slot| slot.borrow().process.as_ref().map(|ends| ends.memory.written(free)));
        let written: Vec<_> = written.flatten().filter(|written| !written.is_empty()).collect();
        (!written.is_empty()).then(|| format!("{:?}: free pages were written: {written:?}", self.side))
    }

    /// Rooms that matched their sums, pages that did not, errors of all connections.
    pub(crate) fn count(&self, mut add: impl FnMut(&transfer::driver::Snapshot)) {
        self.slots.iter().for_each(|slot| slot.borrow().process.iter().for_each(|ends| add(&ends.port.snapshot())));
    }
}

impl Rank {
    fn carry_out(&mut self, order: &Order, ends: &mut Ends) -> Result<(), String> {
        self.chain.follow(&order.decision).map_err(|error| error.to_string())?;
        for command in &order.decision.commands {
            self.obey(command, ends)?;
            ends.port.apply(command).map_err(|error| error.to_string())?;
        }
        for &(key, unit) in &order.work {
            let Some(pages) = self.rooms.get(&key) else { continue };
            ends.memory.compute(key, unit, pages);
            ends.port.layer_done(key, unit).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// What a command means for the pages.
    fn obey(&mut self, command: &Command, ends: &mut Ends) -> Result<(), String> {
        match command {
            Command::Open { key, pages, .. } => {
                let written = ends.memory.written(pages);
                if !written.is_empty() {
                    return Err(format!("{key}: pages were written while they were nobody's: {written:?}"));
                }
                self.rooms.insert(*key, pages.clone());
            }
            Command::Accept { key, pages } => _ = self.rooms.insert(*key, pages.clone()),
            Command::Taken { key } => {
                let pages = self.rooms.get(key).ok_or(format!("{key} was taken and is not known"))?;
                for unit in (0..UNITS).map(Unit) {
                    let holds = ends.memory.holds(*key, unit, pages);
                    if (holds.poison, holds.foreign) != (0, 0) {
                        return Err(format!("{key} unit {unit} was taken with wrong bytes: {holds:?}"));
                    }
                }
            }
            Command::Forget { key } => {
                if let Some(pages) = self.rooms.remove(key) {
                    ends.memory.poison(&pages);
                }
            }
            Command::Done { .. } | Command::Abort { .. } => {}
        }
        Ok(())
    }

    /// Every unit that has landed holds its room's bytes, and nothing else was ever written into the pages of a room.
    fn look(&self, view: &BTreeMap<RoomKey, RoomSeen>, memory: &Memory) -> Result<(), String> {
        for (key, pages) in &self.rooms {
            let seen = view.get(key).filter(|seen| seen.failed.is_none());
            for unit in (0..UNITS).map(Unit) {
                let holds = memory.holds(*key, unit, pages);
                let landed = seen.is_some_and(|seen| seen.landed.contains(unit));
                if holds.foreign > 0 || landed && holds.poison > 0 {
                    return Err(format!("{key} unit {unit}: {holds:?}, landed {landed}"));
                }
            }
        }
        Ok(())
    }
}
