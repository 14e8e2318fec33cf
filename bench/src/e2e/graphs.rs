//! What the graphs of a run did.

use engine::model::GraphCounters;
use serde::Serialize;
use std::fmt;

/// What the graphs of the first rank did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GraphFigures {
    /// Graphs recorded: one per size of a step and part of it.
    pub recorded: u64,
    /// Replays.
    pub replayed: u64,
    /// Launches that a replay stands for, on average.
    pub launches_each: f64,
    /// Why recording ended, if it failed.
    pub refusal: Option<String>,
}

impl GraphFigures {
    pub(super) fn of(counters: &GraphCounters) -> Self {
        let replayed = counters.replayed();
        Self {
            recorded: counters.recorded(),
            replayed,
            launches_each: counters.pieces() as f64 / replayed.max(1) as f64,
            refusal: counters.refusal(),
        }
    }
}

impl fmt::Display for GraphFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.refusal, self.replayed) {
            (Some(why), _) => write!(f, "decode steps eager, recording failed: {why}"),
            (None, 0) => write!(f, "decode steps eager"),
            (None, _) => write!(
                f,
                "decode graphs: {} recorded, {} replays, each one launch instead of {:.0}",
                self.recorded, self.replayed, self.launches_each
            ),
        }
    }
}
