//! What the gate refuses.

use super::{Holder, Tag};
use crate::ids::{Class, Unit};
use thiserror::Error;

/// Why pages cannot be claimed, published, read or revoked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GateError {
    /// Another generation.
    #[error("page {page} of class {class}: expected {expected}, found {found}")]
    Tag {
        /// Class.
        class: String,
        /// Page.
        page: u32,
        /// Generation of the caller.
        expected: Tag,
        /// Whose the page is.
        found: Holder,
    },
    /// Not all bytes are there.
    #[error("unit {unit} of page {page} of class {class} is not published ({tag})")]
    Unpublished {
        /// Unit.
        unit: Unit,
        /// Class.
        class: String,
        /// Page.
        page: u32,
        /// Its generation.
        tag: Tag,
    },
    /// A claim of a page that is somebody's.
    #[error("page {page} of class {class} is claimed for {claimed}, but it belongs to {by}")]
    Taken {
        /// Class.
        class: String,
        /// Page.
        page: u32,
        /// Who wants it.
        claimed: Tag,
        /// Whose it is.
        by: Holder,
    },
    /// A claim of a page that was revoked while in use.
    #[error("page {page} of class {class} is claimed for {claimed}, but still read or filled under {by}")]
    Busy {
        /// Class.
        class: String,
        /// Page.
        page: u32,
        /// Who wants it.
        claimed: Tag,
        /// Its last generation.
        by: Tag,
    },
    /// A page that the gate does not have.
    #[error("page {page} of class {class}: the gate has {num_pages}")]
    Page {
        /// Class.
        class: String,
        /// Page.
        page: u32,
        /// Pages there are.
        num_pages: u32,
    },
    /// A class that the gate does not have.
    #[error("class {class}: the gate has {classes}")]
    Class {
        /// Class.
        class: Class,
        /// Classes there are.
        classes: usize,
    },
    /// A unit that the gate does not have.
    #[error("unit {unit}: the gate has {num_units}")]
    Unit {
        /// Unit.
        unit: Unit,
        /// Units there are.
        num_units: u32,
    },
    /// A page twice in one claim.
    #[error("page {page} of class {class} stands twice in a claim for {claimed}")]
    Twice {
        /// Class.
        class: String,
        /// Page.
        page: u32,
        /// Who wants it.
        claimed: Tag,
    },
    /// A key too large for a word of 64 bits.
    #[error("room {room} epoch {epoch}: a tag holds rooms below 2^48 and epochs from 1 to 65,535")]
    Key {
        /// Room.
        room: u64,
        /// Epoch.
        epoch: u32,
    },
    /// More copies reported than announced.
    #[error("unit {unit}, {item}: a copy was reported beyond the number announced")]
    Overrun {
        /// Unit.
        unit: Unit,
        /// Item.
        item: String,
    },
    /// The wait took too long.
    #[error("deadline: {0}")]
    Deadline(Box<GateError>),
}
