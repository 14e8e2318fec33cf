//! A room as one side sees it: a pure function (state, event) -> (state, actions), without clock or I/O.
//!
//! Two axes. The **outcome** is what the request is told; it moves forward only, Finished and Failed are final. **Quiet** is
//! whether somebody may still write (decode) or read (prefill) the room's pages. A room ends once; its pages are free when
//! it has ended *and* is quiet, and only a [`Proof`] makes it quiet: no timer, no error code, no lost connection does.
//!
//! | outcome | decode | prefill | timer |
//! |---|---|---|---|
//! | Opening | OPEN under way | OPEN seen, not admitted | handshake / lease |
//! | Placed | prefill answered | pages reserved, computing | lease, renewed by beats |
//! | Moving | units land | units are posted | progress, renewed by units; lease, once all have landed and DONE is to come |
//! | Published | all units and DONE are here | all posts done, DONE sent | taken / acknowledge |
//! | Finished | the rank took it | DONE_ACK is here | - |
//! | Failed | reason known | reason known | drain, until quiet |
//!
//! Neither side trusts the wire to deliver: OPEN, ABORT and DONE are repeated until answered, ASK asks for what is missing,
//! and every state that is not over has a timer ([`Room::timer`]).
#![deny(clippy::wildcard_enum_match_arm)]

mod decode;
mod prefill;
mod timers;
mod units;

pub use decode::unknown as unknown_to_decode;
pub use prefill::{Stranger, unknown as unknown_to_prefill};
pub use timers::{TimerError, Timers};
pub use units::UnitSet;

use crate::frame::{Drain, Stage};
use crate::hello::Side;
use crate::ids::{RoomKey, Unit};
use crate::reason::Reason;

/// What the request is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// See the table of the module.
    Opening,
    /// See the table of the module.
    Placed,
    /// See the table of the module.
    Moving,
    /// See the table of the module.
    Published,
    /// Over and good.
    Finished,
    /// Over, with a reason.
    Failed(Reason),
}

impl Outcome {
    fn rank(&self) -> u8 {
        match self {
            Outcome::Opening => 1,
            Outcome::Placed => 2,
            Outcome::Moving => 3,
            Outcome::Published => 4,
            Outcome::Finished => 5,
            Outcome::Failed(_) => 6,
        }
    }

    /// Whether the room has ended.
    pub fn is_final(&self) -> bool {
        self.rank() >= 5
    }

    /// Stage that a beat names; `None` once the room has ended.
    pub fn stage(&self) -> Option<Stage> {
        match self {
            Outcome::Opening => Some(Stage::Opening),
            Outcome::Placed => Some(Stage::Placed),
            Outcome::Moving => Some(Stage::Moving),
            Outcome::Published => Some(Stage::Published),
            Outcome::Finished | Outcome::Failed(_) => None,
        }
    }
}

/// Whether the room's pages are touched by the other side (decode) or by own posts (prefill).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quiet {
    /// Pages were never offered.
    NoWriter,
    /// Pages are offered.
    WriterPossible,
    /// The room has failed; posts may still run.
    Draining,
    /// Nothing touches the pages any more.
    Quiet(Proof),
}

/// How it is known that nothing touches the pages any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The pages never left this side.
    NeverOffered,
    /// Every own post is terminal (prefill).
    Terminal,
    /// DONE: every post of the writer is terminal.
    Done,
    /// ABORT_ACK said quiet.
    AbortAck,
    /// FENCE_ACK passed the room's last post.
    Fence,
    /// The connection is torn down: its writers cannot write any more.
    TornDown,
}

/// What a room waits for; each has its own duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// An answer to OPEN.
    Handshake,
    /// A beat that names the room.
    Lease,
    /// The next unit.
    Progress,
    /// The rank takes a published room.
    Taken,
    /// DONE_ACK.
    Acknowledge,
    /// Proof of quiet; then the connection is torn down.
    Drain,
}

/// Rules that tests switch off one by one, to see that their absence is noticed. All are on in every real endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protections {
    /// Bad bytes end at most their connection, not the endpoint.
    pub frame_guard: bool,
    /// An ended room keeps its pages until a proof of quiet.
    pub quarantine: bool,
    /// A failed post may still write.
    pub failed_post_writes: bool,
    /// Failed is final.
    pub sticky_failure: bool,
    /// Messages of another epoch are dropped.
    pub generation: bool,
    /// A repeated OPEN is answered by the first one's state.
    pub first_open: bool,
    /// OPEN of a room that is over is refused.
    pub tombstones: bool,
    /// Frames whose sequence does not rise are dropped.
    pub sequence: bool,
    /// Every state has a timer.
    pub leases: bool,
    /// Failure of the prefill side is told to decode.
    pub tell_failure: bool,
    /// A room that failed gives its pages back.
    pub owner_drop: bool,
}

impl Protections {
    /// Everything on.
    pub const ALL: Self = Self {
        frame_guard: true,
        quarantine: true,
        failed_post_writes: true,
        sticky_failure: true,
        generation: true,
        first_open: true,
        tombstones: true,
        sequence: true,
        leases: true,
        tell_failure: true,
        owner_drop: true,
    };
}

/// What a room says or hears; the endpoint makes frames of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Signal {
    /// OPEN.
    Open,
    /// ASK.
    Ask,
    /// LAYER.
    Layer(Unit),
    /// DONE with the number of units.
    Done {
        /// Units.
        units: u32,
    },
    /// DONE_ACK.
    DoneAck,
    /// FAIL.
    Fail(Reason),
    /// ABORT.
    Abort(Reason),
    /// ABORT_ACK.
    AbortAck(Drain),
    /// FENCE.
    Fence(u64),
    /// FENCE_ACK.
    FenceAck(u64),
    /// The room's entry in a BEAT.
    Stage(Stage),
}

/// What happens to a room.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The peer has said HELLO and fits (decode).
    Ready,
    /// Time to repeat what was not answered.
    Retry,
    /// The peer said something.
    Heard(Signal),
    /// The rank reserved pages (prefill).
    Place,
    /// The rank computed a unit (prefill); its post will have this number.
    UnitReady {
        /// Unit.
        unit: Unit,
        /// Number of the post.
        ticket: u64,
    },
    /// The rank handed over the record that goes with DONE (prefill).
    Finish,
    /// The rank took what landed (decode).
    Taken,
    /// The rank gives up.
    Abort(Reason),
    /// A post came to an end, good or bad (prefill).
    Posted {
        /// Unit.
        unit: Unit,
        /// All bytes are there.
        done: bool,
    },
    /// The connection ended, or will be torn down.
    Lost(Reason),
    /// The connection's writers are gone for certain.
    TornDown,
    /// A timer ran out; one that the state does not have is ignored.
    Deadline(Timer),
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Say it to the peer.
    Send(Signal),
    /// Write the unit.
    Post(Unit),
    /// Start the current state's timer anew.
    Arm,
    /// The room has ended; exactly once.
    End,
    /// Pages are free; exactly once, never before the end.
    Release,
    /// Only tearing the connection down can end the writer.
    TearDown,
    /// The event makes no sense in this state; nothing changed.
    Misplaced,
    /// The event belongs to another epoch; nothing changed.
    StaleEpoch,
}

/// State of a room on one side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Room {
    /// Room and epoch.
    pub key: RoomKey,
    /// Whose view this is.
    pub side: Side,
    /// Units of the layout.
    pub units: u32,
    /// What the request is told.
    pub outcome: Outcome,
    /// Who touches the pages.
    pub quiet: Quiet,
    /// Units that landed: told by LAYER (decode), posts that are done (prefill).
    pub landed: UnitSet,
    /// Units posted and not refused by the transport (prefill).
    pub posted: UnitSet,
    /// Number of the room's last post, once known.
    pub upto: Option<u64>,
    /// DONE was heard (decode); the handover record is here (prefill).
    pub complete: bool,
}

impl Room {
    /// A room that has just been asked for (decode) or heard of (prefill).
    pub fn new(key: RoomKey, side: Side, units: u32) -> Self {
        let (landed, posted) = (UnitSet::EMPTY, UnitSet::EMPTY);
        let (outcome, quiet) = (Outcome::Opening, Quiet::NoWriter);
        Self { key, side, units, outcome, quiet, landed, posted, upto: None, complete: false }
    }

    /// Whether the pages are free: ended and quiet.
    pub fn is_free(&self, on: &Protections) -> bool {
        let proven = match self.quiet {
            Quiet::NoWriter | Quiet::WriterPossible | Quiet::Draining => !on.quarantine,
            Quiet::Quiet(_) => true,
        };
        let dropped = on.owner_drop || self.outcome == Outcome::Finished;
        self.outcome.is_final() && proven && dropped
    }

    /// Whether nothing moves and the rank's last word is to come: its step samples, and may stand behind a step for others.
    fn lacks_done(&self) -> bool {
        self.outcome == Outcome::Moving && !self.complete && self.landed.len() == self.units
    }

    /// The timer that runs in this state; `None` when nothing is waited for.
    pub fn timer(&self, on: &Protections) -> Option<Timer> {
        let timer = match (&self.outcome, self.side) {
            (Outcome::Opening, Side::Decode) => Timer::Handshake,
            (Outcome::Opening, Side::Prefill) | (Outcome::Placed, Side::Decode | Side::Prefill) => Timer::Lease,
            (Outcome::Moving, Side::Decode | Side::Prefill) if self.lacks_done() => Timer::Lease,
            (Outcome::Moving, Side::Decode | Side::Prefill) => Timer::Progress,
            (Outcome::Published, Side::Decode) => Timer::Taken,
            (Outcome::Published, Side::Prefill) => Timer::Acknowledge,
            (Outcome::Finished | Outcome::Failed(_), Side::Decode | Side::Prefill) => match self.quiet {
                Quiet::Quiet(_) => return None,
                Quiet::NoWriter | Quiet::WriterPossible | Quiet::Draining => Timer::Drain,
            },
        };
        on.leases.then_some(timer)
    }

    /// Applies an event of the given epoch.
    pub fn step(&self, epoch: u32, event: Event, on: &Protections) -> (Room, Vec<Action>) {
        if on.generation && epoch != self.key.epoch {
            return (self.clone(), vec![Action::StaleEpoch]);
        }
        let mut turn = Turn { room: self.clone(), actions: Vec::new(), on };
        match self.side {
            Side::Decode => decode::apply(&mut turn, event),
            Side::Prefill => prefill::apply(&mut turn, event),
        }
        let Turn { room, mut actions, .. } = turn;
        if room.timer(on) != self.timer(on) && room.timer(on).is_some() {
            actions.push(Action::Arm);
        }
        if room.outcome != self.outcome && room.outcome.is_final() {
            actions.push(Action::End);
        }
        if room.is_free(on) && !self.is_free(on) {
            actions.push(Action::Release);
        }
        (room, actions)
    }
}

/// A step in the making.
struct Turn<'a> {
    room: Room,
    actions: Vec<Action>,
    on: &'a Protections,
}

impl Turn<'_> {
    fn send(&mut self, signal: Signal) {
        self.actions.push(Action::Send(signal));
    }

    fn arm(&mut self) {
        self.actions.push(Action::Arm);
    }

    fn misplaced(&mut self) {
        self.actions.push(Action::Misplaced);
    }

    /// Moves the outcome forward; whether it did. The one place where it changes.
    fn advance(&mut self, to: Outcome) -> bool {
        let from = match self.room.outcome {
            // As if one word held it all, with Failed as its lowest value, and the larger value won.
            Outcome::Failed(_) if !self.on.sticky_failure => match to {
                Outcome::Failed(_) => return false,
                Outcome::Opening | Outcome::Placed | Outcome::Moving | Outcome::Published | Outcome::Finished => 0,
            },
            Outcome::Finished | Outcome::Failed(_) => return false,
            Outcome::Opening | Outcome::Placed | Outcome::Moving | Outcome::Published => self.room.outcome.rank(),
        };
        let forward = to.rank() > from;
        if forward {
            self.room.outcome = to;
        }
        forward
    }

    /// Records a proof; the first stays.
    fn prove(&mut self, proof: Proof) {
        match self.room.quiet {
            Quiet::Quiet(_) => {}
            Quiet::NoWriter | Quiet::WriterPossible | Quiet::Draining => self.room.quiet = Quiet::Quiet(proof),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
