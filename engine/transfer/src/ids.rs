//! Numbers of the protocol that must not be confused with one another.

use std::fmt;

/// A room: one request's passage from a prefill rank to the decode rank of the same number.
///
/// `room` names the request, `epoch` the attempt. Every message, tag and post carries both; what belongs to an older epoch
/// is dropped and counted, never applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct RoomKey {
    /// The request. Unique among all decode processes that reach a prefill server, earlier incarnations included: a decode
    /// process counts from a number that it draws at random when it starts.
    pub room: u64,
    /// The attempt, from 1; 0 never occurs, so that a zeroed word is nobody's.
    pub epoch: u32,
}

impl fmt::Display for RoomKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "room {} epoch {}", self.room, self.epoch)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A peer as this endpoint numbers it; a peer that comes back with another incarnation gets another number.
    PeerId(u32)
}
id! {
    /// A unit of publication: a layer, the draft layer behind the last of the trunk.
    Unit(u32)
}
id! {
    /// A class of pages that share their numbers: compressed, window, request.
    Class(u8)
}
id! {
    /// A post as the sender's endpoint numbers it, from 1, rising; ABORT_ACK and FENCE name posts by it.
    Ticket(u64)
}
