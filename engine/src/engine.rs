//! The loop between scheduler and runner, in lockstep or overlapped, and a handle for clients on other threads.

mod shown;
mod thread;

pub use shown::{PoolUse, Snapshot};
pub use thread::{Bell, Client, EngineThread, Ticket};

use std::collections::VecDeque;
use std::sync::Arc;

use thiserror::Error;

use crate::ids::SequenceId;
use crate::progress::Part;
use crate::runner::{RunError, Runner};
use crate::scheduler::{AddError, CommitError, Scheduler};
use crate::sequence::{Event, Request};
use crate::step::StepPlan;

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

/// Scheduler and runner on the caller's thread.
#[derive(Debug)]
pub struct Engine {
    scheduler: Scheduler,
    runner: Runner,
    depth: usize,
    flight: VecDeque<StepPlan>,
    /// Steps that were taken in.
    steps_done: u64,
}

impl Engine {
    /// An engine whose runner has the pools that the scheduler deals out.
    pub fn new(scheduler: Scheduler, runner: Runner, schedule: Schedule) -> Self {
        let depth = match schedule {
            Schedule::Lockstep => 1,
            Schedule::Overlap => 2,
        };
        Self { scheduler, runner, depth, flight: VecDeque::new(), steps_done: 0 }
    }

    /// Queues a request.
    pub fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        self.scheduler.add(request)
    }

    /// Ends a request; `None` if it has ended already.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        self.scheduler.cancel(id)
    }

    /// Whether any request waits, runs or still holds pages.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Forgets all cached beginnings.
    pub fn clear_prefix(&mut self) {
        self.scheduler.clear_prefix();
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// How far every rank is.
    pub fn rank_parts(&self) -> &[Arc<Part>] {
        self.runner.parts()
    }

    /// Hands over what can be handed over, then takes in the oldest step. Nothing happens without work.
    ///
    /// # Errors
    /// A step failed. The requests in flight have ended by then: `events` holds what their clients are told.
    pub fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        while self.flight.len() < self.depth {
            let Some(plan) = self.scheduler.schedule() else { break };
            let submitted = self.runner.submit(plan.clone());
            self.flight.push_back(plan);
            if let Err(error) = submitted {
                return self.fail(error, events);
            }
        }
        if self.flight.is_empty() {
            return Ok(());
        }
        match self.runner.wait() {
            Ok(output) => {
                let plan = self.flight.pop_front().expect("the runner answers steps in flight");
                events.extend(self.scheduler.commit(&plan, &output)?);
                self.steps_done += 1;
                Ok(())
            }
            Err(error) => self.fail(error, events),
        }
    }

    /// Ends everything in flight.
    fn fail(&mut self, error: RunError, events: &mut Vec<Event>) -> Result<(), EngineError> {
        for plan in self.flight.drain(..) {
            events.extend(self.scheduler.fail(&plan, &error.to_string())?);
        }
        Err(error.into())
    }
}

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

    /// How far every rank is.
    fn rank_parts(&self) -> &[Arc<Part>];

    /// A count that rises whenever anything got on.
    fn progress(&self) -> u64;
}

impl Turns for Engine {
    fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        Engine::add(self, request)
    }

    fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        Engine::cancel(self, id)
    }

    fn has_work(&self) -> bool {
        Engine::has_work(self)
    }

    fn is_idle(&self) -> bool {
        !Engine::has_work(self)
    }

    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        Engine::turn(self, events)
    }

    fn scheduler(&self) -> &Scheduler {
        Engine::scheduler(self)
    }

    fn rank_parts(&self) -> &[Arc<Part>] {
        Engine::rank_parts(self)
    }

    fn progress(&self) -> u64 {
        self.steps_done
    }
}
