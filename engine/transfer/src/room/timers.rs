//! Durations of rooms and connections.

use super::Timer;
use std::time::Duration;
use thiserror::Error;

/// A duration that is too short beside the others.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{timer}: expected at least {at_least:?} ({why}), got {got:?}")]
pub struct TimerError {
    /// Field of [`Timers`], or `silence`.
    pub timer: &'static str,
    /// What there must be.
    pub at_least: Duration,
    /// What that is.
    pub why: &'static str,
    /// What there is.
    pub got: Duration,
}

/// Durations of the protocol, one clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timers {
    /// From OPEN to the first answer; also from connection to HELLO.
    pub handshake: Duration,
    /// From beat to beat that names the room.
    pub lease: Duration,
    /// From unit to unit.
    pub progress: Duration,
    /// From DONE until the rank takes the room.
    pub taken: Duration,
    /// From DONE to DONE_ACK.
    pub acknowledge: Duration,
    /// From failure to tear-down, if quiet is not proven before.
    pub drain: Duration,
    /// Between repetitions of what was not answered.
    pub retry: Duration,
    /// Between beats.
    pub beat: Duration,
    /// Beats of silence after which the peer is lost.
    pub misses: u32,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            progress: Duration::from_secs(5),
            taken: Duration::from_secs(10),
            acknowledge: Duration::from_secs(5),
            drain: Duration::from_secs(5),
            retry: Duration::from_secs(1),
            beat: Duration::from_millis(500),
            misses: 4,
        }
    }
}

impl Timers {
    /// Duration of a timer.
    pub fn of(&self, timer: Timer) -> Duration {
        match timer {
            Timer::Handshake => self.handshake,
            Timer::Lease => self.lease,
            Timer::Progress => self.progress,
            Timer::Taken => self.taken,
            Timer::Acknowledge => self.acknowledge,
            Timer::Drain => self.drain,
        }
    }

    /// Silence after which a peer is lost.
    pub fn silence(&self) -> Duration {
        self.beat * self.misses
    }

    /// Refuses durations with which rooms or peers would be given up although nothing is wrong.
    ///
    /// # Errors
    /// The first that contradicts another.
    pub fn check(&self) -> Result<(), TimerError> {
        let need = |timer, got: Duration, at_least: Duration, why| match got >= at_least {
            true => Ok(()),
            false => Err(TimerError { timer, at_least, why, got }),
        };
        // An endpoint looks at its clock a few times in that time.
        need("beat", self.beat, Duration::from_millis(20), "what a busy machine keeps")?;
        need("silence", self.silence(), 2 * self.beat, "two beats: one may be late")?;
        need("lease", self.lease, 2 * self.beat, "two beats: one may be late")?;
        need("retry", self.retry, Duration::from_millis(20), "what a busy machine keeps")?;
        let repeated = 2 * self.retry;
        need("handshake", self.handshake, repeated, "two repetitions of what is not answered")?;
        need("acknowledge", self.acknowledge, repeated, "two repetitions of what is not answered")?;
        need("drain", self.drain, repeated, "two repetitions of what is not answered")?;
        need("progress", self.progress, Duration::from_millis(100), "the time that a layer takes")?;
        need("taken", self.taken, Duration::from_millis(100), "the time that a step takes")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_usual_durations_fit_each_other() {
        assert_eq!(Timers::default().check(), Ok(()));
    }

    #[test]
    fn what_contradicts_another_is_named() {
        let refused = |change: fn(&mut Timers)| {
            let mut timers = Timers::default();
            change(&mut timers);
            timers.check().expect_err("refused").timer
        };
        assert_eq!(refused(|timers| timers.lease = ms(999)), "lease");
        assert_eq!(refused(|timers| timers.beat = ms(5_001)), "lease");
        assert_eq!(refused(|timers| timers.misses = 1), "silence");
        assert_eq!(refused(|timers| timers.beat = Duration::ZERO), "beat");
        assert_eq!(refused(|timers| timers.retry = ms(3_000)), "handshake");
        assert_eq!(refused(|timers| timers.acknowledge = ms(1_999)), "acknowledge");
        assert_eq!(refused(|timers| timers.drain = ms(1_999)), "drain");
        assert_eq!(refused(|timers| timers.progress = Duration::ZERO), "progress");
        assert_eq!(refused(|timers| timers.taken = Duration::ZERO), "taken");
        let lease = Timers { lease: ms(1_000), ..Timers::default() };
        assert_eq!(lease.check(), Ok(()), "two beats are enough");
    }
}
