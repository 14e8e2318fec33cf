//! What can happen next.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    Deliver(Side, usize),
    Repeat(Side, usize),
    Drop(Side, usize),
    Stale(Side, usize),
    Beat(Side),
    Retry(Side),
    Deadline(Side),
    Lost(Side),
    TornDown(Side),
    Abort(Side),
    Forget(Side),
    Taken,
    Place,
    UnitReady,
    Finish,
    Landed(usize),
    Failed(usize),
}

impl Checker {
    pub(super) fn moves(&self, world: &World) -> Vec<Move> {
        let mut moves = vec![Move::Taken, Move::Place, Move::UnitReady, Move::Finish];
        for (side, wire) in [(Side::Decode, &world.to_decode), (Side::Prefill, &world.to_prefill)] {
            for i in 0..wire.len() {
                moves.extend([Move::Deliver(side, i), Move::Repeat(side, i), Move::Drop(side, i)]);
            }
            if self.bounds.stale {
                moves.extend((0..stale(side).len()).map(|i| Move::Stale(side, i)));
            }
            moves.extend([Move::Beat(side), Move::Retry(side), Move::Deadline(side), Move::Lost(side)]);
            moves.extend([Move::TornDown(side), Move::Abort(side), Move::Forget(side)]);
        }
        moves.extend((0..world.writes.len()).flat_map(|unit| [Move::Landed(unit), Move::Failed(unit)]));
        moves
    }

    pub(super) fn room<'a>(&self, world: &'a World, side: Side) -> Option<&'a Room> {
        match side {
            Side::Decode => world.decode.as_ref(),
            Side::Prefill => world.prefill.as_ref(),
        }
    }

    /// The world after a move; the same one where it cannot be made.
    pub(super) fn apply(&self, old: &World, action: Move) -> Result<World, String> {
        let mut world = old.clone();
        match action {
            Move::Deliver(side, i) | Move::Repeat(side, i) | Move::Drop(side, i) => {
                let wire = match side {
                    Side::Decode => &mut world.to_decode,
                    Side::Prefill => &mut world.to_prefill,
                };
                let signal = wire[i].clone();
                if !matches!(action, Move::Repeat(..)) {
                    wire.remove(i);
                }
                if !matches!(action, Move::Drop(..)) {
                    self.deliver(&mut world, side, signal)?;
                }
            }
            Move::Stale(side, i) => {
                let event = Event::Heard(stale(side)[i].clone());
                self.step_of(&mut world, side, KEY.epoch - 1, event)?;
            }
            Move::Beat(side) => {
                if self.room(&world, side).is_some_and(|room| room.outcome.stage().is_some()) {
                    self.send(&mut world, side, Signal::Stage(Stage::Placed));
                }
            }
            Move::Retry(side) => self.step(&mut world, side, Event::Retry)?,
            Move::Deadline(side) => {
                if let Some(timer) = self.room(&world, side).and_then(|room| room.timer(&self.on)) {
                    self.step(&mut world, side, Event::Deadline(timer))?;
                }
            }
            Move::Lost(side) => {
                if world.links[side as usize] == Link::Up {
                    world.links[side as usize] = Link::Lost;
                    self.step(&mut world, side, Event::Lost(Code::PeerLost.into()))?;
                }
            }
            Move::TornDown(side) => {
                if world.links[side as usize] == Link::Lost {
                    world.links[side as usize] = Link::Torn;
                    for write in world.writes.iter_mut().filter(|write| **write != Write::No) {
                        *write = Write::Over;
                    }
                    self.step(&mut world, side, Event::TornDown)?;
                }
            }
            Move::Abort(side) => self.step(&mut world, side, Event::Abort(Code::Aborted.into()))?,
            Move::Forget(side) => {
                if self.room(&world, side).is_some_and(|room| room.is_free(&self.on)) {
                    if world.ends[side as usize] != 1 {
                        return Err(format!("{side:?} ended {} times", world.ends[side as usize]));
                    }
                    match side {
                        Side::Decode => {
                            world.decode_finished = world.decode.take().unwrap().outcome == Outcome::Finished;
                        }
                        Side::Prefill => {
                            world.prefill = None;
                            world.grave = true;
                        }
                    }
                }
            }
            Move::Taken => {
                if world.decode.as_ref().is_some_and(|room| room.outcome == Outcome::Published) {
                    self.step(&mut world, Side::Decode, Event::Taken)?;
                }
            }
            Move::Place => self.step(&mut world, Side::Prefill, Event::Place)?,
            Move::UnitReady => {
                let next = world.prefill.as_ref().map_or(0, |room| room.posted.len());
                let event = Event::UnitReady { unit: Unit(next), ticket: u64::from(next) + 1 };
                self.step(&mut world, Side::Prefill, event)?;
            }
            Move::Finish => self.step(&mut world, Side::Prefill, Event::Finish)?,
            Move::Landed(unit) | Move::Failed(unit) => {
                if world.writes[unit] == Write::Flying {
                    let done = matches!(action, Move::Landed(_));
                    world.writes[unit] = if done { Write::Over } else { Write::Late };
                    let event = Event::Posted { unit: Unit(unit as u32), done };
                    self.step(&mut world, Side::Prefill, event)?;
                }
            }
        }
        let writing = world.writes.iter().any(|write| matches!(write, Write::Flying | Write::Late));
        for side in [Side::Prefill, Side::Decode] {
            if world.released[side as usize] && writing {
                return Err(format!("{side:?} released pages that a post may touch"));
            }
            if world.ends[side as usize] > 1 {
                return Err(format!("{side:?} ended {} times", world.ends[side as usize]));
            }
        }
        Ok(world)
    }
}
