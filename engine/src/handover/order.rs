//! What every rank gets at once: a step, the decision that goes with it, and the pages that change hands.

use super::PageMove;
use crate::host_cache::HostOrders;
use crate::ids::Generation;
use crate::step::{StepEntry, StepPlan};
use std::sync::Arc;
use transfer::exchange::{Command, Decision};
use transfer::gate::{GateError, Holder, PageGate, Pages, PendingPages, Tag};
use transfer::ids::{Class, RoomKey, Unit};

/// Pages by class.
type Lists = Vec<(Class, Vec<u32>)>;

/// Cache pages of one class and one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRun {
    /// Class.
    pub class: Class,
    /// Pages.
    pub pages: Vec<u32>,
    /// Who was given them.
    pub generation: Generation,
}

impl PageRun {
    /// The run as the gate knows it.
    ///
    /// # Errors
    /// A generation that no word holds.
    pub fn tagged(&self) -> Result<Pages<'_>, GateError> {
        Ok(Pages { class: self.class, pages: &self.pages, tag: tag(self.generation)? })
    }

    /// Claims the pages of `runs` that are not their generation's yet; the pages of a generation are pending together. Who had
    /// one of them before has given it back, or the scheduler would not have given it away.
    ///
    /// # Errors
    /// A page that is not there or still in use.
    pub fn claim(runs: &[PageRun], gate: &PageGate) -> Result<Vec<PendingPages>, GateError> {
        let mut claims: Vec<(Tag, Lists)> = Vec::new();
        for run in runs {
            let tag = tag(run.generation)?;
            let mut new = Vec::new();
            for &page in &run.pages {
                match gate.holder(run.class, page)? {
                    Holder::Tag(holder) if holder == tag => continue,
                    Holder::Tag(tag) => gate.revoke(&[Pages { class: run.class, pages: &[page], tag }])?,
                    Holder::Free | Holder::Revoked => {}
                }
                new.push(page);
            }
            if new.is_empty() {
                continue;
            }
            match claims.iter_mut().find(|(claimed, _)| *claimed == tag) {
                Some((_, lists)) => lists.push((run.class, new)),
                None => claims.push((tag, vec![(run.class, new)])),
            }
        }
        let claim = |(tag, lists): (Tag, Lists)| {
            let lists: Vec<(Class, &[u32])> = lists.iter().map(|(class, pages)| (*class, pages.as_slice())).collect();
            gate.claim(&lists, tag)
        };
        claims.into_iter().map(claim).collect()
    }

    /// The cache pages of `moves`, all of one generation.
    pub fn of_moves(moves: &[PageMove], generation: Generation) -> Vec<Self> {
        let mut runs = Vec::new();
        moves.iter().for_each(|page| Self::push(&mut runs, page.class, page.cache, generation));
        runs
    }

    /// Adds a page to the last of `runs` if it is of the same class and generation, else as a run of its own.
    pub fn push(runs: &mut Vec<PageRun>, class: Class, page: u32, generation: Generation) {
        match runs.last_mut() {
            Some(run) if run.class == class && run.generation == generation => run.pages.push(page),
            _ => runs.push(PageRun { class, pages: vec![page], generation }),
        }
    }
}

/// An admission as the gate knows it: requests of a single process use their own number as room and 1 as epoch.
fn tag(generation: Generation) -> Result<Tag, GateError> {
    Tag::new(RoomKey { room: generation.0, epoch: 1 })
}

/// Landed units to copy into cache pages before the step runs.
#[derive(Debug, Clone)]
pub struct Import {
    /// Room.
    pub key: RoomKey,
    /// Units that landed on every rank and are not in the cache yet.
    pub units: Vec<Unit>,
    /// Pages, the same for all units.
    pub pages: Arc<[PageMove]>,
    /// Whose the cache pages are.
    pub generation: Generation,
}

impl Import {
    /// The cache pages, as runs.
    pub fn runs(&self) -> Vec<PageRun> {
        PageRun::of_moves(&self.pages, self.generation)
    }
}

/// Pages to copy into the arena, unit by unit, as the step finishes them.
#[derive(Debug, Clone)]
pub struct Export {
    /// Room.
    pub key: RoomKey,
    /// Pages, the same for all units.
    pub pages: Vec<PageMove>,
    /// The cache pages among them, by who was given them.
    pub runs: Vec<PageRun>,
}

impl Export {
    /// The pages that `needed` names of an entry, to the pages `arena`. `None` if the tables lack one.
    pub fn of_entry(
        key: RoomKey,
        entry: &StepEntry,
        needed: &super::Needed,
        arena: &transfer::layout::PagesByClass,
    ) -> Option<Self> {
        let cache = needed.pages(&entry.compressed_table, &entry.window_table, entry.request_slot)?;
        let generations = &entry.generations;
        let places = [&needed.compressed, &needed.window];
        let mut runs = Vec::new();
        for (class, (place, of)) in (0..).zip(places.into_iter().zip([&generations.compressed, &generations.window])) {
            let of = of.get(place.start as usize..place.end as usize)?;
            for (&page, &generation) in cache[class as usize].iter().zip(of) {
                PageRun::push(&mut runs, Class(class), page, generation);
            }
        }
        cache[2].iter().for_each(|&slot| PageRun::push(&mut runs, Class(2), slot, generations.own));
        Some(Self { key, pages: PageMove::pairs(&cache, arena), runs })
    }
}

/// What an exchange is to bring about.
#[derive(Debug, Clone)]
pub struct Work {
    /// The step; without entries, nothing runs.
    pub plan: StepPlan,
    /// Commands for the rooms, before everything else.
    pub commands: Vec<Command>,
    /// Then these.
    pub imports: Vec<Import>,
    /// Then the step, and while it runs these.
    pub exports: Vec<Export>,
    /// Loads begin before the step, saves are read behind it.
    pub host: HostOrders,
}

impl From<StepPlan> for Work {
    fn from(plan: StepPlan) -> Self {
        let (commands, imports, exports, host) = (Vec::new(), Vec::new(), Vec::new(), HostOrders::default());
        Self { plan, commands, imports, exports, host }
    }
}

/// One exchange, as the ranks get it.
#[derive(Debug, Clone)]
pub struct Order {
    /// The step; without entries, nothing runs.
    pub plan: StepPlan,
    /// Commands for the rooms, before everything else.
    pub decision: Decision,
    /// Then these.
    pub imports: Vec<Import>,
    /// Then the step, and while it runs these.
    pub exports: Vec<Export>,
    /// Loads begin before the step, saves are read behind it.
    pub host: HostOrders,
}
