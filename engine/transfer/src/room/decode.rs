//! Events of a decode room.

use super::{Action, Event, Outcome, Proof, Quiet, Signal, Timer, Turn, UnitSet};
use crate::frame::Drain;
use crate::ids::Unit;
use crate::reason::{Code, Reason};

/// Reads a message about a room that decode does not have; `finished` when a tombstone says that it ended well.
///
/// Whatever prefill still wants to say is answered so that its side ends too.
pub fn unknown(signal: &Signal, finished: bool) -> Option<Signal> {
    let abort = || Signal::Abort(Reason::new(Code::Gone, "the room is over"));
    match signal {
        Signal::Done { .. } if finished => Some(Signal::DoneAck),
        Signal::Layer(_) | Signal::Stage(_) if finished => None,
        Signal::Done { .. } | Signal::Layer(_) | Signal::Stage(_) => Some(abort()),
        Signal::Abort(_) => Some(Signal::AbortAck(Drain::Quiet)),
        Signal::Fail(_) | Signal::AbortAck(_) | Signal::FenceAck(_) => None,
        Signal::Open | Signal::Ask | Signal::DoneAck | Signal::Fence(_) => None,
    }
}

pub(super) fn apply(turn: &mut Turn<'_>, event: Event) {
    match event {
        Event::Ready => ready(turn),
        Event::Retry => retry(turn),
        Event::Heard(signal) => hear(turn, signal),
        Event::Taken => match turn.room.outcome {
            Outcome::Published => {
                turn.advance(Outcome::Finished);
            }
            Outcome::Opening | Outcome::Placed | Outcome::Moving => turn.misplaced(),
            // The rank's word crossed the end.
            Outcome::Finished | Outcome::Failed(_) => {}
        },
        Event::Abort(reason) => match turn.room.outcome {
            Outcome::Opening | Outcome::Placed | Outcome::Moving | Outcome::Published => fail(turn, reason),
            Outcome::Finished | Outcome::Failed(_) => {}
        },
        Event::Lost(reason) => lost(turn, reason),
        Event::TornDown => {
            lost(turn, Code::TornDown.into());
            turn.prove(Proof::TornDown);
        }
        Event::Deadline(timer) => deadline(turn, timer),
        Event::Place | Event::UnitReady { .. } | Event::Finish | Event::Posted { .. } => turn.misplaced(),
    }
}

/// From here on the peer may write.
fn ready(turn: &mut Turn<'_>) {
    match (&turn.room.outcome, turn.room.quiet) {
        (Outcome::Opening, Quiet::NoWriter) => {
            turn.room.quiet = Quiet::WriterPossible;
            turn.send(Signal::Open);
            turn.arm();
        }
        (Outcome::Opening, Quiet::WriterPossible | Quiet::Draining | Quiet::Quiet(_)) => {}
        (Outcome::Placed | Outcome::Moving | Outcome::Published | Outcome::Finished | Outcome::Failed(_), _) => {}
    }
}

fn retry(turn: &mut Turn<'_>) {
    match (turn.room.outcome.clone(), turn.room.quiet) {
        (Outcome::Opening, Quiet::WriterPossible) => turn.send(Signal::Open),
        (Outcome::Opening, Quiet::NoWriter | Quiet::Draining | Quiet::Quiet(_)) => {}
        (Outcome::Moving, _) if turn.room.complete => turn.send(Signal::Ask),
        (Outcome::Failed(reason), Quiet::Draining | Quiet::WriterPossible) => match turn.room.upto {
            Some(upto) => turn.send(Signal::Fence(upto)),
            None => turn.send(Signal::Abort(reason)),
        },
        (Outcome::Failed(_), Quiet::NoWriter | Quiet::Quiet(_)) => {}
        (Outcome::Placed | Outcome::Moving | Outcome::Published | Outcome::Finished, _) => {}
    }
}

fn hear(turn: &mut Turn<'_>, signal: Signal) {
    match signal {
        Signal::Stage(_) => match turn.room.outcome {
            Outcome::Opening => {
                turn.advance(Outcome::Placed);
            }
            Outcome::Placed => turn.arm(),
            Outcome::Moving if turn.room.lacks_done() => turn.arm(),
            // Beats do not renew the wait for a unit.
            Outcome::Moving | Outcome::Published | Outcome::Finished | Outcome::Failed(_) => {}
        },
        Signal::Layer(unit) => layer(turn, unit),
        Signal::Done { units } => done(turn, units),
        Signal::Fail(reason) => match turn.room.outcome {
            Outcome::Opening | Outcome::Placed | Outcome::Moving => fail(turn, reason),
            // All is here; what becomes of the peer does not matter any more.
            Outcome::Published | Outcome::Finished | Outcome::Failed(_) => {}
        },
        Signal::AbortAck(drain) => abort_ack(turn, drain),
        Signal::FenceAck(upto) => match turn.room.outcome {
            Outcome::Failed(_) if turn.room.upto.is_some_and(|last| last <= upto) => turn.prove(Proof::Fence),
            Outcome::Failed(_) | Outcome::Opening | Outcome::Placed => {}
            Outcome::Moving | Outcome::Published | Outcome::Finished => {}
        },
        Signal::Open | Signal::Ask | Signal::DoneAck | Signal::Abort(_) | Signal::Fence(_) => turn.misplaced(),
    }
}

fn layer(turn: &mut Turn<'_>, unit: Unit) {
    if unit.0 >= turn.room.units {
        let text = format!("LAYER of unit {unit}, the layout has {}", turn.room.units);
        return lost(turn, Reason::new(Code::Protocol, text));
    }
    if turn.room.landed.insert(unit) && !turn.advance(Outcome::Moving) && turn.room.outcome == Outcome::Moving {
        turn.arm();
    }
    publish(turn);
}

/// DONE is a proof of quiet in every state, whatever it means for the outcome.
fn done(turn: &mut Turn<'_>, units: u32) {
    if units != turn.room.units {
        let text = format!("DONE after {units} units, the layout has {}", turn.room.units);
        return lost(turn, Reason::new(Code::Protocol, text));
    }
    match turn.room.outcome.clone() {
        Outcome::Opening | Outcome::Placed | Outcome::Moving => {
            turn.prove(Proof::Done);
            turn.room.complete = true;
            turn.advance(Outcome::Moving);
            publish(turn);
            if turn.room.outcome == Outcome::Moving {
                turn.send(Signal::Ask);
            }
        }
        Outcome::Published | Outcome::Finished => turn.send(Signal::DoneAck),
        Outcome::Failed(reason) => {
            turn.prove(Proof::Done);
            turn.room.complete = true;
            publish(turn);
            turn.send(Signal::Abort(reason));
        }
    }
}

fn publish(turn: &mut Turn<'_>) {
    let all = turn.room.complete && turn.room.landed.len() == turn.room.units;
    if all && turn.advance(Outcome::Published) {
        turn.send(Signal::DoneAck);
    }
}

/// The peer's side of the room is over, whether we asked or not.
fn abort_ack(turn: &mut Turn<'_>, drain: Drain) {
    match turn.room.outcome {
        Outcome::Opening | Outcome::Placed | Outcome::Moving => {
            fail(turn, Reason::new(Code::Gone, "the prefill side is over"));
        }
        Outcome::Failed(_) => {}
        Outcome::Published | Outcome::Finished => return,
    }
    match drain {
        Drain::Quiet => turn.prove(Proof::AbortAck),
        Drain::Draining { upto } => turn.room.upto = Some(upto),
    }
}

fn lost(turn: &mut Turn<'_>, reason: Reason) {
    match turn.room.outcome {
        Outcome::Opening | Outcome::Placed | Outcome::Moving => fail(turn, reason),
        Outcome::Published | Outcome::Finished | Outcome::Failed(_) => {}
    }
}

fn deadline(turn: &mut Turn<'_>, timer: Timer) {
    if turn.room.timer(turn.on) != Some(timer) {
        return;
    }
    match timer {
        Timer::Handshake => fail(turn, Reason::new(Code::Handshake, "no answer to OPEN")),
        Timer::Lease if turn.room.lacks_done() => {
            let text = "all units landed, DONE is missing, and no beat names the room any more";
            fail(turn, Reason::new(Code::Lease, text));
        }
        Timer::Lease => fail(turn, Reason::new(Code::Lease, "no beat names the room any more")),
        Timer::Progress => {
            let (landed, units) = (turn.room.landed, turn.room.units);
            let missing = UnitSet::first(units).without(landed);
            let first = missing.iter().next().map_or(String::new(), |unit| format!(", the first missing is {unit}"));
            let done = if turn.room.complete { "DONE is here" } else { "no DONE yet" };
            fail(
                turn,
                Reason::new(Code::NoProgress, format!("{} of {units} units landed{first}; {done}", landed.len())),
            );
        }
        Timer::Taken => fail(turn, Code::NotTaken.into()),
        Timer::Acknowledge => turn.misplaced(),
        Timer::Drain => {
            turn.actions.push(Action::TearDown);
            turn.arm();
        }
    }
}

fn fail(turn: &mut Turn<'_>, reason: Reason) {
    if !turn.advance(Outcome::Failed(reason.clone())) {
        return;
    }
    match turn.room.quiet {
        Quiet::NoWriter => return turn.prove(Proof::NeverOffered),
        Quiet::WriterPossible => turn.room.quiet = Quiet::Draining,
        Quiet::Draining | Quiet::Quiet(_) => {}
    }
    turn.send(Signal::Abort(reason));
}
