//! Page bytes from one arena to another.
//!
//! A post ends in one of three ways, and they differ in what they say about memory: done (all bytes are there and nothing
//! more is written), refused (nothing more is written), failed (nobody knows). So a failed post leaves its peer unproven
//! until it is torn down: an error is an outcome, never an end of writing. Tickets stay in a table until they end; there is
//! no handle that could be dropped.

pub mod in_process;
pub mod tcp;

mod bounds;
#[cfg(any(all(test, not(loom)), feature = "suite"))]
pub mod suite;
mod tickets;

pub use bounds::Bounds;
pub use tickets::Tickets;

use crate::arena::Arena;
use crate::ids::{PeerId, RoomKey, Ticket};
use crate::layout::{Layout, PageCopy};
use crate::room::Proof;
use std::sync::Arc;
use thiserror::Error;

/// Copies of one post at most; larger ones are split by the caller.
pub const MAX_COPIES: usize = 1 << 16;

/// Direction of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// From this arena into the peer's: `src` is here, `dst` there.
    Write,
    /// From the peer's arena into this one: `src` is there, `dst` here.
    Read,
}

/// Copies that are made and end together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// The caller's number, larger than all before.
    pub ticket: Ticket,
    /// Direction.
    pub op: Op,
    /// Other side.
    pub peer: PeerId,
    /// For whom; the other side may refuse rooms and epochs that it does not expect.
    pub tag: RoomKey,
    /// Ranges, each inside one page; at most [`MAX_COPIES`].
    pub copies: Vec<PageCopy>,
}

/// How a post ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All bytes are where they belong, and nothing more will be written.
    Done,
    /// Not all bytes were taken, and nothing more will be written.
    Refused(String),
    /// Nobody knows which bytes were or will be written. Only a tear-down ends it.
    Failed(String),
}

/// What a transport reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A post ended; once per ticket.
    Ended {
        /// Which.
        ticket: Ticket,
        /// How.
        end: End,
    },
    /// A connection of this peer broke. Its open posts have failed; it is not quiet before [`Transport::tear_down`].
    Lost {
        /// Peer.
        peer: PeerId,
        /// What happened.
        reason: String,
    },
}

/// Bytes and refusals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Page bytes taken from this arena for peers.
    pub sent_bytes: u64,
    /// Page bytes written into this arena.
    pub landed_bytes: u64,
    /// Page bytes that arrived for a room not expected, or for a range outside a page, and were dropped.
    pub stale_bytes: u64,
    /// Byte strings from peers that are no message.
    pub malformed: u64,
}

/// Why a call was refused; nothing was started then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TransportError {
    /// [`Transport::register`] has not been called.
    #[error("no arena is registered")]
    NoArena,
    /// [`Transport::register`] twice.
    #[error("an arena is registered already")]
    SecondArena,
    /// An arena smaller than the layout.
    #[error("the layout needs {layout} bytes, the arena has {arena}")]
    Arena {
        /// Bytes of the layout.
        layout: u64,
        /// Bytes of the arena.
        arena: u64,
    },
    /// A peer that is not connected (any more).
    #[error("peer {0} is not connected")]
    Peer(PeerId),
    /// A number that stands for a peer already.
    #[error("peer {0} is connected already")]
    PeerAgain(PeerId),
    /// A blob that this transport did not make.
    #[error("peer {peer}: its blob is not one of transport {transport}: {reason}")]
    Blob {
        /// Peer.
        peer: PeerId,
        /// This transport.
        transport: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A ticket that does not rise.
    #[error("ticket {got} after {last}: tickets rise, also over fences")]
    Ticket {
        /// Largest so far.
        last: Ticket,
        /// Number given.
        got: Ticket,
    },
    /// A range of this arena that is not inside one page.
    #[error("copy {copy} of ticket {ticket}: bytes {offset}..{offset}+{bytes} are not inside one page")]
    Range {
        /// Post.
        ticket: Ticket,
        /// Which of its copies.
        copy: usize,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Too many copies.
    #[error("ticket {ticket} has {got} copies, at most {MAX_COPIES} are possible")]
    Copies {
        /// Post.
        ticket: Ticket,
        /// Copies given.
        got: usize,
    },
    /// The peer does not keep up.
    #[error("peer {0}: the queue of posts is full")]
    Full(PeerId),
    /// The operating system refused, or a fault said so.
    #[error("transport {transport}: {reason}")]
    System {
        /// This transport.
        transport: &'static str,
        /// What happened.
        reason: String,
    },
}

/// Moves pages between arenas. One arena per transport; no call waits for a peer, except that [`Transport::tear_down`]
/// waits for own threads.
pub trait Transport: Send {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// The memory that peers may write and read. Once, before anything else.
    ///
    /// # Errors
    /// Twice; an arena smaller than its layout; what the system refuses.
    fn register(&mut self, arena: Arc<Arena>, layout: &Layout) -> Result<(), TransportError>;

    /// What this peer needs to reach the arena; it travels in HELLO. Of some transports each peer gets its own object, which
    /// a tear-down destroys, so the number must be the one of [`Transport::connect`]. Empty before an arena is registered.
    fn blob(&mut self, peer: PeerId) -> Vec<u8>;

    /// Admits a peer by its blob, for posts in both directions. A number is used once: a peer that comes back gets a new one.
    ///
    /// # Errors
    /// A foreign blob; a number in use.
    fn connect(&mut self, peer: PeerId, blob: &[u8]) -> Result<(), TransportError>;

    /// From now on bytes of this room may land. Before it, transports whose own threads write drop them
    /// ([`Counters::stale_bytes`]); one-sided transports cannot, and do nothing.
    fn admit(&mut self, _tag: RoomKey) {}

    /// From now on bytes of this room are dropped on arrival, where that is possible. Not a proof: a page may be half written.
    fn expire(&mut self, _tag: RoomKey) {}

    /// Whether [`Transport::admit`] and [`Transport::expire`] do anything.
    fn drops_stale(&self) -> bool {
        false
    }

    /// Whether peers reach the arena without any code of this side. Then what lands is not counted, and the end of a peer that
    /// only writes is not noticed here: the control connection tells.
    fn one_sided(&self) -> bool {
        false
    }

    /// Starts copies. They run until they end or the peer is torn down.
    ///
    /// # Errors
    /// What can be seen at once; the ticket is then never reported, and quiet.
    fn post(&mut self, post: Post) -> Result<(), TransportError>;

    /// Makes progress and says what ended. Never waits. The receiver of bytes polls, too, before it reads pages of which a
    /// frame said that they are complete: this orders its reads after the writes.
    fn poll(&mut self) -> Vec<News>;

    /// Whether every post to this peer up to a number has ended without doubt. If so, none with such a number will be made.
    fn prove_quiet(&mut self, peer: PeerId, upto: Ticket) -> Option<Proof>;

    /// Ends all traffic with a peer. When it returns, nothing of this peer touches this arena any more, for writing or for
    /// reading; the peer's arena is not vouched for (bytes may be in flight): its own side tears down too. Open tickets are
    /// reported as failed by the next poll, and are quiet. An unknown peer is quiet.
    fn tear_down(&mut self, peer: PeerId) -> Proof;

    /// Counters.
    fn counters(&self) -> Counters;
}
