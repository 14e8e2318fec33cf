//! Processes and memory on a virtual clock; what connects them is in `network.rs`.
//!
//! One prefill process (number 0) and some decode processes, [`RANKS`] ranks each. A write lands when the receiver runs, its
//! writer is alive and neither end of the connection is torn down; a torn-down end stops it for good, a timer never does.
//! Memory holds one word per page: what it should be is known, so a foreign or late write is seen.

use super::coordinator::{DecodeSide, PrefillSide};
use super::faults::Faults;
use super::network::{Link, Transfer};
use crate::chance::Rng;
use crate::words::{RANKS, hello};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use transfer::endpoint::{Config, Endpoint};
use transfer::hello::Side;
use transfer::ids::{PeerId, RoomKey, Ticket};
use transfer::room::{Outcome, Protections, Timers};

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) endpoint: Endpoint,
    pub(crate) links: BTreeMap<PeerId, usize>,
    pub(crate) next_peer: u32,
    /// What each page of each item holds, by its offset.
    pub(crate) memory: BTreeMap<u64, u64>,
    /// Decode: whose page it is.
    pub(crate) owners: BTreeMap<u64, RoomKey>,
    pub(crate) tick: Option<Duration>,
}

#[derive(Debug)]
pub(crate) enum Coordinator {
    Prefill(PrefillSide),
    Decode(DecodeSide),
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) side: Side,
    pub(crate) incarnation: u64,
    pub(crate) alive: bool,
    pub(crate) stopped: Option<Duration>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) coordinator: Option<Coordinator>,
}

#[derive(Debug)]
pub(crate) enum Event {
    Start(usize),
    Connect { process: usize, incarnation: u64, rank: usize },
    Accept { link: usize, end: usize },
    Tick { process: usize, incarnation: u64, rank: usize },
    Step { process: usize, incarnation: u64 },
    Deliver { link: usize, end: usize, bytes: Vec<u8> },
    Closed { link: usize, end: usize },
    TornDown { link: usize, end: usize },
    Land { transfer: u64, part: usize },
    Ended { link: usize, ticket: Ticket, done: bool },
    Trouble,
}

/// What came of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) answered: u32,
    pub(crate) failed: u32,
    pub(crate) reasons: BTreeMap<String, u32>,
    pub(crate) posts: u32,
    pub(crate) torn_down: u32,
    pub(crate) restarts: u32,
    pub(crate) dropped: u32,
}

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) on: Protections,
    pub(crate) timers: Timers,
    pub(crate) processes: Vec<Process>,
    pub(crate) queue: BTreeMap<(Duration, u64), Event>,
    pub(crate) next_event: u64,
    pub(crate) links: BTreeMap<usize, Link>,
    pub(crate) transfers: BTreeMap<u64, Transfer>,
    pub(crate) kinds: BTreeMap<u8, u32>,
    pub(crate) violations: Vec<String>,
    pub(crate) tally: Tally,
    pub(crate) answers: BTreeSet<RoomKey>,
    outcomes: BTreeMap<(usize, u64, usize, RoomKey), Outcome>,
}

impl World {
    pub(crate) fn new(seed: u64, decode_processes: usize, faults: Faults, on: Protections) -> Self {
        let mut world = Self {
            now: ms(0),
            rng: Rng::new(seed),
            faults,
            on,
            timers: Timers::default(),
            processes: vec![],
            queue: BTreeMap::new(),
            next_event: 0,
            links: BTreeMap::new(),
            transfers: BTreeMap::new(),
            kinds: BTreeMap::new(),
            violations: vec![],
            tally: Tally::default(),
            answers: BTreeSet::new(),
            outcomes: BTreeMap::new(),
        };
        for number in 0..=decode_processes {
            let side = if number == 0 { Side::Prefill } else { Side::Decode };
            let (ranks, coordinator) = (vec![], None);
            world.processes.push(Process { side, incarnation: 0, alive: false, stopped: None, ranks, coordinator });
            world.start(number);
        }
        world.at(ms(100), Event::Trouble);
        world
    }

    pub(crate) fn faulty(&self) -> bool {
        self.now < self.faults.until
    }

    pub(crate) fn chance(&mut self, permille: u32) -> bool {
        self.faulty() && self.rng.chance(permille)
    }

    pub(crate) fn at(&mut self, after: Duration, event: Event) {
        self.next_event += 1;
        self.queue.insert((self.now + after, self.next_event), event);
    }

    /// Lets the coordinator of a process think again.
    pub(crate) fn step_in(&mut self, after: Duration, process: usize) {
        let incarnation = self.processes[process].incarnation;
        self.at(after, Event::Step { process, incarnation });
    }

    pub(crate) fn violation(&mut self, text: String) {
        self.violations.push(format!("{:?}: {text}", self.now));
    }

    pub(crate) fn start(&mut self, number: usize) {
        let process = &mut self.processes[number];
        process.incarnation += 1;
        process.alive = true;
        let (side, incarnation) = (process.side, process.incarnation);
        let rank = |rank| {
            let mut config = Config::new(hello(side, number, rank, incarnation));
            config.timers = self.timers.clone();
            config.protections = self.on;
            let endpoint = Endpoint::new(config).unwrap();
            let (links, memory, owners) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
            Rank { endpoint, links, next_peer: 0, memory, owners, tick: None }
        };
        process.ranks = (0..RANKS).map(rank).collect();
        process.coordinator = Some(match side {
            Side::Prefill => Coordinator::Prefill(PrefillSide::new()),
            Side::Decode => Coordinator::Decode(DecodeSide::new(self.rng.next() >> 1)),
        });
        if side == Side::Decode {
            (0..RANKS).for_each(|rank| self.at(ms(1), Event::Connect { process: number, incarnation, rank }));
        }
    }

    /// The process is gone, and with it its memory and its writes.
    pub(crate) fn kill(&mut self, number: usize) {
        if !self.processes[number].alive {
            return;
        }
        let process = &mut self.processes[number];
        (process.alive, process.stopped) = (false, None);
        process.ranks.clear();
        process.coordinator = None;
        self.tally.restarts += 1;
        let links: Vec<_> = self.links.keys().copied().collect();
        for id in links {
            for end in 0..2 {
                let here = |link: &Link| link.ends[end].process == number && !link.dead[end];
                if self.links.get(&id).is_some_and(here) {
                    self.end_link(id, end);
                }
            }
        }
        let pause = self.rng.between(100, 3000);
        self.at(pause, Event::Start(number));
    }

    pub(crate) fn stop(&mut self, number: usize, time: Duration) {
        if self.processes[number].alive {
            self.processes[number].stopped = Some(self.now + time);
        }
    }

    /// Finished and Failed are for ever, whoever looks.
    pub(crate) fn check_outcomes(&mut self, number: usize) {
        let incarnation = self.processes[number].incarnation;
        let mut changed = vec![];
        for (rank, state) in self.processes[number].ranks.iter().enumerate() {
            for (key, room) in state.endpoint.view() {
                let before = self.outcomes.insert((number, incarnation, rank, key), room.outcome.clone());
                if let Some(before) = before.filter(|before| before.is_final() && *before != room.outcome) {
                    changed.push(format!("process {number} rank {rank}: {key} was {before:?}, now {:?}", room.outcome));
                }
            }
        }
        changed.into_iter().for_each(|text| self.violation(text));
    }

    pub(crate) fn decode_side(&mut self, number: usize) -> Option<&mut DecodeSide> {
        match self.processes[number].coordinator.as_mut() {
            Some(Coordinator::Decode(side)) => Some(side),
            Some(Coordinator::Prefill(_)) | None => None,
        }
    }

    /// A client asks a decode process.
    pub(crate) fn request(&mut self, process: usize, tries: u32) {
        if let Some(side) = self.decode_side(process) {
            side.request(tries);
            self.step_in(ms(0), process);
        }
    }

    /// What keeps processes from being idle: rooms, pages that are not back, connections that are not there.
    pub(crate) fn busy(&self) -> Vec<String> {
        let mut busy = vec![];
        for (number, process) in self.processes.iter().enumerate() {
            let mut left: Vec<String> = vec![];
            for (rank, state) in process.ranks.iter().enumerate() {
                left.extend(state.endpoint.view().iter().map(|(key, room)| format!("rank {rank}: {key} {room:?}")));
                if state.endpoint.num_posts() > 0 {
                    left.push(format!("rank {rank} has {} posts", state.endpoint.num_posts()));
                }
                if state.endpoint.peers().all(|peer| !peer.ready) {
                    left.push(format!("rank {rank} has no peer"));
                }
            }
            left.extend(match &process.coordinator {
                Some(Coordinator::Decode(side)) => side.left(),
                Some(Coordinator::Prefill(side)) => side.left(),
                None => Some("not running".into()),
            });
            if !left.is_empty() {
                busy.push(format!("process {number} is not idle: {left:?}"));
            }
        }
        busy
    }
}
