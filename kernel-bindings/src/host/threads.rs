//! Threads that share an operation.
//!
//! The thread that calls an operation takes part in it, and the others spin for a while between two operations: a step of
//! a model is some hundred calls of tens of microseconds, and waking a thread takes as long as one of them. (A thread outside
//! a pool of rayon's that starts work there sleeps until it is done: two wake-ups a call, and with two threads no gain.)
//! A thread that does not come in time is not waited for; what it would have done, the others do.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;

/// How long a thread looks for the next work before it sleeps: longer than what a step does on one thread between two
/// operations.
const PATIENCE: Duration = Duration::from_micros(100);

/// Threads that an operation may run on, the caller included; `RAYON_NUM_THREADS`, or the pool of rayon's that the caller
/// belongs to, says how many.
pub(super) fn count() -> usize {
    rayon::current_num_threads()
}

/// Calls `work` for every item, on several threads, each of which takes the next item when it has finished one. A thread of
/// a pool of rayon's shares with its pool, any other with the threads of this module; while those are busy it works alone.
pub(super) fn share<T>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let threads = items.size_hint().1.map_or(count(), |most| most.min(count()));
    if threads <= 1 {
        return items.for_each(work);
    }
    let items = Mutex::new(items.fuse());
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take_part = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    if rayon::current_thread_index().is_some() {
        (0..threads).into_par_iter().with_max_len(1).for_each(|_| take_part());
    } else {
        TEAM.run(threads - 1, &take_part);
    }
}

static TEAM: LazyLock<&Team> = LazyLock::new(|| Team::start(count() - 1));

/// What a round is made of; called by every thread that takes part.
type Work<'a> = &'a (dyn Fn() + Sync);

/// Threads beside the caller, and the work that they share.
struct Team {
    /// Held by the caller for the time of a round.
    caller: Mutex<()>,
    /// Number of the round, seats that are still free, threads that sit: 32, 16 and 16 bits from above.
    round: AtomicU64,
    /// Work of the round; written while nobody can sit, read by those who do.
    work: UnsafeCell<Work<'static>>,
    seats: u64,
    panicked: AtomicBool,
    rounds: Bell,
    ends: Bell,
}

// SAFETY: `work` is the only part that is not `Sync`, and what it points to is. It is written by the holder of `caller` after
// it saw that no seat was free or taken, and read only between taking a seat and leaving it; both orders are those of `round`.
unsafe impl Sync for Team {}

const SEAT: u64 = 1 << 16;
const ROUND: u64 = 1 << 32;
/// A thread that sits.
const SITTING: u64 = 1;

fn free_seats(round: u64) -> u64 {
    round % ROUND / SEAT
}

fn sitting(round: u64) -> u64 {
    round % SEAT
}

impl Team {
    /// A team with up to `threads` threads, which run as long as the process.
    fn start(threads: usize) -> &'static Team {
        let team: &'static Team = Box::leak(Box::new(Team {
            caller: Mutex::new(()),
            round: AtomicU64::new(0),
            work: UnsafeCell::new(&|| ()),
            seats: threads.min(usize::from(u16::MAX)) as u64,
            panicked: AtomicBool::new(false),
            rounds: Bell::default(),
            ends: Bell::default(),
        }));
        for number in 1..=team.seats {
            // Without a thread its seat stays free, and the others do its work.
            let _ = std::thread::Builder::new().name(format!("host {number}")).spawn(|| team.member());
        }
        team
    }

    /// Runs `work` here and on up to `others` threads that come before it returns here; alone while another caller has the
    /// team.
    fn run(&self, others: usize, work: Work<'_>) {
        let Ok(caller) = self.caller.try_lock() else { return work() };
        // SAFETY: the lifetime ends with this function, and so does every use: `close` returns when nobody sits any more,
        // and it is called whether `work` returns or panics.
        let shared = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        // SAFETY: this thread holds `caller`, and since the round before was closed nobody sits or finds a seat.
        unsafe { *self.work.get() = shared };
        let number = self.round.load(Ordering::Relaxed) / ROUND + 1;
        self.round.store(number.wrapping_mul(ROUND) | (self.seats.min(others as u64) * SEAT), Ordering::SeqCst);
        self.rounds.ring();
        let here = catch_unwind(AssertUnwindSafe(work));
        self.close();
        let elsewhere = self.panicked.swap(false, Ordering::Relaxed);
        drop(caller);
        if let Err(panic) = here {
            resume_unwind(panic);
        }
        assert!(!elsewhere, "a thread that shared this operation panicked");
    }

    /// Takes the free seats away and waits for those who sit.
    fn close(&self) {
        let round = self.round.fetch_and(!(ROUND - SEAT), Ordering::SeqCst);
        if sitting(round) > 0 {
            self.ends.wait(|| (sitting(self.round.load(Ordering::SeqCst)) == 0).then_some(()));
        }
    }

    /// Takes a seat in every round that has one.
    fn member(&self) {
        let mut last = 0;
        loop {
            let another = |round: &u64| free_seats(*round) > 0 && round / ROUND != last;
            let round = self.rounds.wait(|| Some(self.round.load(Ordering::SeqCst)).filter(another));
            let seated = round - SEAT + SITTING;
            if self.round.compare_exchange(round, seated, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            last = round / ROUND;
            // SAFETY: this thread sits, so `work` is not written, and what it refers to is there until it stands up.
            let work = unsafe { *self.work.get() };
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            if sitting(self.round.fetch_sub(SITTING, Ordering::SeqCst)) == 1 {
                self.ends.ring();
            }
        }
    }
}

/// What threads wait for, awake at first. Time is never yielded: on a busy machine that costs all of a neighbour's, and a
/// sleeper is let in sooner.
#[derive(Default)]
struct Bell {
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
}

impl Bell {
    /// Waits until `ready` gives something. It reads what another thread writes, in the one order of all (`SeqCst`), before
    /// that thread rings.
    fn wait<T>(&self, ready: impl Fn() -> Option<T>) -> T {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            for _ in 0..16 {
                if let Some(value) = ready() {
                    return value;
                }
                std::hint::spin_loop();
            }
        }
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let value = loop {
            match ready() {
                Some(value) => break value,
                None => bed = self.alarm.wait(bed).unwrap_or_else(PoisonError::into_inner),
            }
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        value
    }

    /// Wakes those who sleep.
    fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Who is about to sleep has the bed, and gives it away only when the alarm reaches it.
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.alarm.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums 0..n with weights of the places, so that an item that is missing or comes twice shows.
    fn shared(n: usize, run: impl Fn(Work<'_>)) -> Vec<u32> {
        let mut seen = vec![0u32; n];
        let items = Mutex::new(seen.iter_mut());
        run(&|| {
            while let Some(place) = { items.lock().unwrap().next() } {
                *place += 1;
            }
        });
        seen
    }

    #[test]
    fn every_item_once() {
        for threads in [0, 1, 2, 7] {
            let team = Team::start(threads);
            for n in [0, 1, 2, 100] {
                for _ in 0..200 {
                    assert_eq!(shared(n, |work| team.run(9, work)), vec![1; n], "{threads} threads");
                }
            }
        }
    }

    #[test]
    fn the_threads_take_part_awake_and_asleep() {
        let team = Team::start(2);
        for pause in [Duration::ZERO, 20 * PATIENCE] {
            std::thread::sleep(pause);
            // Nobody gets by before three are here.
            let barrier = std::sync::Barrier::new(3);
            team.run(9, &|| {
                barrier.wait();
            });
        }
    }

    #[test]
    fn calls_within_calls_and_from_many_threads() {
        let team = Team::start(3);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let outer = shared(10, |work| {
                            team.run(9, &|| {
                                work();
                                assert_eq!(shared(5, |work| team.run(9, work)), [1; 5]);
                            });
                        });
                        assert_eq!(outer, [1; 10]);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 400);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::start(1);
        let me = std::thread::current().id();
        for here in [true, false] {
            let barrier = std::sync::Barrier::new(2);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                team.run(9, &|| {
                    barrier.wait();
                    assert_ne!(std::thread::current().id() == me, here, "on purpose");
                });
            }));
            assert!(outcome.is_err());
            assert_eq!(shared(50, |work| team.run(9, work)), [1; 50]);
        }
    }

    #[test]
    fn a_pool_of_rayons_shares_too() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let mut seen = vec![0; 300];
        pool.install(|| {
            assert_eq!(count(), 3);
            share(seen.chunks_mut(7), |places| places.iter_mut().for_each(|place| *place += 1));
        });
        assert_eq!(seen, [1; 300]);
        share(seen.chunks_mut(11).enumerate(), |(number, places)| places.iter_mut().for_each(|place| *place += number));
        let places = (0..300).map(|place| 1 + place / 11);
        assert!(seen.into_iter().eq(places));
    }
}
