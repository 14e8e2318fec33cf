//! The one way to a readable page.
//!
//! A page of the cache belongs to the generation that its word names ([`Tag`]: room and epoch of whoever filled it). It is
//! claimed ([`PendingPages`]: writable, not readable), filled, published unit by unit, read ([`ReadablePages`]: no other
//! code can make one) and revoked. KV rows, index keys and compressor state of a unit are published by one call, whether
//! they were computed here, came from a peer or from host memory, so no reader can have waited for one and read another.
//!
//! A tag that differs is an error naming both, never a wait. A page revoked while it is read or filled stays unclaimable
//! until those readers and landings are gone: [`GateError::Busy`].
//!
//! Readers load two words per page without a lock; everything that changes a page does so under one mutex.

mod countdown;
mod error;
#[cfg(all(test, loom))]
mod loom_tests;
mod tag;
#[cfg(all(test, not(loom)))]
mod tests;

pub use countdown::Countdown;
pub use error::GateError;
pub use tag::{Holder, Tag};

use crate::fault::Faults;
use crate::ids::{Class, Unit};
use crate::layout::ClassSpec;
#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
use std::time::Instant;

/// Pages of one class and one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages<'a> {
    /// Class.
    pub class: Class,
    /// Page numbers.
    pub pages: &'a [u32],
    /// The generation at which the reader was given them. A shared prefix keeps the tag of the room that filled it.
    pub tag: Tag,
}

/// Who is in: readers and landings, so that a revoked page is not claimed under them.
#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Number of the entrance and the generations that are read or filled.
    inside: Vec<(u64, Vec<Tag>)>,
    /// Pages revoked and not claimed since: last generation, and the first entrance that cannot have seen it.
    revoked: BTreeMap<(Class, u32), (Tag, u64)>,
}

/// Tags and published units of the cache pages of one rank.
#[derive(Debug)]
pub struct PageGate {
    /// Per page: the tag, then one bit per unit.
    words: Box<[AtomicU64]>,
    stride: usize,
    classes: Box<[(ClassSpec, usize)]>,
    num_units: u32,
    faults: Arc<Faults>,
    state: Mutex<State>,
    news: Condvar,
}

/// Pages that may be filled and not yet read. Whoever holds this publishes them.
#[derive(Debug)]
pub struct PendingPages {
    tag: Tag,
    pages: Vec<(Class, Vec<u32>)>,
}

impl PendingPages {
    /// Their generation.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Page numbers by class, as they were claimed.
    pub fn pages(&self) -> impl Iterator<Item = Pages<'_>> {
        self.pages.iter().map(|(class, pages)| Pages { class: *class, pages, tag: self.tag })
    }
}

/// Proof that a unit of these pages has landed whole; while it lives, none of them is given to anybody else.
#[derive(Debug)]
pub struct ReadablePages<'a> {
    unit: Unit,
    runs: &'a [Pages<'a>],
    _inside: Inside<'a>,
}

impl<'a> ReadablePages<'a> {
    /// The unit that may be read.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The pages that may be read.
    pub fn runs(&self) -> &'a [Pages<'a>] {
        self.runs
    }
}

/// An entrance, left on drop.
#[derive(Debug)]
struct Inside<'a> {
    gate: &'a PageGate,
    number: u64,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.number);
    }
}

impl PageGate {
    /// A gate over free pages. `faults` may hold a rule for [`crate::fault::Point::Gate`] by item name.
    pub fn new(classes: &[ClassSpec], num_units: u32, faults: Arc<Faults>) -> Self {
        let mut first = 0;
        let classes: Box<[_]> = classes
            .iter()
            .map(|class| {
                let start = first;
                first += class.num_pages as usize;
                (class.clone(), start)
            })
            .collect();
        let stride = 1 + num_units.div_ceil(u64::BITS) as usize;
        let words = (0..first * stride).map(|_| AtomicU64::new(0)).collect();
        Self { words, stride, classes, num_units, faults, state: Mutex::default(), news: Condvar::new() }
    }

    /// Units there are.
    pub fn num_units(&self) -> u32 {
        self.num_units
    }

    /// Takes free pages for a generation, all or none; no unit of them is published.
    ///
    /// # Errors
    /// A page of somebody else, one revoked but still in use, one that is not there or stands twice.
    pub fn claim(&self, pages: &[(Class, &[u32])], tag: Tag) -> Result<PendingPages, GateError> {
        let mut state = self.lock();
        for &(class, list) in pages {
            for &page in list {
                let words = self.page(class, page)?;
                let name = || self.classes[class.0 as usize].0.name.clone();
                match Holder::of(words[0].load(Ordering::Relaxed)) {
                    Holder::Free => {}
                    Holder::Revoked => {
                        let (by, barrier) = state.revoked[&(class, page)];
                        if state.inside.iter().any(|(number, tags)| *number < barrier && tags.contains(&by)) {
                            return Err(GateError::Busy { class: name(), page, claimed: tag, by });
                        }
                    }
                    by => return Err(GateError::Taken { class: name(), page, claimed: tag, by }),
                }
            }
        }
        self.no_page_twice(pages, tag)?;
        for &(class, list) in pages {
            for &page in list {
                let [word, units @ ..] = self.page(class, page)? else { continue };
                for unit in units {
                    unit.store(0, Ordering::Relaxed);
                }
                // Release: who sees the new tag sees no unit of the old one.
                word.store(tag.word(), Ordering::Release);
                state.revoked.remove(&(class, page));
            }
        }
        Ok(PendingPages { tag, pages: pages.iter().map(|&(class, list)| (class, list.to_vec())).collect() })
    }

    /// Makes a unit readable: all its bytes in these pages are written. Once more is harmless.
    ///
    /// # Errors
    /// A page was revoked meanwhile; nothing is published then.
    pub fn publish(&self, unit: Unit, pages: &PendingPages) -> Result<(), GateError> {
        let (at, bit) = self.bit(unit)?;
        let _state = self.lock();
        for run in pages.pages() {
            for &page in run.pages {
                self.expect(run, page)?;
            }
        }
        for run in pages.pages() {
            for &page in run.pages {
                // Release: who sees the bit sees the bytes.
                self.page(run.class, page)?[at].fetch_or(bit, Ordering::Release);
            }
        }
        self.news.notify_all();
        Ok(())
    }

    /// A unit of pages, if it has landed. Never waits.
    ///
    /// # Errors
    /// Another generation than the reader's; a unit that is not published.
    pub fn readable<'a>(&'a self, unit: Unit, runs: &'a [Pages<'a>]) -> Result<ReadablePages<'a>, GateError> {
        let inside = self.enter(&mut self.lock(), runs);
        self.check(unit, runs)?;
        Ok(ReadablePages { unit, runs, _inside: inside })
    }

    /// A unit of pages, as soon as it has landed: for loads that overlap computation.
    ///
    /// # Errors
    /// At once: another generation. At the deadline: [`GateError::Deadline`] with what was missing.
    pub fn wait_readable<'a>(
        &'a self,
        unit: Unit,
        runs: &'a [Pages<'a>],
        deadline: Instant,
    ) -> Result<ReadablePages<'a>, GateError> {
        let mut state = self.lock();
        loop {
            match self.check(unit, runs) {
                Ok(()) => return Ok(ReadablePages { unit, runs, _inside: self.enter(&mut state, runs) }),
                Err(missing @ GateError::Unpublished { .. }) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(GateError::Deadline(Box::new(missing)));
                    }
                    (state, _) = self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes pages back, all or none: nobody gets them readable from now on, and they can be claimed as soon as nobody reads
    /// or fills them any more.
    ///
    /// # Errors
    /// Another generation than theirs.
    pub fn revoke(&self, runs: &[Pages<'_>]) -> Result<(), GateError> {
        let mut state = self.lock();
        for run in runs {
            for &page in run.pages {
                self.expect(*run, page)?;
            }
        }
        let barrier = state.next;
        for run in runs {
            for &page in run.pages {
                self.page(run.class, page)?[0].store(tag::REVOKED, Ordering::Relaxed);
                state.revoked.insert((run.class, page), (run.tag, barrier));
            }
        }
        // Who waits for them learns at once that it waits in vain.
        self.news.notify_all();
        Ok(())
    }

    /// Whose a page is.
    ///
    /// # Errors
    /// A class or page that is not there.
    pub fn holder(&self, class: Class, page: u32) -> Result<Holder, GateError> {
        Ok(Holder::of(self.page(class, page)?[0].load(Ordering::Acquire)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter<'a>(&'a self, state: &mut State, runs: &[Pages<'_>]) -> Inside<'a> {
        Inside { gate: self, number: state.enter(runs.iter().map(|run| run.tag).collect()) }
    }

    fn leave(&self, number: u64) {
        let mut state = self.lock();
        if let Some(at) = state.inside.iter().position(|(inside, _)| *inside == number) {
            state.inside.swap_remove(at);
        }
    }

    fn page(&self, class: Class, page: u32) -> Result<&[AtomicU64], GateError> {
        let classes = self.classes.len();
        let (spec, first) = self.classes.get(class.0 as usize).ok_or(GateError::Class { class, classes })?;
        if page >= spec.num_pages {
            return Err(GateError::Page { class: spec.name.clone(), page, num_pages: spec.num_pages });
        }
        Ok(&self.words[(first + page as usize) * self.stride..][..self.stride])
    }

    fn bit(&self, unit: Unit) -> Result<(usize, u64), GateError> {
        if unit.0 >= self.num_units {
            return Err(GateError::Unit { unit, num_units: self.num_units });
        }
        Ok((1 + (unit.0 / u64::BITS) as usize, 1 << (unit.0 % u64::BITS)))
    }

    /// The words of a page that must be of the run's generation.
    fn expect(&self, run: Pages<'_>, page: u32) -> Result<&[AtomicU64], GateError> {
        let words = self.page(run.class, page)?;
        let found = words[0].load(Ordering::Acquire);
        if found == run.tag.word() {
            return Ok(words);
        }
        let class = self.classes[run.class.0 as usize].0.name.clone();
        Err(GateError::Tag { class, page, expected: run.tag, found: Holder::of(found) })
    }

    fn check(&self, unit: Unit, runs: &[Pages<'_>]) -> Result<(), GateError> {
        let (at, bit) = self.bit(unit)?;
        let mut missing = None;
        for run in runs {
            for &page in run.pages {
                // A wrong tag anywhere outweighs a unit that is on its way: waiting would not help.
                if self.expect(*run, page)?[at].load(Ordering::Acquire) & bit == 0 {
                    missing = missing.or(Some((*run, page)));
                }
            }
        }
        let Some((run, page)) = missing else { return Ok(()) };
        let class = self.classes[run.class.0 as usize].0.name.clone();
        Err(GateError::Unpublished { unit, class, page, tag: run.tag })
    }

    fn no_page_twice(&self, pages: &[(Class, &[u32])], claimed: Tag) -> Result<(), GateError> {
        let mut all: Vec<_> =
            pages.iter().flat_map(|&(class, list)| list.iter().map(move |&page| (class, page))).collect();
        all.sort_unstable();
        match all.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => {
                let (class, page) = pair[0];
                Err(GateError::Twice { class: self.classes[class.0 as usize].0.name.clone(), page, claimed })
            }
        }
    }
}

impl State {
    fn enter(&mut self, tags: Vec<Tag>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.inside.push((number, tags));
        number
    }
}
