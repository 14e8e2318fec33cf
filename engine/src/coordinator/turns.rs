//! A coordinator as something that a thread turns.

use super::{Coordinator, Side};
use crate::engine::{EngineError, Turns};
use crate::ids::SequenceId;
use crate::progress::Part;
use crate::scheduler::{AddError, Scheduler};
use crate::sequence::{Event, Request};
use std::sync::Arc;

impl<S: Side> Turns for Coordinator<S> {
    fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        Coordinator::add(self, request)
    }

    fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        Coordinator::cancel(self, id)
    }

    fn has_work(&self) -> bool {
        Coordinator::has_work(self)
    }

    fn is_idle(&self) -> bool {
        Coordinator::is_idle(self)
    }

    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        Coordinator::turn(self, events)
    }

    fn scheduler(&self) -> &Scheduler {
        Coordinator::scheduler(self)
    }

    fn rank_parts(&self) -> &[Arc<Part>] {
        Coordinator::rank_parts(self)
    }

    /// News of a room or a copy count too: what lands is no standstill.
    fn progress(&self) -> u64 {
        self.progress
    }
}
