//! Progress of threads and queues as counters with an age, so that somebody else can tell work that waits from work that is
//! stuck. Only the thread that does the work says that it moves; there is no separate heartbeat that could outlive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread or a queue.
#[derive(Debug)]
pub struct Part {
    name: String,
    /// Parts whose work this one waits for: while they move, so does it.
    behind: Vec<Arc<Part>>,
    origin: Instant,
    waiting: AtomicU64,
    done: AtomicU64,
    /// Microseconds from `origin` to the last progress, or to the arrival of work at an empty part.
    moved_us: AtomicU64,
}

/// A [`Part`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PartState {
    /// Which.
    pub name: String,
    /// Pieces of work that are not finished.
    pub waiting: u64,
    /// Units done since the start; for a rank these are layers, so that a long step is no standstill.
    pub done: u64,
    /// Time since the last progress, or since there is work; zero without work.
    pub still: Duration,
    /// Names of the parts that this one waits for.
    pub behind: Vec<String>,
}

impl Part {
    /// An idle part.
    pub fn new(name: impl Into<String>, behind: Vec<Arc<Part>>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            behind,
            origin: Instant::now(),
            waiting: AtomicU64::new(0),
            done: AtomicU64::new(0),
            moved_us: AtomicU64::new(0),
        })
    }

    fn touch(&self) {
        self.moved_us.store(self.origin.elapsed().as_micros() as u64, Ordering::Release);
    }

    /// A piece of work came.
    pub fn arrive(&self) {
        // The age is set before the work is visible: a reader in between must not see new work with an old age.
        if self.waiting.load(Ordering::Acquire) == 0 {
            self.touch();
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// A piece of work is finished.
    pub fn leave(&self) {
        self.tick();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// So many pieces of work are not finished.
    pub fn set_waiting(&self, waiting: u64) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            self.touch();
        }
        self.waiting.store(waiting, Ordering::Release);
    }

    /// A unit of work is done.
    pub fn tick(&self) {
        self.touch();
        self.done.fetch_add(1, Ordering::AcqRel);
    }

    fn unmoved(&self) -> Duration {
        let own = self.origin.elapsed().saturating_sub(Duration::from_micros(self.moved_us.load(Ordering::Acquire)));
        self.behind.iter().map(|part| part.unmoved()).fold(own, Duration::min)
    }

    /// How it stands.
    pub fn state(&self) -> PartState {
        let still = self.unmoved();
        let waiting = self.waiting.load(Ordering::Acquire);
        PartState {
            name: self.name.clone(),
            waiting,
            done: self.done.load(Ordering::Acquire),
            still: if waiting == 0 { Duration::ZERO } else { still },
            behind: self.behind.iter().map(|part| part.name.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets time pass for a part without waiting for it.
    fn age(part: &Part, seconds: u64) -> Part {
        Part {
            name: part.name.clone(),
            behind: part.behind.clone(),
            origin: part.origin.checked_sub(Duration::from_secs(seconds)).expect("the machine is up that long"),
            waiting: AtomicU64::new(part.waiting.load(Ordering::Acquire)),
            done: AtomicU64::new(0),
            moved_us: AtomicU64::new(part.moved_us.load(Ordering::Acquire)),
        }
    }

    const AGE: Duration = Duration::from_secs(9);

    #[test]
    fn work_without_progress_has_an_age() {
        let part = Part::new("a", Vec::new());
        assert_eq!(age(&part, 9).state().still, Duration::ZERO, "idle");
        part.arrive();
        assert!(age(&part, 9).state().still >= AGE);
        let part = age(&part, 9);
        part.arrive();
        assert!(part.state().still >= AGE, "more work is no progress");
        part.tick();
        assert!(part.state().still < AGE);
        let part = age(&part, 9);
        part.leave();
        assert!(part.state().still < AGE && part.state().waiting == 1);
        part.leave();
        assert_eq!((part.state().still, part.state().waiting), (Duration::ZERO, 0));
        let part = age(&part, 9);
        part.arrive();
        assert!(part.state().still < AGE, "the age counts from the arrival");
        part.set_waiting(0);
        let part = age(&part, 9);
        part.set_waiting(3);
        assert!(part.state().still < AGE && part.state().waiting == 3);
    }

    #[test]
    fn who_waits_for_a_part_that_moves_is_not_stuck() {
        let rank = Part::new("rank", Vec::new());
        rank.arrive();
        let rank = Arc::new(age(&rank, 9));
        let engine = Part::new("engine", vec![Arc::clone(&rank)]);
        engine.arrive();
        let engine = age(&engine, 9);
        assert!(engine.state().still >= AGE);
        rank.tick();
        assert!(engine.state().still < AGE);
        assert_eq!(engine.state().behind, ["rank"]);
    }
}
