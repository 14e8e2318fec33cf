//! How long something was under way.

use std::time::Duration;

/// Time in which at least one post was under way.
#[derive(Debug, Default)]
pub(super) struct Busy {
    since: Option<Duration>,
    before: Duration,
}

impl Busy {
    /// Something is under way from now on, or nothing is.
    pub(super) fn set(&mut self, busy: bool, now: Duration) {
        match (busy, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.before += now.saturating_sub(since);
                self.since = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// All of it up to now.
    pub(super) fn total(&self, now: Duration) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_posts_count_once_and_pauses_do_not() {
        let ms = Duration::from_millis;
        let mut busy = Busy::default();
        assert_eq!(busy.total(ms(5)), ms(0));
        busy.set(true, ms(10));
        busy.set(true, ms(12));
        assert_eq!(busy.total(ms(15)), ms(5));
        busy.set(false, ms(20));
        busy.set(false, ms(25));
        assert_eq!(busy.total(ms(90)), ms(10));
        busy.set(true, ms(100));
        assert_eq!(busy.total(ms(103)), ms(13));
    }
}
