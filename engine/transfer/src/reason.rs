//! Why a room or a peer failed: a code for programs, a sentence for the client and the log.

use std::fmt;

/// Bytes of a reason's text, which peers write too; the rest is cut at a character boundary.
pub const MAX_TEXT_BYTES: usize = 1024;

/// What kind of end it was. The number is the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Code {
    /// A code of another version.
    Unknown = 0,
    /// The prefill server does not take the request, e.g. a prompt that is too long.
    Refused = 1,
    /// The rank, the server or the client gave up.
    Aborted = 2,
    /// No answer to OPEN.
    Handshake = 3,
    /// No beat named the room.
    Lease = 4,
    /// No unit for too long while units were on their way.
    NoProgress = 5,
    /// All landed, and the scheduler did not take it.
    NotTaken = 6,
    /// DONE was never acknowledged.
    NotAcknowledged = 7,
    /// A post failed.
    Transport = 8,
    /// The peer said what it must not say in this state.
    Protocol = 9,
    /// The connection ended, or was silent.
    PeerLost = 10,
    /// The connection was torn down to end a writer.
    TornDown = 11,
    /// The room is over and forgotten.
    Gone = 12,
    /// No room for more rooms, or a full send queue.
    Overloaded = 13,
    /// The request's own deadline passed.
    Deadline = 14,
    /// Bytes of a page differ from what was sent.
    Checksum = 15,
    /// Host memory does not hold what was asked of it, or does not take it.
    HostMemory = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Code; 17] = [
        Code::Unknown,
        Code::Refused,
        Code::Aborted,
        Code::Handshake,
        Code::Lease,
        Code::NoProgress,
        Code::NotTaken,
        Code::NotAcknowledged,
        Code::Transport,
        Code::Protocol,
        Code::PeerLost,
        Code::TornDown,
        Code::Gone,
        Code::Overloaded,
        Code::Deadline,
        Code::Checksum,
        Code::HostMemory,
    ];

    /// Code of a number of the wire; [`Code::Unknown`] for one that this version does not have.
    pub fn from_wire(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Code::Unknown)
    }
}

/// Why something ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Reason {
    /// For programs.
    pub code: Code,
    /// For people; may be empty.
    pub text: String,
}

impl Reason {
    /// A reason with a text.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        Self { code, text }
    }

    /// The text as far as it travels.
    pub(crate) fn wire_text(&self) -> &str {
        &self.text[..self.text.floor_char_boundary(MAX_TEXT_BYTES)]
    }
}

impl From<Code> for Reason {
    fn from(code: Code) -> Self {
        Self { code, text: String::new() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            "" => write!(f, "{:?}", self.code),
            text => write!(f, "{:?}: {text}", self.code),
        }
    }
}
