//! An engine as its users see it: the loop ([`coordinator`](crate::coordinator)) without rooms, and a handle for clients on other
//! threads.

mod shown;
mod thread;

pub use shown::{HostUse, PoolUse, Snapshot};
pub use thread::{Bell, Client, EngineThread, Ticket};

use std::sync::Arc;

use thiserror::Error;

use crate::coordinator::{Alone, Coordinator};
use crate::ids::SequenceId;
use crate::progress::Part;
use crate::runner::RunError;
use crate::scheduler::{AddError, CommitError, Scheduler};
use crate::sequence::{Event, Request};

/// Whether the host decides about a step while the one before runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Decide, run, take in, decide.
    Lockstep,
    /// The next step is handed over before the tokens of this one are known.
    Overlap,
}

/// Why the loop cannot go on.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A step failed; its requests have been ended with the reason.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The runner answered with something else than the step's own output.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

/// Scheduler and runner on the caller's thread, without rooms.
pub type Engine = Coordinator<Alone>;

/// What an [`EngineThread`] turns: an engine of its own, or one half of two.
pub trait Turns: Send {
    /// Queues a request.
    ///
    /// # Errors
    /// It can never be run here.
    fn add(&mut self, request: Request) -> Result<SequenceId, AddError>;

    /// Ends a request; `None` if it has ended already.
    fn cancel(&mut self, id: SequenceId) -> Option<Event>;

    /// Whether turns are needed for what is here.
    fn has_work(&self) -> bool;

    /// Whether another turn would change nothing before somebody rings the [`Bell`] or commands something.
    fn is_idle(&self) -> bool;

    /// One turn.
    ///
    /// # Errors
    /// There will be no other; `events` holds what clients are told.
    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError>;

    /// The scheduler, to look at.
    fn scheduler(&self) -> &Scheduler;

    /// How far every rank is, and its copies.
    fn rank_parts(&self) -> &[Arc<Part>];

    /// A count that rises whenever anything got on.
    fn progress(&self) -> u64;
}
