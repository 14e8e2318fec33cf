//! Events of a prefill room.

use super::{Action, Event, Outcome, Proof, Quiet, Room, Signal, Timer, Turn};
use crate::frame::{Drain, Stage};
use crate::ids::Unit;
use crate::reason::{Code, Reason};

/// What to do about a message that names a room which is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stranger {
    /// A new room.
    Create,
    /// An answer; nothing else.
    Answer(Signal),
    /// An answer, and a tombstone against an OPEN that is still on its way.
    Bury(Signal),
    /// Nothing.
    Ignore,
}

/// Reads a message about a room that prefill does not have; `over` when a tombstone says that it is over.
///
/// Rooms are forgotten when they are quiet, so "not there" answers ABORT with quiet.
pub fn unknown(signal: &Signal, over: bool) -> Stranger {
    let gone = || Stranger::Answer(Signal::Fail(Reason::new(Code::Gone, "the room is over")));
    match signal {
        Signal::Open if over => gone(),
        Signal::Open => Stranger::Create,
        Signal::Ask => gone(),
        Signal::Abort(_) => Stranger::Bury(Signal::AbortAck(Drain::Quiet)),
        Signal::Stage(_) if over => gone(),
        // Without a tombstone its OPEN may have been lost; it is repeated.
        Signal::Stage(_) | Signal::DoneAck | Signal::Fail(_) => Stranger::Ignore,
        Signal::Layer(_) | Signal::Done { .. } | Signal::AbortAck(_) => Stranger::Ignore,
        Signal::Fence(_) | Signal::FenceAck(_) => Stranger::Ignore,
    }
}

pub(super) fn apply(turn: &mut Turn<'_>, event: Event) {
    match event {
        Event::Place => match turn.room.outcome {
            Outcome::Opening => {
                turn.advance(Outcome::Placed);
                turn.send(Signal::Stage(Stage::Placed));
                turn.arm();
            }
            Outcome::Placed | Outcome::Moving | Outcome::Published | Outcome::Finished => turn.misplaced(),
            // The rank's word crossed the end.
            Outcome::Failed(_) => {}
        },
        Event::UnitReady { unit, ticket } => unit_ready(turn, unit, ticket),
        Event::Finish => match turn.room.outcome {
            Outcome::Moving => {
                turn.room.complete = true;
                publish(turn);
            }
            Outcome::Opening | Outcome::Placed | Outcome::Published | Outcome::Finished => turn.misplaced(),
            Outcome::Failed(_) => {}
        },
        Event::Posted { unit, done } => posted(turn, unit, done),
        Event::Heard(signal) => hear(turn, signal),
        Event::Retry => match turn.room.outcome {
            Outcome::Published => turn.send(Signal::Done { units: turn.room.units }),
            Outcome::Opening | Outcome::Placed | Outcome::Moving | Outcome::Finished | Outcome::Failed(_) => {}
        },
        Event::Abort(reason) => fail(turn, reason, true),
        Event::Lost(reason) => fail(turn, reason, false),
        Event::TornDown => {
            fail(turn, Code::TornDown.into(), false);
            turn.prove(Proof::TornDown);
        }
        Event::Deadline(timer) => deadline(turn, timer),
        Event::Ready | Event::Taken => turn.misplaced(),
    }
}

fn unit_ready(turn: &mut Turn<'_>, unit: Unit, ticket: u64) {
    match turn.room.outcome {
        Outcome::Placed | Outcome::Moving => {
            if unit.0 >= turn.room.units || !turn.room.posted.insert(unit) {
                return turn.misplaced();
            }
            turn.room.quiet = Quiet::WriterPossible;
            turn.room.upto = Some(ticket);
            turn.actions.push(Action::Post(unit));
            if !turn.advance(Outcome::Moving) {
                turn.arm();
            }
        }
        Outcome::Opening | Outcome::Published | Outcome::Finished => turn.misplaced(),
        // Nothing is posted for a room that has failed.
        Outcome::Failed(_) => {}
    }
}

fn posted(turn: &mut Turn<'_>, unit: Unit, done: bool) {
    if !turn.room.posted.contains(unit) || turn.room.landed.contains(unit) {
        return turn.misplaced();
    }
    // A failed post may still write: it stays outstanding until the connection is torn down.
    match done {
        true => {
            turn.room.landed.insert(unit);
        }
        false if !turn.on.failed_post_writes => turn.room.posted.remove(unit),
        false => {}
    }
    match turn.room.outcome {
        Outcome::Moving if done => {
            turn.send(Signal::Layer(unit));
            turn.arm();
            publish(turn);
        }
        Outcome::Moving => fail(turn, Reason::new(Code::Transport, format!("unit {unit} was not written")), true),
        Outcome::Failed(_) if outstanding(&turn.room) => {}
        Outcome::Failed(_) => {
            turn.prove(Proof::Terminal);
            turn.send(Signal::AbortAck(Drain::Quiet));
        }
        // Nothing is outstanding before the first post and after the last.
        Outcome::Opening | Outcome::Placed | Outcome::Published | Outcome::Finished => turn.misplaced(),
    }
}

fn outstanding(room: &Room) -> bool {
    !room.posted.without(room.landed).is_empty()
}

fn publish(turn: &mut Turn<'_>) {
    let all = turn.room.complete && turn.room.landed.len() == turn.room.units;
    if all && turn.advance(Outcome::Published) {
        turn.prove(Proof::Terminal);
        turn.send(Signal::Done { units: turn.room.units });
    }
}

fn hear(turn: &mut Turn<'_>, signal: Signal) {
    match signal {
        Signal::Open if !turn.on.first_open => {
            turn.room = Room::new(turn.room.key, turn.room.side, turn.room.units);
            answer(turn);
        }
        Signal::Open | Signal::Ask => answer(turn),
        Signal::DoneAck => match turn.room.outcome {
            Outcome::Published => {
                turn.advance(Outcome::Finished);
            }
            Outcome::Opening | Outcome::Placed | Outcome::Moving => turn.misplaced(),
            Outcome::Failed(_) => {
                // The guard of `advance` keeps a failed room failed.
                turn.advance(Outcome::Finished);
            }
            Outcome::Finished => {}
        },
        Signal::Abort(reason) | Signal::Fail(reason) => {
            fail(turn, reason, false);
            acknowledge(turn);
        }
        Signal::Stage(_) => match turn.room.outcome.clone() {
            Outcome::Opening | Outcome::Placed => turn.arm(),
            Outcome::Moving if turn.room.lacks_done() => turn.arm(),
            Outcome::Moving | Outcome::Published | Outcome::Finished => {}
            // Decode does not know yet: FAIL was lost.
            Outcome::Failed(reason) => tell(turn, reason),
        },
        Signal::Layer(_) | Signal::Done { .. } | Signal::AbortAck(_) => turn.misplaced(),
        Signal::Fence(_) | Signal::FenceAck(_) => turn.misplaced(),
    }
}

/// Says again how far the room is.
fn answer(turn: &mut Turn<'_>) {
    let units = turn.room.units;
    if let Some(stage) = turn.room.outcome.stage() {
        turn.send(Signal::Stage(stage));
    }
    match turn.room.outcome.clone() {
        Outcome::Opening | Outcome::Placed => {}
        Outcome::Moving => turn.room.landed.iter().for_each(|unit| turn.send(Signal::Layer(unit))),
        Outcome::Published | Outcome::Finished => {
            turn.room.landed.iter().for_each(|unit| turn.send(Signal::Layer(unit)));
            turn.send(Signal::Done { units });
        }
        Outcome::Failed(reason) => tell(turn, reason),
    }
}

fn tell(turn: &mut Turn<'_>, reason: Reason) {
    if turn.on.tell_failure {
        turn.send(Signal::Fail(reason));
    }
}

fn acknowledge(turn: &mut Turn<'_>) {
    let drain = match turn.room.quiet {
        Quiet::Quiet(_) => Drain::Quiet,
        // Without a post there is nothing to drain, and the room is quiet; 0 is no post's number.
        Quiet::NoWriter | Quiet::WriterPossible | Quiet::Draining => {
            Drain::Draining { upto: turn.room.upto.unwrap_or(0) }
        }
    };
    turn.send(Signal::AbortAck(drain));
}

fn deadline(turn: &mut Turn<'_>, timer: Timer) {
    if turn.room.timer(turn.on) != Some(timer) {
        return;
    }
    match timer {
        Timer::Lease => fail(turn, Reason::new(Code::Lease, "no beat names the room any more"), true),
        Timer::Progress => {
            let (landed, posted, units) = (turn.room.landed.len(), turn.room.posted.len(), turn.room.units);
            let text = format!("{posted} of {units} units posted, {landed} landed");
            fail(turn, Reason::new(Code::NoProgress, text), true);
        }
        Timer::Acknowledge => fail(turn, Code::NotAcknowledged.into(), true),
        Timer::Handshake | Timer::Taken => turn.misplaced(),
        Timer::Drain => {
            turn.actions.push(Action::TearDown);
            turn.arm();
        }
    }
}

fn fail(turn: &mut Turn<'_>, reason: Reason, told: bool) {
    if !turn.advance(Outcome::Failed(reason.clone())) {
        return;
    }
    match (turn.room.quiet, outstanding(&turn.room)) {
        (Quiet::NoWriter, _) => turn.prove(Proof::NeverOffered),
        (Quiet::WriterPossible | Quiet::Draining, true) => turn.room.quiet = Quiet::Draining,
        (Quiet::WriterPossible | Quiet::Draining, false) => turn.prove(Proof::Terminal),
        (Quiet::Quiet(_), _) => {}
    }
    if told {
        tell(turn, reason);
    }
}
