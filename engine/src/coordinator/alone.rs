//! The side of an engine that computes its prompts itself.

use super::{Coordinator, Orders, Side};
use crate::engine::Schedule;
use crate::handover::{Export, Import};
use crate::ids::SequenceId;
use crate::runner::Runner;
use crate::scheduler::{AddError, Scheduler};
use crate::sequence::{Event, Request};
use crate::step::StepPlan;
use transfer::exchange::Agreed;

/// No rooms.
#[derive(Debug, Default)]
pub struct Alone;

impl Coordinator<Alone> {
    /// An engine whose runner has the pools that the scheduler deals out, and the host slots if it has any.
    pub fn new(scheduler: Scheduler, runner: Runner, schedule: Schedule) -> Self {
        Self::on_side(scheduler, runner, schedule, Alone)
    }
}

impl Side for Alone {
    fn add(&mut self, request: Request, scheduler: &mut Scheduler) -> Result<SequenceId, AddError> {
        scheduler.add(request)
    }

    fn cancel(&mut self, id: SequenceId, scheduler: &mut Scheduler, _: &mut Orders) -> Option<Event> {
        scheduler.cancel(id)
    }

    fn prepare(&mut self, _: &mut Scheduler, _: &mut Orders, _: &mut Vec<Event>) {}

    fn exports(&mut self, _: &StepPlan) -> Vec<Export> {
        Vec::new()
    }

    fn carried_out(&mut self, _: &[Import], _: &mut Scheduler) {}

    fn take_in(&mut self, _: &Agreed, _: &mut Scheduler, _: &mut Orders, _: &mut Vec<Event>) {}

    fn is_waiting(&self) -> bool {
        false
    }

    fn listens(&self) -> bool {
        false
    }
}
