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
use transfer::endpoint::{Config, Endpoint, Output};
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
    tick: Option<Duration>,
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
    stopped: Option<Duration>,
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
    queue: BTreeMap<(Duration, u64), Event>,
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

    fn start(&mut self, number: usize) {
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

    /// Runs until a time.
    pub(crate) fn run(&mut self, until: Duration) {
        while let Some((&(at, id), _)) = self.queue.first_key_value() {
            if at > until || !self.violations.is_empty() {
                break;
            }
            let Some(event) = self.queue.remove(&(at, id)) else { break };
            self.now = at;
            let target = self.target(&event);
            if let Some(resume) = target.and_then(|target| self.processes[target].stopped) {
                if resume > self.now {
                    self.at(resume - self.now, event);
                    continue;
                }
                self.processes[target.unwrap()].stopped = None;
            }
            self.handle(event);
            if let Some(target) = target {
                self.pump(target);
            }
        }
        self.now = until;
    }

    /// The process that must run for the event to happen.
    fn target(&self, event: &Event) -> Option<usize> {
        let end = |link: &usize, end: usize| self.links.get(link).map(|link| link.ends[end].process);
        match event {
            Event::Start(_) | Event::Trouble => None,
            Event::Connect { process, .. } | Event::Tick { process, .. } | Event::Step { process, .. } => {
                Some(*process)
            }
            Event::Accept { link, end: to } | Event::Deliver { link, end: to, .. } => end(link, *to),
            Event::Closed { link, end: to } | Event::TornDown { link, end: to } => end(link, *to),
            Event::Land { transfer, .. } => self.transfers.get(transfer).and_then(|transfer| end(&transfer.link, 0)),
            Event::Ended { link, .. } => end(link, 1),
        }
    }

    pub(crate) fn lives(&self, process: usize, incarnation: u64) -> bool {
        self.processes[process].alive && self.processes[process].incarnation == incarnation
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Start(process) => self.start(process),
            Event::Connect { process, incarnation, rank } => self.connect(process, incarnation, rank),
            Event::Accept { link, end } => {
                if let Some((peer, endpoint)) = self.endpoint(link, end) {
                    endpoint.on_connected(peer, now);
                }
            }
            Event::Tick { process, incarnation, rank } => {
                if self.lives(process, incarnation) {
                    let rank = &mut self.processes[process].ranks[rank];
                    rank.tick = None;
                    rank.endpoint.on_tick(now);
                }
            }
            Event::Step { process, incarnation } => {
                if self.lives(process, incarnation) {
                    self.coordinate(process);
                }
            }
            Event::Deliver { link, end, bytes } => self.deliver(link, end, &bytes),
            Event::Closed { link, end } => {
                if let Some((peer, endpoint)) = self.endpoint(link, end) {
                    endpoint.on_lost(peer, now);
                }
            }
            Event::TornDown { link, end } => self.torn_down(link, end),
            Event::Land { transfer, part } => self.land(transfer, part),
            Event::Ended { link, ticket, done } => {
                if let Some((_, endpoint)) = self.endpoint(link, 1) {
                    endpoint.on_ticket(ticket, done, now);
                }
            }
            Event::Trouble => self.trouble(),
        }
    }

    fn trouble(&mut self) {
        for process in 0..self.processes.len() {
            if self.chance(self.faults.kill) {
                self.kill(process);
            }
            if self.chance(self.faults.stop) {
                let time = self.rng.between(10, 8000);
                self.stop(process, time);
            }
        }
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            if self.chance(self.faults.cut) {
                (0..2).for_each(|end| self.at(ms(end as u64), Event::Closed { link, end }));
            }
        }
        if self.faulty() {
            self.at(ms(100), Event::Trouble);
        }
    }

    /// Everything that the endpoints of a process want done, and its coordinator's next thought, until all is quiet.
    fn pump(&mut self, number: usize) {
        loop {
            let mut wake = false;
            for rank in 0..self.processes[number].ranks.len() {
                while let Some(output) = self.processes[number].ranks[rank].endpoint.poll() {
                    match output {
                        Output::Wake => wake = true,
                        other => self.carry_out(number, rank, other),
                    }
                }
                let incarnation = self.processes[number].incarnation;
                let state = &mut self.processes[number].ranks[rank];
                let due = state.endpoint.next_due();
                if let Some(due) = due.filter(|due| state.tick.is_none_or(|tick| *due < tick)) {
                    state.tick = Some(due);
                    let after = due.saturating_sub(self.now);
                    self.at(after, Event::Tick { process: number, incarnation, rank });
                }
            }
            if !wake {
                return;
            }
            self.coordinate(number);
        }
    }

    fn carry_out(&mut self, number: usize, rank: usize, output: Output) {
        let link_of = |world: &World, peer: &PeerId| world.processes[number].ranks[rank].links.get(peer).copied();
        let end = usize::from(self.processes[number].side == Side::Prefill);
        match output {
            Output::Send { peer, bytes } => {
                self.processes[number].ranks[rank].endpoint.on_sent(peer, bytes.len());
                if let Some(link) = link_of(self, &peer) {
                    self.transmit(link, 1 - end, bytes);
                }
            }
            Output::Post { peer, key, copies, ticket, .. } => {
                self.tally.posts += 1;
                if let Some(link) = link_of(self, &peer).filter(|id| self.links[id].dead == [false; 2]) {
                    self.post(link, key, copies, ticket);
                }
            }
            Output::TearDown { peer, .. } => {
                if let Some(link) = link_of(self, &peer) {
                    let time = self.rng.between(1, 40);
                    self.at(time, Event::TornDown { link, end });
                }
            }
            Output::Wake => {}
        }
    }

    fn coordinate(&mut self, number: usize) {
        self.check_outcomes(number);
        let Some(coordinator) = self.processes[number].coordinator.take() else { return };
        let coordinator = match coordinator {
            Coordinator::Prefill(mut side) => {
                side.step(self, number);
                Coordinator::Prefill(side)
            }
            Coordinator::Decode(mut side) => {
                side.step(self, number);
                Coordinator::Decode(side)
            }
        };
        self.processes[number].coordinator = Some(coordinator);
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
