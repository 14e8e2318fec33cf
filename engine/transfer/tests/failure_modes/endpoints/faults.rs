//! What goes wrong in a run.

use std::time::Duration;
use transfer::frame::Kind;

/// Chances are per mille of the occasions named.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// Nothing goes wrong after this time.
    pub(crate) until: Duration,
    /// Frames that get lost.
    pub(crate) drop: u32,
    /// Frames that come twice.
    pub(crate) duplicate: u32,
    /// Frames that come up to 300 ms after those sent later.
    pub(crate) reorder: u32,
    /// Frames that come up to 400 ms late, and all behind them.
    pub(crate) delay: u32,
    /// Frames that lose their end.
    pub(crate) truncate: u32,
    /// Frames with a changed byte.
    pub(crate) flip: u32,
    /// Frames that come again up to 4 s later.
    pub(crate) replay: u32,
    /// Frames behind which foreign bytes follow: unknown kinds, impossible bodies, noise.
    pub(crate) garbage: u32,
    /// Posts that fail and write nothing.
    pub(crate) post_fails: u32,
    /// Posts that fail and write 200 ms later.
    pub(crate) post_fails_and_writes: u32,
    /// Posts of which nothing is heard; they write up to 12 s later.
    pub(crate) post_hangs: u32,
    /// Requests whose client goes away, per event that a decode server sees.
    pub(crate) abort: u32,
    /// Requests that prefill refuses.
    pub(crate) refuse: u32,
    /// Processes that are killed and start again, per 100 ms.
    pub(crate) kill: u32,
    /// Processes that stop for up to 8 s, per 100 ms.
    pub(crate) stop: u32,
    /// Connections that break, per 100 ms.
    pub(crate) cut: u32,
    /// The n-th frame of a kind is lost, counted from 0.
    pub(crate) drop_once: Option<(Kind, u32)>,
}

impl Faults {
    /// A bit of everything.
    pub(crate) fn storm(until: Duration) -> Self {
        Self {
            until,
            drop: 15,
            duplicate: 30,
            reorder: 30,
            delay: 30,
            truncate: 2,
            flip: 3,
            replay: 20,
            garbage: 3,
            post_fails: 20,
            post_fails_and_writes: 20,
            post_hangs: 20,
            abort: 10,
            refuse: 60,
            kill: 6,
            stop: 8,
            cut: 5,
            drop_once: None,
        }
    }
}
