//! The word of a page.

use super::GateError;
use crate::ids::RoomKey;
use std::fmt;

/// Epochs in a tag.
const EPOCH_BITS: u32 = 16;
/// The word of a page that was taken back: an epoch of zero, which no tag has.
pub(super) const REVOKED: u64 = 1 << EPOCH_BITS;

/// Generation of a page: room and epoch of whoever filled it, in one word that is never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u64);

impl Tag {
    /// The tag of a room. Requests of a single process use their own number as room and 1 as epoch.
    ///
    /// # Errors
    /// A room from 2^48, an epoch of 0 or from 65,536: they do not fit a word. Rooms are numbered from 1 upwards, so no
    /// process lives to see them.
    pub fn new(key: RoomKey) -> Result<Self, GateError> {
        let RoomKey { room, epoch } = key;
        if room >> (u64::BITS - EPOCH_BITS) != 0 || epoch == 0 || epoch >> EPOCH_BITS != 0 {
            return Err(GateError::Key { room, epoch });
        }
        Ok(Self(room << EPOCH_BITS | u64::from(epoch)))
    }

    /// Room and epoch.
    pub fn key(self) -> RoomKey {
        RoomKey { room: self.0 >> EPOCH_BITS, epoch: (self.0 & ((1 << EPOCH_BITS) - 1)) as u32 }
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({self})")
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key().fmt(f)
    }
}

/// Whose a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Nobody's since the start.
    Free,
    /// Nobody's since it was taken back.
    Revoked,
    /// Of a generation.
    Tag(Tag),
}

impl Holder {
    pub(super) fn of(word: u64) -> Self {
        match word {
            0 => Self::Free,
            REVOKED => Self::Revoked,
            word => Self::Tag(Tag(word)),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("a free page"),
            Self::Revoked => f.write_str("a revoked page"),
            Self::Tag(tag) => tag.fmt(f),
        }
    }
}
