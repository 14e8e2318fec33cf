//! Faults of posts and landings.

use super::shared::{Keep, Shared};
use crate::fault::{Fault, Faults, Injected, Point};
use crate::transport::End;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What faults make of a post.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Course {
    /// Before it is sent; the posts behind it wait too.
    pub(super) wait: Duration,
    /// It is sent once more after so long.
    pub(super) again: Option<Duration>,
    /// What its end becomes.
    pub(super) told: Told,
}

/// What is told of the end of a post.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Told {
    /// What happened.
    #[default]
    Truth,
    /// This, at once.
    AtOnce(End),
    /// This, when it ends.
    Instead(End),
    /// Nothing.
    Nothing,
}

/// A post that is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusedByFault;

impl Course {
    /// Of the next post.
    pub(super) fn of(faults: &Faults) -> Result<Self, RefusedByFault> {
        let ms = Duration::from_millis;
        let mut course = Self::default();
        match faults.at(Point::Post, "") {
            Some(Injected { fault: Fault::Fail, .. }) => return Err(RefusedByFault),
            Some(Injected { fault: Fault::Stale, .. }) => {
                let reason = "a fault: the peer is gone or of another incarnation";
                course.told = Told::AtOnce(End::Failed(reason.into()));
            }
            Some(Injected { fault: Fault::Delay, number, .. }) => course.wait = ms(number),
            Some(_) | None => {}
        }
        let failed = || End::Failed("a fault fails the post".into());
        match faults.at(Point::Completion, "").map(|hit| (hit.fault, ms(hit.number))) {
            Some((Fault::Fail, _)) => course.told = Told::Instead(failed()),
            Some((Fault::NeverEnd, _)) => course.told = Told::Nothing,
            Some((Fault::EndEarly, wait)) => (course.wait, course.told) = (wait, Told::AtOnce(End::Done)),
            Some((Fault::ErrorThenWrite, wait)) => (course.wait, course.told) = (wait, Told::AtOnce(failed())),
            Some((Fault::LateWrite, again)) => course.again = Some(again),
            Some(_) | None => {}
        }
        Ok(course)
    }
}

/// Stands still where a fault says so.
pub(super) fn stand_still(faults: &Faults, point: Point) {
    if let Some(Injected { fault: Fault::Delay, number, .. }) = faults.at(point, "") {
        std::thread::sleep(Duration::from_millis(number));
    }
}

/// A page that a fault writes later, with nobody waiting for it.
#[derive(Debug)]
pub(super) struct LatePage {
    due: Instant,
    offset: u64,
    bytes: Vec<u8>,
    keep: Keep,
}

impl LatePage {
    /// The next bytes of it.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

/// What happens to a page that lands.
#[derive(Debug, Default)]
pub(super) struct Landing {
    /// A random number that picks the byte which is changed.
    pub(super) flip: Option<u64>,
    /// Takes the bytes.
    pub(super) late: Option<LatePage>,
    /// They go to their place at once, too.
    pub(super) twice: bool,
}

impl Shared {
    /// What happens to a page. A delay holds up the connection, and with it the end of the post; unless the item is not waited
    /// for ([`Point::Gate`]): then the post ends without the page.
    pub(super) fn landing_fault(&self, offset: u64, bytes: u64, keep: Keep) -> Landing {
        let item = self.bounds.item(offset, bytes).unwrap_or_default();
        let Some(hit) = self.faults.at(Point::Landing, item) else { return Landing::default() };
        let late = |keep| {
            let due = Instant::now() + Duration::from_millis(hit.number);
            Some(LatePage { due, offset, bytes: Vec::with_capacity(bytes as usize), keep })
        };
        match hit.fault {
            Fault::Corrupt => Landing { flip: Some(hit.random), ..Landing::default() },
            Fault::Delay if self.faults.at(Point::Gate, item).is_some() => {
                Landing { late: late(keep), ..Landing::default() }
            }
            Fault::Delay => {
                std::thread::sleep(Duration::from_millis(hit.number));
                Landing::default()
            }
            // Whether the room is expected by then or not: that is the fault.
            Fault::LateWrite => Landing { late: late(Keep::All), twice: true, ..Landing::default() },
            _ => Landing::default(),
        }
    }

    /// Has late pages written, each at its time.
    pub(super) fn write_late(self: &Arc<Self>, pages: Vec<LatePage>) -> std::io::Result<()> {
        let shared = Arc::clone(self);
        let write = move || {
            for LatePage { due, offset, bytes, keep } in pages {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let keeps = shared.keeps(keep);
                // The range is inside a page, or its post would not have been taken.
                let written = keeps && shared.arena.write(offset, &bytes).is_ok();
                shared.count(bytes.len() as u64, written);
            }
        };
        std::thread::Builder::new().name("pages-late".into()).spawn(write).map(drop)
    }
}
