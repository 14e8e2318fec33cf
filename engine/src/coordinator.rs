//! The engine's loop with rooms: requests whose prompt is computed by one engine and whose text goes on in another.
//!
//! Everything is decided here, on one thread, from what the ranks agreed to have seen ([`transfer::exchange`]); ranks only carry
//! out commands. A turn hands over an order (commands, landed pages, a step) and takes in the oldest answer. Without anything
//! to compute, an exchange goes round all the same while rooms are open.
//!
//! [`Decode`] asks for prompts and goes on from them, [`Prefill`] computes them. A room's outcome is final on one side as soon
//! as its request has ended, failed or gone on there; its arena pages are free only when every rank has proof of quiet and
//! no order in flight copies them.

mod arena;
mod decode;
mod prefill;
mod turns;

pub use arena::ArenaPages;
pub use decode::Decode;
pub use prefill::Prefill;
pub use turns::RoomLoop;

use crate::engine::{EngineError, Schedule};
use crate::handover::{Export, Import, Work};
use crate::ids::SequenceId;
use crate::runner::{RunError, Runner};
use crate::scheduler::{AddError, Scheduler};
use crate::sequence::{Event, Request};
use crate::step::StepPlan;
use std::collections::VecDeque;
use transfer::exchange::{Agreed, Command};

/// One half of the work: what becomes of rooms, step by step.
pub trait Side: Send {
    /// Queues a client's request.
    ///
    /// # Errors
    /// It can never be run here; a side without clients of its own takes none.
    fn add(&mut self, _: Request, _: &mut Scheduler) -> Result<SequenceId, AddError> {
        Err(AddError::PrefillOnly)
    }

    /// Ends a client's request; `None` if it has ended already.
    fn cancel(&mut self, _: SequenceId, _: &mut Scheduler, _: &mut Orders) -> Option<Event> {
        None
    }

    /// What is to be done with the next order.
    fn prepare(&mut self, scheduler: &mut Scheduler, orders: &mut Orders);

    /// The pages of a planned step that go into the arena.
    fn exports(&mut self, plan: &StepPlan) -> Vec<Export>;

    /// An order has been carried out: landed pages are in the cache.
    fn carried_out(&mut self, imports: &[Import], scheduler: &mut Scheduler);

    /// What the ranks have seen.
    fn take_in(&mut self, agreed: &Agreed, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>);

    /// Whether rooms may have news although nothing is computed.
    fn is_waiting(&self) -> bool;
}

/// What the next order brings to the ranks.
#[derive(Debug, Default)]
pub struct Orders {
    pub(crate) commands: Vec<Command>,
    pub(crate) imports: Vec<Import>,
}

#[derive(Debug)]
struct InFlight {
    plan: StepPlan,
    imports: Vec<Import>,
}

/// Scheduler, runner and rooms on the caller's thread.
#[derive(Debug)]
pub struct Coordinator<S> {
    scheduler: Scheduler,
    runner: Runner,
    depth: usize,
    flight: VecDeque<InFlight>,
    orders: Orders,
    side: S,
    /// Whether the last exchange brought anything new.
    news: bool,
    last: Agreed,
}

impl<S: Side> Coordinator<S> {
    /// A coordinator over a runner whose ranks have ports.
    pub fn new(scheduler: Scheduler, runner: Runner, schedule: Schedule, side: S) -> Self {
        let depth = match schedule {
            Schedule::Lockstep => 1,
            Schedule::Overlap => 2,
        };
        let (flight, orders, last) = (VecDeque::new(), Orders::default(), Agreed::default());
        Self { scheduler, runner, depth, flight, orders, side, news: true, last }
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Queues a request of a client.
    ///
    /// # Errors
    /// The request is malformed or could not be run even alone.
    pub fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        self.side.add(request, &mut self.scheduler)
    }

    /// Ends a request; `None` if it has ended already.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        self.side.cancel(id, &mut self.scheduler, &mut self.orders)
    }

    /// The rooms, to look at.
    pub fn side(&self) -> &S {
        &self.side
    }

    /// Whether requests or rooms are left.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work() || self.side.is_waiting() || !self.flight.is_empty()
    }

    /// Whether another turn now would only ask the ports again: nothing is computed, nothing is to be done, and the last
    /// answer was like the one before. Time to wait for news.
    pub fn is_idle(&self) -> bool {
        !self.news && self.flight.is_empty() && self.orders.commands.is_empty() && self.orders.imports.is_empty()
    }

    /// Forgets all cached beginnings.
    pub fn clear_prefix(&mut self) {
        self.scheduler.clear_prefix();
    }

    /// Hands over what can be handed over, then takes in the oldest answer. One exchange at least.
    ///
    /// # Errors
    /// A step or an exchange failed. The requests in flight have ended by then: `events` holds what their clients are told.
    pub fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        while self.flight.len() < self.depth {
            let plan = self.scheduler.schedule();
            self.side.prepare(&mut self.scheduler, &mut self.orders);
            let Orders { commands, imports } = std::mem::take(&mut self.orders);
            if plan.is_none() && commands.is_empty() && imports.is_empty() && !self.flight.is_empty() {
                break;
            }
            let plan = plan.unwrap_or(StepPlan { step: 0, num_decode: 0, entries: Vec::new() });
            let exports = self.side.exports(&plan);
            let work = Work { commands, imports: imports.clone(), exports, ..plan.clone().into() };
            let submitted = self.runner.submit_work(work);
            self.flight.push_back(InFlight { plan, imports });
            if let Err(error) = submitted {
                return self.fail(error, events);
            }
        }
        match self.runner.wait_agreed() {
            Ok((output, agreed)) => {
                let InFlight { plan, imports } = self.flight.pop_front().expect("the runner answers orders in flight");
                let computed = !plan.entries.is_empty();
                if computed {
                    events.extend(self.scheduler.commit(&plan, &output)?);
                }
                self.side.carried_out(&imports, &mut self.scheduler);
                self.side.take_in(&agreed, &mut self.scheduler, &mut self.orders, events);
                self.news = computed || !imports.is_empty() || agreed.rooms != self.last.rooms;
                self.last = agreed;
                Ok(())
            }
            Err(error) => self.fail(error, events),
        }
    }

    /// Ends everything in flight.
    fn fail(&mut self, error: RunError, events: &mut Vec<Event>) -> Result<(), EngineError> {
        for InFlight { plan, imports } in std::mem::take(&mut self.flight) {
            if !plan.entries.is_empty() {
                events.extend(self.scheduler.fail(&plan, &error.to_string())?);
            }
            self.side.carried_out(&imports, &mut self.scheduler);
        }
        Err(error.into())
    }
}
