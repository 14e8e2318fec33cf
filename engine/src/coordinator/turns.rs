//! A coordinator as something that a thread turns.

use super::{Coordinator, Side};
use crate::engine::{EngineError, Turns};
use crate::ids::SequenceId;
use crate::progress::Part;
use crate::scheduler::{AddError, Scheduler};
use crate::sequence::{Event, Request};
use std::sync::Arc;

/// A coordinator with a count of its progress. News of a room count too: units that land are no standstill.
#[derive(Debug)]
pub struct RoomLoop<S> {
    coordinator: Coordinator<S>,
    progress: u64,
}

impl<S: Side> RoomLoop<S> {
    /// Around a coordinator.
    pub fn new(coordinator: Coordinator<S>) -> Self {
        Self { coordinator, progress: 0 }
    }
}

impl<S: Side> Turns for RoomLoop<S> {
    fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        self.coordinator.add(request)
    }

    fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        self.coordinator.cancel(id)
    }

    fn has_work(&self) -> bool {
        self.coordinator.has_work()
    }

    fn is_idle(&self) -> bool {
        self.coordinator.is_idle()
    }

    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let turned = self.coordinator.turn(events);
        self.progress += u64::from(self.coordinator.news);
        turned
    }

    fn scheduler(&self) -> &Scheduler {
        self.coordinator.scheduler()
    }

    fn rank_parts(&self) -> &[Arc<Part>] {
        self.coordinator.runner.parts()
    }

    fn progress(&self) -> u64 {
        self.progress
    }
}
