//! The rank's end of a driver.

use super::{Shared, Snapshot};
use crate::arena::Arena;
use crate::exchange::{Command, PeerSeen, PortError, RoomPort, RoomSeen};
use crate::hello::Side;
use crate::ids::{RoomKey, Unit};
use crate::room::Outcome;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// What the rank's thread tells the driver.
#[derive(Debug)]
pub(super) enum Message {
    /// A command of a decision.
    Apply(Command),
    /// A unit stands in the arena.
    LayerDone(RoomKey, Unit),
    /// The end.
    Stop,
}

/// [`RoomPort`] over a running [`Driver`](super::Driver).
#[derive(Debug)]
pub struct DriverPort {
    side: Side,
    commands: UnboundedSender<Message>,
    shared: Arc<Shared>,
    arena: Arc<Arena>,
}

impl DriverPort {
    pub(super) fn new(side: Side, commands: UnboundedSender<Message>, shared: Arc<Shared>, arena: Arc<Arena>) -> Self {
        Self { side, commands, shared, arena }
    }

    pub(super) fn commands(&self) -> UnboundedSender<Message> {
        self.commands.clone()
    }

    /// What the driver knows now, beyond what an exchange needs.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot()
    }

    fn send(&self, message: Message) -> Result<(), PortError> {
        self.commands.send(message).map_err(|_| PortError("the transfer thread has ended".into()))
    }
}

/// A snapshot as an exchange sees it.
pub(super) fn seen(side: Side, snapshot: &Snapshot) -> BTreeMap<RoomKey, RoomSeen> {
    let ghosts = snapshot
        .ghosts
        .iter()
        .map(|(&key, reason)| (key, RoomSeen { failed: Some(reason.clone()), quiet: true, ..RoomSeen::default() }));
    let rooms = snapshot.rooms.iter().map(|(&key, room)| {
        let failed = match &room.outcome {
            Outcome::Failed(reason) => Some(reason.clone()),
            Outcome::Opening | Outcome::Placed | Outcome::Moving | Outcome::Published | Outcome::Finished => None,
        };
        let (arrived, landed, done) = match side {
            Side::Prefill => (Some(Arc::clone(&room.request)), Default::default(), None),
            Side::Decode => (None, room.landed, room.handover.clone()),
        };
        (key, RoomSeen { arrived, landed, done, failed, quiet: room.free })
    });
    ghosts.chain(rooms).collect()
}

impl RoomPort for DriverPort {
    fn apply(&mut self, command: &Command) -> Result<(), PortError> {
        self.send(Message::Apply(command.clone()))
    }

    fn view(&mut self) -> BTreeMap<RoomKey, RoomSeen> {
        seen(self.side, &self.shared.snapshot())
    }

    fn peers(&mut self) -> Vec<PeerSeen> {
        self.shared.snapshot().targets.clone()
    }

    fn layer_done(&mut self, key: RoomKey, unit: Unit) -> Result<(), PortError> {
        self.send(Message::LayerDone(key, unit))
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), PortError> {
        self.arena.read(offset, bytes).map_err(|error| PortError(error.to_string()))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PortError> {
        self.arena.write(offset, bytes).map_err(|error| PortError(error.to_string()))
    }
}
