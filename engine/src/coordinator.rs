//! The engine's loop: steps, copies to and from host memory, and rooms, for requests whose prompt is computed by one engine and
//! whose text goes on in another.
//!
//! Everything is decided here, on one thread, from what the ranks agreed to have seen ([`transfer::exchange`]); ranks only carry
//! out commands. A turn hands over an order (commands, landed pages, copies, a step) and takes in the oldest answer. Without
//! anything to compute, an exchange goes round all the same while rooms are open or copies under way.
//!
//! [`Alone`] has no rooms: a whole engine, [`Engine`](crate::engine::Engine). [`Decode`] asks for prompts and goes on from them,
//! [`Prefill`] computes them. A room's outcome is final on one side as soon as its request has ended, failed or gone on there; its
//! arena pages are free only when every rank has proof of quiet and no order in flight copies them.

mod alone;
mod arena;
mod decode;
mod prefill;
mod servers;
mod turns;

pub use alone::Alone;
pub use arena::ArenaPages;
pub use decode::Decode;
pub use prefill::Prefill;

use crate::engine::{EngineError, Schedule};
use crate::handover::{Export, Import, Work};
use crate::host_cache::HostOrders;
use crate::ids::SequenceId;
use crate::progress::Part;
use crate::runner::{RunError, Runner};
use crate::scheduler::{AddError, Scheduler};
use crate::sequence::{Event, Request};
use crate::step::StepPlan;
use std::collections::VecDeque;
use std::sync::Arc;
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
    fn prepare(&mut self, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>);

    /// The pages of a planned step that go into the arena.
    fn exports(&mut self, plan: &StepPlan) -> Vec<Export>;

    /// An order has been carried out: landed pages are in the cache.
    fn carried_out(&mut self, imports: &[Import], scheduler: &mut Scheduler);

    /// What the ranks have seen.
    fn take_in(&mut self, agreed: &Agreed, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>);

    /// Whether rooms may have news although nothing is computed.
    fn is_waiting(&self) -> bool;

    /// Whether rooms may open on their own, so that ranks are asked even if there are none.
    fn listens(&self) -> bool {
        true
    }
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
    host: HostOrders,
}

/// Scheduler, runner and, on most sides, rooms on the caller's thread.
#[derive(Debug)]
pub struct Coordinator<S> {
    scheduler: Scheduler,
    runner: Runner,
    depth: usize,
    flight: VecDeque<InFlight>,
    orders: Orders,
    side: S,
    /// Whether anything is new since the last exchange was handed over.
    news: bool,
    last: Agreed,
    /// Exchanges that brought something new.
    progress: u64,
}

impl<S: Side> Coordinator<S> {
    /// A coordinator over a runner whose ranks have ports, if the side has rooms.
    pub fn on_side(scheduler: Scheduler, runner: Runner, schedule: Schedule, side: S) -> Self {
        let depth = match schedule {
            Schedule::Lockstep => 1,
            Schedule::Overlap => 2,
        };
        let (flight, orders, last) = (VecDeque::new(), Orders::default(), Agreed::default());
        // Somebody may have opened a room already.
        let news = side.listens();
        Self { scheduler, runner, depth, flight, orders, side, news, last, progress: 0 }
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
        self.news = true;
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

    /// How far every rank is.
    pub fn rank_parts(&self) -> &[Arc<Part>] {
        self.runner.parts()
    }

    /// Whether requests, copies or rooms are left.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work() || self.scheduler.has_copies() || self.side.is_waiting() || !self.flight.is_empty()
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

    /// Hands over what can be handed over, then takes in the oldest answer. One exchange at least, unless no rank could have
    /// anything to say.
    ///
    /// # Errors
    /// A step or an exchange failed. The requests in flight have ended by then: `events` holds what their clients are told.
    pub fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        while self.flight.len() < self.depth {
            let plan = self.scheduler.schedule();
            self.side.prepare(&mut self.scheduler, &mut self.orders, events);
            let Orders { commands, imports } = std::mem::take(&mut self.orders);
            let host = self.scheduler.take_host_orders();
            let nothing = plan.is_none() && commands.is_empty() && imports.is_empty() && host.is_empty();
            let asks = self.flight.is_empty() && (self.side.listens() || self.scheduler.has_copies());
            if nothing && !asks {
                break;
            }
            let plan = plan.unwrap_or(StepPlan { step: 0, num_decode: 0, entries: Vec::new() });
            let exports = self.side.exports(&plan);
            let work = Work { commands, imports: imports.clone(), exports, host: host.clone(), ..plan.clone().into() };
            let submitted = self.runner.submit_work(work);
            self.flight.push_back(InFlight { plan, imports, host });
            if let Err(error) = submitted {
                return self.fail(error, events);
            }
        }
        if self.flight.is_empty() {
            self.news = false;
            return Ok(());
        }
        match self.runner.wait_agreed() {
            Ok((output, agreed)) => {
                let InFlight { plan, imports, host } =
                    self.flight.pop_front().expect("the runner answers orders in flight");
                let computed = !plan.entries.is_empty();
                // First what is here now: a text that ends with this step is still offered to the prefix cache.
                self.scheduler.host_carried_out(&host);
                self.scheduler.host_seen(&agreed.copies);
                if computed {
                    events.extend(self.scheduler.commit(&plan, &output)?);
                }
                self.side.carried_out(&imports, &mut self.scheduler);
                self.side.take_in(&agreed, &mut self.scheduler, &mut self.orders, events);
                let last = &self.last;
                let seen = agreed.rooms != last.rooms || agreed.copies != last.copies || agreed.peers != last.peers;
                self.news = computed || !imports.is_empty() || seen;
                self.progress += u64::from(self.news);
                self.last = agreed;
                Ok(())
            }
            Err(error) => self.fail(error, events),
        }
    }

    /// Ends everything in flight.
    fn fail(&mut self, error: RunError, events: &mut Vec<Event>) -> Result<(), EngineError> {
        self.scheduler.host_lost();
        for InFlight { plan, imports, .. } in std::mem::take(&mut self.flight) {
            if !plan.entries.is_empty() {
                events.extend(self.scheduler.fail(&plan, &error.to_string())?);
            }
            self.side.carried_out(&imports, &mut self.scheduler);
        }
        Err(error.into())
    }
}
