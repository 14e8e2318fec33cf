//! Control frames: what two endpoints say to each other about rooms. Page bytes never travel in them.
//!
//! Header of 36 bytes, little-endian, then the body:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `KVPD` |
//! | 4 | version of the header |
//! | 5 | kind |
//! | 6..8 | zero |
//! | 8..12 | bytes of the body, at most 1 MiB |
//! | 12..20, 20..24 | room, epoch; both 0 in a frame about the connection |
//! | 24..32 | sequence, from 1, rising by one in each direction of a connection |
//! | 32..36 | crc32c over bytes 0..32 and the body |
//!
//! [`decode`] is total: any bytes give a frame, a wish for more, or an error. A whole frame that is not understood (kind,
//! body) is skipped, since its length is known; where magic, version, length or sum are wrong, nobody knows where the next
//! frame starts, and the connection is over.

mod stream;
mod wire;

pub use stream::FrameReader;
pub use wire::{decode, encode, open_bytes};

use crate::hello::{Hello, Refusal};
use crate::ids::{RoomKey, Unit};
use crate::layout::PagesByClass;
use crate::reason::Reason;
use thiserror::Error;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"KVPD";
/// Version of the header; [`Hello::protocol`] is that of the conversation.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 36;
/// Most bytes of a body.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// The key of frames that concern no room.
pub const NO_ROOM: RoomKey = RoomKey { room: 0, epoch: 0 };

/// Kinds of frames. The number is the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Who I am and what I need; first frame in both directions.
    Hello = 1,
    /// We do not fit.
    Refuse = 2,
    /// Decode: a request and the pages it lands in.
    Open = 3,
    /// Decode: say again what has landed and whether it is done.
    Ask = 4,
    /// Prefill: a unit has landed.
    Layer = 5,
    /// Prefill: all units have landed, nothing more will be written.
    Done = 6,
    /// Decode: DONE arrived and all is there.
    DoneAck = 7,
    /// The sender's side of the room failed.
    Fail = 8,
    /// Stop, and say when nothing is written any more.
    Abort = 9,
    /// Answer to ABORT.
    AbortAck = 10,
    /// Decode: how far are the posts over?
    Fence = 11,
    /// Prefill: posts up to this number are terminal.
    FenceAck = 12,
    /// Both: alive, and the stage of every room.
    Beat = 13,
    /// The sender closes in an orderly way.
    Bye = 14,
}

impl Kind {
    /// All kinds, in the order of their numbers, from 1.
    pub const ALL: [Kind; 14] = [
        Kind::Hello,
        Kind::Refuse,
        Kind::Open,
        Kind::Ask,
        Kind::Layer,
        Kind::Done,
        Kind::DoneAck,
        Kind::Fail,
        Kind::Abort,
        Kind::AbortAck,
        Kind::Fence,
        Kind::FenceAck,
        Kind::Beat,
        Kind::Bye,
    ];

    /// Kind of a number of the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Name in messages and in rules of faults.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Hello => "HELLO",
            Kind::Refuse => "REFUSE",
            Kind::Open => "OPEN",
            Kind::Ask => "ASK",
            Kind::Layer => "LAYER",
            Kind::Done => "DONE",
            Kind::DoneAck => "DONE_ACK",
            Kind::Fail => "FAIL",
            Kind::Abort => "ABORT",
            Kind::AbortAck => "ABORT_ACK",
            Kind::Fence => "FENCE",
            Kind::FenceAck => "FENCE_ACK",
            Kind::Beat => "BEAT",
            Kind::Bye => "BYE",
        }
    }

    /// Whether the frame is about a room.
    pub fn names_room(self) -> bool {
        match self {
            Kind::Hello | Kind::Refuse | Kind::Fence | Kind::FenceAck | Kind::Beat | Kind::Bye => false,
            Kind::Open | Kind::Ask | Kind::Layer | Kind::Done => true,
            Kind::DoneAck | Kind::Fail | Kind::Abort | Kind::AbortAck => true,
        }
    }
}

/// How far the sender of a beat is with a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Stage {
    /// Asked for, or seen.
    Opening = 0,
    /// Both sides have pages; queued or computing.
    Placed = 1,
    /// Units travel.
    Moving = 2,
    /// All units are there.
    Published = 3,
}

/// A request from decode to prefill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// Milliseconds the request may still take when this is sent; 0 = no limit.
    pub deadline_ms: u32,
    /// Higher goes first; for the scheduler of the prefill server.
    pub priority: u8,
    /// The request as the engine writes it; opaque here.
    pub request: Vec<u8>,
    /// Landing pages of the decode rank, by class: from here on they may be written.
    pub pages: PagesByClass,
}

/// Whether a writer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Drain {
    /// Posts up to this number may still write.
    Draining {
        /// Number of the room's last post.
        upto: u64,
    },
    /// Every post is terminal, none will follow.
    Quiet,
}

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// [`Kind::Hello`].
    Hello(Box<Hello>),
    /// [`Kind::Refuse`].
    Refuse(Refusal),
    /// [`Kind::Open`].
    Open(Open),
    /// [`Kind::Ask`].
    Ask,
    /// [`Kind::Layer`].
    Layer {
        /// The unit that landed.
        unit: Unit,
        /// xxh3-64 of every page of the unit in the order of [`crate::layout::Layout::copies`]; empty when checksums are off.
        checksums: Vec<u64>,
    },
    /// [`Kind::Done`].
    Done {
        /// Units sent; must equal the units of the layout.
        units: u32,
        /// What decode needs beside the pages (first token, counts, sampling state); opaque here.
        handover: Vec<u8>,
    },
    /// [`Kind::DoneAck`].
    DoneAck,
    /// [`Kind::Fail`].
    Fail(Reason),
    /// [`Kind::Abort`].
    Abort(Reason),
    /// [`Kind::AbortAck`].
    AbortAck(Drain),
    /// [`Kind::Fence`].
    Fence {
        /// Number of the post that the asker waits for.
        upto: u64,
    },
    /// [`Kind::FenceAck`].
    FenceAck {
        /// Every post with this number or a lower one is terminal.
        upto: u64,
    },
    /// [`Kind::Beat`].
    Beat(Vec<(RoomKey, Stage)>),
    /// [`Kind::Bye`].
    Bye,
}

impl Body {
    /// Kind.
    pub fn kind(&self) -> Kind {
        match self {
            Body::Hello(_) => Kind::Hello,
            Body::Refuse(_) => Kind::Refuse,
            Body::Open(_) => Kind::Open,
            Body::Ask => Kind::Ask,
            Body::Layer { .. } => Kind::Layer,
            Body::Done { .. } => Kind::Done,
            Body::DoneAck => Kind::DoneAck,
            Body::Fail(_) => Kind::Fail,
            Body::Abort(_) => Kind::Abort,
            Body::AbortAck(_) => Kind::AbortAck,
            Body::Fence { .. } => Kind::Fence,
            Body::FenceAck { .. } => Kind::FenceAck,
            Body::Beat(_) => Kind::Beat,
            Body::Bye => Kind::Bye,
        }
    }
}

/// One control frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The room, or [`NO_ROOM`].
    pub key: RoomKey,
    /// Number of the frame in its direction of the connection.
    pub sequence: u64,
    /// Content.
    pub body: Body,
}

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Not our stream, or a lost place in it.
    #[error("frame starts with {got:02x?}, expected {MAGIC:02x?}")]
    Magic {
        /// First bytes, zeros behind those that arrived.
        got: [u8; 4],
    },
    /// A header of another version.
    #[error("frame header version {got}, expected {VERSION}")]
    Version {
        /// Theirs.
        got: u8,
    },
    /// Longer than a body may be.
    #[error("body of {got} bytes in a frame of kind {kind}, at most {MAX_BODY_BYTES}")]
    Length {
        /// Kind as a number.
        kind: u8,
        /// Length.
        got: u64,
    },
    /// Damaged on the way.
    #[error("frame of kind {kind}: crc32c {got:08x}, expected {expected:08x}")]
    Crc {
        /// Kind as a number.
        kind: u8,
        /// Of the bytes.
        expected: u32,
        /// In the header.
        got: u32,
    },
    /// A kind of another version.
    #[error("unknown kind {got}")]
    Kind {
        /// Number.
        got: u8,
    },
    /// A whole and undamaged frame with a body that makes no sense.
    #[error("{kind:?}: {what}")]
    Body {
        /// Kind.
        kind: Kind,
        /// What is wrong.
        what: String,
    },
}

impl FrameError {
    /// Whether the place of the next frame is unknown, so that the connection must end.
    pub fn loses_stream(&self) -> bool {
        match self {
            FrameError::Magic { .. } | FrameError::Version { .. } => true,
            FrameError::Length { .. } | FrameError::Crc { .. } => true,
            FrameError::Kind { .. } | FrameError::Body { .. } => false,
        }
    }
}

/// What bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// A frame, and the bytes it took.
    Frame {
        /// The frame.
        frame: Frame,
        /// Its bytes.
        used: usize,
    },
    /// A whole frame that is not understood, to be skipped.
    Skip {
        /// Why.
        error: FrameError,
        /// Its bytes.
        used: usize,
    },
    /// The beginning of a frame.
    NeedMore,
    /// No frame, and no telling where one starts.
    Lost(FrameError),
}

#[cfg(all(test, not(loom)))]
mod tests;
