//! Every state that a decode room, a prefill room and a bad wire can reach together.
//!
//! The wire loses, repeats and reorders: each direction is a set of messages; any of them can be delivered, delivered and
//! kept, or dropped, and one that finds the set full is lost. Posts land, fail, fail and write later, or never end. Timers
//! may run out at any moment, connections break at any moment. Small bounds, all interleavings.

mod moves;

use super::*;
use crate::reason::Code;
use moves::Move;
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

const KEY: RoomKey = RoomKey { room: 5, epoch: 2 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Write {
    /// Not posted.
    No,
    /// Posted; writes now or later.
    Flying,
    /// Reported as failed; writes later all the same.
    Late,
    /// Cannot write.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Link {
    Up,
    Lost,
    Torn,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    decode: Option<Room>,
    prefill: Option<Room>,
    /// Prefill had the room and is done with it.
    grave: bool,
    decode_finished: bool,
    /// Ends told to the rank, by side.
    ends: [u8; 2],
    released: [bool; 2],
    to_decode: Vec<Signal>,
    to_prefill: Vec<Signal>,
    writes: Vec<Write>,
    links: [Link; 2],
}

#[derive(Clone, Copy)]
struct Bounds {
    units: u32,
    wire: usize,
    stale: bool,
}

/// What a search came past.
#[derive(Debug, PartialEq)]
struct Found {
    worlds: usize,
    /// Side, whether it finished, and how its pages became quiet.
    ends: HashSet<(Side, bool, Quiet)>,
}

struct Checker {
    bounds: Bounds,
    on: Protections,
}

/// Messages of an earlier epoch that may turn up at any time.
fn stale(side: Side) -> Vec<Signal> {
    match side {
        Side::Decode => vec![
            Signal::AbortAck(Drain::Quiet),
            Signal::Done { units: 1 },
            Signal::Layer(Unit(0)),
            Signal::Fail(Code::Aborted.into()),
        ],
        Side::Prefill => vec![Signal::Abort(Code::Aborted.into()), Signal::DoneAck, Signal::Ask],
    }
}

/// Reasons tell people apart, not states.
fn canonical(signal: Signal) -> Signal {
    match signal {
        Signal::Fail(_) => Signal::Fail(Code::Aborted.into()),
        Signal::Abort(_) => Signal::Abort(Code::Aborted.into()),
        Signal::Stage(_) => Signal::Stage(Stage::Placed),
        Signal::Open | Signal::Ask | Signal::Layer(_) | Signal::Done { .. } | Signal::DoneAck => signal,
        Signal::AbortAck(_) | Signal::Fence(_) | Signal::FenceAck(_) => signal,
    }
}

impl Checker {
    fn start(&self) -> World {
        let mut world = World {
            decode: Some(Room::new(KEY, Side::Decode, self.bounds.units)),
            prefill: None,
            grave: false,
            decode_finished: false,
            ends: [0; 2],
            released: [false; 2],
            to_decode: vec![],
            to_prefill: vec![],
            writes: vec![Write::No; self.bounds.units as usize],
            links: [Link::Up; 2],
        };
        self.step(&mut world, Side::Decode, Event::Ready).unwrap();
        world
    }

    /// One event at one side; what it says goes onto the wire.
    fn step(&self, world: &mut World, side: Side, event: Event) -> Result<(), String> {
        self.step_of(world, side, KEY.epoch, event)
    }

    fn step_of(&self, world: &mut World, side: Side, epoch: u32, event: Event) -> Result<(), String> {
        let slot = match side {
            Side::Decode => &mut world.decode,
            Side::Prefill => &mut world.prefill,
        };
        let Some(room) = slot else { return Ok(()) };
        let reopened = event == Event::Heard(Signal::Open);
        let (mut next, actions) = room.step(epoch, event, &self.on);
        if let Outcome::Failed(reason) = &mut next.outcome {
            *reason = Code::Aborted.into();
        }
        if room.outcome.is_final() && next.outcome != room.outcome {
            return Err(format!("{side:?}: {:?} became {:?}", room.outcome, next.outcome));
        }
        if reopened && next != *room {
            return Err(format!("a repeated OPEN changed {room:?}"));
        }
        *slot = Some(next);
        for action in actions {
            match action {
                Action::Send(signal) => self.send(world, side, signal),
                Action::Post(unit) => {
                    let open = world.links == [Link::Up; 2];
                    world.writes[unit.0 as usize] = if open { Write::Flying } else { Write::Over };
                }
                Action::End => world.ends[side as usize] += 1,
                Action::Release => world.released[side as usize] = true,
                Action::TearDown => {
                    world.links[side as usize] = Link::Lost;
                    self.step(world, side, Event::Lost(Code::TornDown.into()))?;
                }
                Action::Arm | Action::Misplaced | Action::StaleEpoch => {}
            }
        }
        Ok(())
    }

    fn send(&self, world: &mut World, from: Side, signal: Signal) {
        // A fence covers many rooms; the endpoint answers it with what is terminal so far.
        let wire = match from {
            Side::Decode => &mut world.to_prefill,
            Side::Prefill => &mut world.to_decode,
        };
        let signal = canonical(signal);
        if world.links[from as usize] == Link::Up && wire.len() < self.bounds.wire && !wire.contains(&signal) {
            wire.push(signal);
            wire.sort_by_key(|signal| format!("{signal:?}"));
        }
    }

    fn deliver(&self, world: &mut World, to: Side, signal: Signal) -> Result<(), String> {
        if world.links[to as usize] != Link::Up {
            return Ok(());
        }
        match (to, &signal) {
            (Side::Prefill, Signal::Fence(_)) => {
                let live = |write: &Write| matches!(write, Write::Flying | Write::Late);
                let upto = world.writes.iter().position(live).unwrap_or(self.bounds.units as usize);
                self.send(world, to, Signal::FenceAck(upto as u64));
                Ok(())
            }
            (Side::Prefill, _) if world.prefill.is_none() => {
                match unknown_to_prefill(&signal, world.grave && self.on.tombstones) {
                    Stranger::Create => {
                        let room = Room::new(KEY, to, self.bounds.units);
                        world.prefill = Some(room);
                        self.send(world, to, Signal::Stage(Stage::Opening));
                    }
                    Stranger::Answer(signal) => self.send(world, to, signal),
                    Stranger::Bury(signal) => {
                        world.grave = true;
                        self.send(world, to, signal);
                    }
                    Stranger::Ignore => {}
                }
                Ok(())
            }
            (Side::Decode, _) if world.decode.is_none() => {
                if let Some(signal) = unknown_to_decode(&signal, world.decode_finished) {
                    self.send(world, to, signal);
                }
                Ok(())
            }
            (Side::Decode | Side::Prefill, _) => self.step(world, to, Event::Heard(signal)),
        }
    }

    /// Whether both sides come to their end when nothing is heard any more and posts never end: by timers and tear-down.
    fn ends_in_silence(&self, world: &World) -> Result<(), String> {
        let mut world = world.clone();
        let over = |world: &World| {
            let free = |room: &Option<Room>| room.as_ref().is_none_or(|room| room.is_free(&self.on));
            free(&world.decode) && free(&world.prefill)
        };
        for _ in 0..8 {
            if over(&world) {
                return Ok(());
            }
            for side in [Side::Decode, Side::Prefill] {
                (world.to_decode, world.to_prefill) = (vec![], vec![]);
                world = self.apply(&world, Move::Deadline(side))?;
                world = self.apply(&world, Move::TornDown(side))?;
            }
        }
        match over(&world) {
            true => Ok(()),
            false => Err(format!("never ends: {:?} and {:?}", world.decode, world.prefill)),
        }
    }

    /// Breadth-first over all worlds; how many there are, or the shortest way to a broken rule.
    fn run(&self) -> Result<Found, String> {
        let fingerprint = |world: &World| {
            let mut hasher = DefaultHasher::new();
            world.hash(&mut hasher);
            hasher.finish()
        };
        let start = self.start();
        let mut ends = HashSet::new();
        let mut seen = HashSet::from([fingerprint(&start)]);
        let mut steps: Vec<(usize, Move)> = vec![(0, Move::Taken)];
        let mut queue = VecDeque::from([(0, start)]);
        while let Some((id, world)) = queue.pop_front() {
            for room in [&world.decode, &world.prefill].into_iter().flatten().filter(|room| room.is_free(&self.on)) {
                ends.insert((room.side, room.outcome == Outcome::Finished, room.quiet));
            }
            self.ends_in_silence(&world).map_err(|error| trace(&steps, id, None, error))?;
            for action in self.moves(&world) {
                let next = self.apply(&world, action).map_err(|error| trace(&steps, id, Some(action), error))?;
                if next != world && seen.insert(fingerprint(&next)) {
                    steps.push((id, action));
                    queue.push_back((steps.len() - 1, next));
                }
            }
        }
        Ok(Found { worlds: seen.len(), ends })
    }
}

fn trace(steps: &[(usize, Move)], mut at: usize, last: Option<Move>, error: String) -> String {
    let mut moves = Vec::from_iter(last);
    while at != 0 {
        moves.push(steps[at].1);
        at = steps[at].0;
    }
    moves.reverse();
    format!("{error} after {moves:?}")
}

fn check(bounds: Bounds, on: Protections) -> Result<Found, String> {
    Checker { bounds, on }.run()
}

fn sound(bounds: Bounds) -> Found {
    let found = check(bounds, Protections::ALL).unwrap_or_else(|error| panic!("{error}"));
    // The search must have come past every way to end.
    let end = |side, finished, proof| found.ends.contains(&(side, finished, Quiet::Quiet(proof)));
    assert!(end(Side::Decode, true, Proof::Done) && end(Side::Prefill, true, Proof::Terminal), "{found:?}");
    for proof in [Proof::Done, Proof::AbortAck, Proof::Fence, Proof::TornDown] {
        assert!(end(Side::Decode, false, proof), "{proof:?} in {found:?}");
    }
    for proof in [Proof::NeverOffered, Proof::Terminal, Proof::TornDown] {
        assert!(end(Side::Prefill, false, proof), "{proof:?} in {found:?}");
    }
    found
}

const SMALL: Bounds = Bounds { units: 1, wire: 2, stale: false };

#[test]
fn no_page_is_free_too_early_and_every_room_ends_once() {
    assert!(sound(SMALL).worlds > 50_000);
}

#[test]
fn two_units_on_a_narrow_wire() {
    assert!(sound(Bounds { units: 2, wire: 1, stale: false }).worlds > 20_000);
}

#[test]
fn wider_wires() {
    for (units, wire, least) in [(1, 3, 150_000), (2, 2, 200_000)] {
        assert!(sound(Bounds { units, wire, stale: false }).worlds > least, "{units} units, {wire} messages");
    }
}

#[test]
fn f04_messages_of_an_older_epoch_change_nothing() {
    let bounds = Bounds { stale: true, wire: 1, ..SMALL };
    let with = check(bounds, Protections::ALL).unwrap();
    let without = check(Bounds { stale: false, ..bounds }, Protections::ALL).unwrap();
    assert_eq!(with, without, "an old message led to a state of its own");
    let error = check(bounds, Protections { generation: false, ..Protections::ALL }).unwrap_err();
    assert!(error.contains("Stale("), "{error}");
}

/// Removing a protection must be noticed, and for the reason it exists.
#[test]
fn every_protection_is_needed() {
    let all = Protections::ALL;
    let early = "released pages that a post may touch";
    for (name, on, expected) in [
        ("quarantine (F2)", Protections { quarantine: false, ..all }, early),
        ("failed post writes (F17)", Protections { failed_post_writes: false, ..all }, early),
        ("tombstones (F16)", Protections { tombstones: false, ..all }, "Prefill ended 2 times"),
        ("sticky failure (F3)", Protections { sticky_failure: false, ..all }, "became"),
        ("first open (F16)", Protections { first_open: false, ..all }, "a repeated OPEN changed"),
        ("leases (F6)", Protections { leases: false, ..all }, "never ends"),
        ("owner drop (F5)", Protections { owner_drop: false, ..all }, "never ends"),
    ] {
        let error = check(SMALL, on).expect_err(name);
        assert!(error.contains(expected), "{name}: {error}");
    }
}
