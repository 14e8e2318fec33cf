//! One connection.

use crate::hello::Hello;
use crate::ids::PeerId;
use crate::layout::Layout;
use std::time::Duration;

/// What can be wrong with what a peer sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// Bytes that are no frame; the connection ended.
    Stream,
    /// A kind of another version; skipped.
    UnknownKind,
    /// A body that makes no sense; skipped.
    Body,
    /// A frame before HELLO, or a second HELLO.
    Early,
    /// A frame that makes no sense in the room's state, or comes from the wrong side.
    Misplaced,
    /// Sequence that does not rise: a repeated or overtaken frame; dropped.
    StaleSequence,
    /// Frames that are missing before this one.
    Gap,
    /// A frame of another epoch; dropped.
    StaleEpoch,
    /// A frame about a room that is not there.
    UnknownRoom,
    /// The send queue is full.
    Overflow,
    /// The handshake ended in a refusal.
    Refused,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [ErrorKind; 11] = [
        ErrorKind::Stream,
        ErrorKind::UnknownKind,
        ErrorKind::Body,
        ErrorKind::Early,
        ErrorKind::Misplaced,
        ErrorKind::StaleSequence,
        ErrorKind::Gap,
        ErrorKind::StaleEpoch,
        ErrorKind::UnknownRoom,
        ErrorKind::Overflow,
        ErrorKind::Refused,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Stream => "stream",
            ErrorKind::UnknownKind => "unknown_kind",
            ErrorKind::Body => "body",
            ErrorKind::Early => "early",
            ErrorKind::Misplaced => "misplaced",
            ErrorKind::StaleSequence => "stale_sequence",
            ErrorKind::Gap => "gap",
            ErrorKind::StaleEpoch => "stale_epoch",
            ErrorKind::UnknownRoom => "unknown_room",
            ErrorKind::Overflow => "overflow",
            ErrorKind::Refused => "refused",
        }
    }

    /// Whether a peer that does it again and again is closed. The others happen to honest peers: newer versions, lossy
    /// wires, rooms that ended meanwhile.
    fn is_fault(self) -> bool {
        match self {
            ErrorKind::Body | ErrorKind::Early | ErrorKind::Misplaced => true,
            ErrorKind::Stream | ErrorKind::UnknownKind | ErrorKind::StaleSequence | ErrorKind::Gap => false,
            ErrorKind::StaleEpoch | ErrorKind::UnknownRoom | ErrorKind::Overflow | ErrorKind::Refused => false,
        }
    }
}

/// Errors by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors([u64; ErrorKind::ALL.len()]);

impl Errors {
    pub(super) fn count(&mut self, kind: ErrorKind) {
        self.0[kind as usize] += 1;
    }

    /// How many of a kind.
    pub fn of(&self, kind: ErrorKind) -> u64 {
        self.0[kind as usize]
    }

    /// Kinds with their counts, zeros too.
    pub fn iter(&self) -> impl Iterator<Item = (ErrorKind, u64)> {
        ErrorKind::ALL.into_iter().map(|kind| (kind, self.of(kind)))
    }

    /// Errors that close a connection when there are too many.
    pub(super) fn faults(&self) -> u64 {
        self.iter().filter(|(kind, _)| kind.is_fault()).map(|(_, count)| count).sum()
    }
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// HELLO is not here yet.
    Greeting,
    /// Both sides fit.
    Ready,
    /// To be torn down.
    Closing,
}

/// A connection as others see it.
#[derive(Debug, Clone, Copy)]
pub struct PeerView<'a> {
    /// Connection.
    pub id: PeerId,
    /// Whether both sides have said HELLO and fit.
    pub ready: bool,
    /// What the other side said of itself; its blob is for the transport.
    pub hello: Option<&'a Hello>,
    /// Errors by kind.
    pub errors: &'a Errors,
    /// Bytes queued and not yet written.
    pub queued_bytes: usize,
    /// When anything was heard last.
    pub heard: Duration,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) phase: Phase,
    pub(super) since: Duration,
    pub(super) heard: Duration,
    pub(super) next_beat: Duration,
    pub(super) hello: Option<Hello>,
    pub(super) layout: Option<Layout>,
    /// Sequence of the last frame in each direction.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) queued_bytes: usize,
    pub(super) errors: Errors,
    /// Post that rooms of this peer wait for.
    pub(super) fence: Option<u64>,
}

impl Peer {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            phase: Phase::Greeting,
            since: now,
            heard: now,
            next_beat: now,
            hello: None,
            layout: None,
            sent: 0,
            received: 0,
            queued_bytes: 0,
            errors: Errors::default(),
            fence: None,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn view(&self, id: PeerId) -> PeerView<'_> {
        let Self { hello, errors, queued_bytes, heard, .. } = self;
        let ready = self.phase == Phase::Ready;
        PeerView { id, ready, hello: hello.as_ref(), errors, queued_bytes: *queued_bytes, heard: *heard }
    }
}
