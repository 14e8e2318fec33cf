//! A rank's own end of the rooms.

use super::{Command, PeerSeen, RoomSeen};
use crate::ids::{RoomKey, Unit};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// The arena or the endpoint did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct PortError(pub String);

/// The rooms of one rank as its engine thread sees them: commands in, a view out, bytes of the arena. Nothing here waits.
pub trait RoomPort: fmt::Debug + Send {
    /// Carries out a command of a decision.
    ///
    /// # Errors
    /// The endpoint is gone. What a command meets in its room is seen in the view, never an error.
    fn apply(&mut self, command: &Command) -> Result<(), PortError>;

    /// What this rank sees now: every room from OPEN until it is told to forget it.
    fn view(&mut self) -> BTreeMap<RoomKey, RoomSeen>;

    /// Decode: the prefill servers as this rank sees them now, in the order of the command line.
    fn peers(&mut self) -> Vec<PeerSeen>;

    /// Prefill: a unit of the room stands in the arena pages that [`Command::Accept`] named and may be sent.
    ///
    /// # Errors
    /// The endpoint is gone.
    fn layer_done(&mut self, key: RoomKey, unit: Unit) -> Result<(), PortError>;

    /// Reads bytes of the arena.
    ///
    /// # Errors
    /// Bytes outside.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), PortError>;

    /// Writes bytes of the arena.
    ///
    /// # Errors
    /// Bytes outside.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PortError>;
}
