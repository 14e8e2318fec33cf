//! What the two servers' coordinators decide, as small as it can be: what all ranks saw leads to the same commands on all.

use crate::chance::Rng;
use crate::endpoints::pool::Pool;
use crate::words::UNITS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use transfer::exchange::{Agreed, Command, RoomSeen};
use transfer::hello::Side;
use transfer::ids::{RoomKey, Unit};
use transfer::layout::PagesByClass;
use transfer::reason::{Code, Reason};

/// A unit that every prefill rank computes.
pub(crate) type Work = (RoomKey, Unit);

/// Commands and work of the next decision.
type Orders = (Vec<Command>, Vec<Work>);

/// The loop of one side.
#[derive(Debug)]
pub(crate) enum Mind {
    Prefill(Prefill),
    Decode(Decode),
}

impl Mind {
    pub(crate) fn think(&mut self, agreed: &Agreed, rng: &mut Rng) -> Result<Orders, String> {
        match self {
            Self::Prefill(mind) => Ok(mind.think(agreed, rng)),
            Self::Decode(mind) => Ok((mind.think(agreed, rng)?, Vec::new())),
        }
    }

    fn pool(&self) -> &Pool {
        match self {
            Self::Prefill(mind) => &mind.pool,
            Self::Decode(mind) => &mind.pool,
        }
    }

    /// Free pages by class.
    pub(crate) fn free_pages(&self) -> &PagesByClass {
        self.pool().free()
    }

    /// What keeps the side from being idle.
    pub(crate) fn left(&self) -> Option<String> {
        let rooms: Vec<_> = match self {
            Self::Prefill(mind) => mind.rooms.keys().collect(),
            Self::Decode(mind) => mind.rooms.keys().collect(),
        };
        let waiting = if let Self::Decode(mind) = self { mind.waiting.len() } else { 0 };
        let idle = rooms.is_empty() && waiting == 0 && self.pool().is_full();
        (!idle).then(|| format!("{waiting} wait, rooms {rooms:?}, free pages {:?}", self.pool().free()))
    }
}

/// A request as it travels in OPEN and comes back in DONE.
fn encode(number: u64) -> Arc<[u8]> {
    Arc::from(number.to_le_bytes())
}

/// Pages by class that a request needs.
fn counts(number: u64) -> [usize; 2] {
    [1 + (number % 2) as usize, 1]
}

#[derive(Debug)]
struct Asked {
    number: u64,
    pages: PagesByClass,
    /// Answered: only quiet is waited for.
    over: bool,
}

/// Decode's side.
#[derive(Debug)]
pub(crate) struct Decode {
    pool: Pool,
    /// Numbers of requests without a room.
    pub(crate) waiting: VecDeque<u64>,
    rooms: BTreeMap<RoomKey, Asked>,
    next_room: u64,
    /// Clients that go away, per mille of the decisions that their room sees.
    pub(crate) leave: u32,
    /// Answers that nobody has fetched yet.
    pub(crate) answers: Vec<(u64, Result<(), Reason>)>,
}

impl Decode {
    pub(crate) fn new(first_room: u64) -> Self {
        let (waiting, rooms, answers) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        Self { pool: Pool::new(Side::Decode), waiting, rooms, next_room: first_room, leave: 0, answers }
    }

    fn think(&mut self, agreed: &Agreed, rng: &mut Rng) -> Result<Vec<Command>, String> {
        let (mut commands, nothing) = (Vec::new(), RoomSeen::default());
        for (&key, asked) in &mut self.rooms {
            let seen = agreed.rooms.get(&key).unwrap_or(&nothing);
            if asked.over {
                if seen.quiet {
                    self.pool.give(&asked.pages);
                    commands.push(Command::Forget { key });
                }
                continue;
            }
            let leaves = rng.chance(self.leave).then(|| Reason::new(Code::Aborted, "the client is gone"));
            let answer = if let Some(reason) = seen.failed.clone().or(leaves) {
                commands.push(Command::Abort { key, reason: reason.clone() });
                Err(reason)
            } else if let Some(record) = seen.done.as_ref().filter(|_| seen.landed.len() == UNITS) {
                if *record != encode(asked.number) {
                    return Err(format!("{key}: request {} got the record {record:?}", asked.number));
                }
                commands.push(Command::Taken { key });
                Ok(())
            } else {
                continue;
            };
            asked.over = true;
            self.answers.push((asked.number, answer));
        }
        let forgotten = |command: &Command| matches!(command, Command::Forget { .. }).then(|| command.key());
        commands.iter().filter_map(forgotten).for_each(|key| _ = self.rooms.remove(&key));
        self.open(&mut commands);
        Ok(commands)
    }

    fn open(&mut self, commands: &mut Vec<Command>) {
        while let Some(&number) = self.waiting.front() {
            let Some(pages) = self.pool.take(&counts(number)) else { return };
            self.waiting.pop_front();
            let key = RoomKey { room: self.next_room, epoch: 1 };
            self.next_room += 1;
            commands.push(Command::Open { key, server: 0, request: encode(number), pages: pages.clone() });
            self.rooms.insert(key, Asked { number, pages, over: false });
        }
    }
}

#[derive(Debug, Default)]
struct Room {
    request: Option<Arc<[u8]>>,
    pages: Option<PagesByClass>,
    next: u32,
    /// Sent or failed: only quiet is waited for.
    over: bool,
}

/// Prefill's side.
#[derive(Debug)]
pub(crate) struct Prefill {
    pool: Pool,
    rooms: BTreeMap<RoomKey, Room>,
    /// Told to be forgotten, and perhaps still in a report.
    forgotten: BTreeSet<RoomKey>,
    /// Requests that are refused, per mille.
    pub(crate) refuse: u32,
}

impl Prefill {
    pub(crate) fn new() -> Self {
        let (rooms, forgotten) = (BTreeMap::new(), BTreeSet::new());
        Self { pool: Pool::new(Side::Prefill), rooms, forgotten, refuse: 0 }
    }

    fn think(&mut self, agreed: &Agreed, rng: &mut Rng) -> Orders {
        let mut commands = Vec::new();
        self.forgotten.retain(|key| agreed.rooms.contains_key(key));
        for (&key, seen) in agreed.rooms.iter().filter(|(key, _)| !self.forgotten.contains(key)) {
            let room = self.rooms.entry(key).or_default();
            if room.over {
                if seen.quiet {
                    room.pages.iter().for_each(|pages| self.pool.give(pages));
                    commands.push(Command::Forget { key });
                }
            } else if let Some(reason) = seen.failed.clone() {
                room.over = true;
                commands.push(Command::Abort { key, reason });
            } else if room.request.is_none() && seen.arrived.is_some() {
                room.request = seen.arrived.clone();
                if rng.chance(self.refuse) {
                    room.over = true;
                    commands.push(Command::Abort { key, reason: Reason::new(Code::Refused, "not today") });
                }
            }
        }
        for command in &commands {
            if let Command::Forget { key } = command {
                self.rooms.remove(key);
                self.forgotten.insert(*key);
            }
        }
        let work = self.work(&mut commands, rng);
        (commands, work)
    }

    fn work(&mut self, commands: &mut Vec<Command>, rng: &mut Rng) -> Vec<Work> {
        let mut work = Vec::new();
        for (&key, room) in self.rooms.iter_mut().filter(|(_, room)| !room.over) {
            let Some(request) = room.request.clone() else { continue };
            if room.pages.is_none() {
                let number = request.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                room.pages = self.pool.take(&counts(number));
                let Some(pages) = room.pages.clone() else { continue };
                commands.push(Command::Accept { key, pages });
            } else if room.next == UNITS {
                room.over = true;
                commands.push(Command::Done { key, handover: request });
            } else if rng.chance(700) {
                work.push((key, Unit(room.next)));
                room.next += 1;
            }
        }
        work
    }
}
