//! Two servers of two ranks on turmoil's network, a client in front of them, and everything that goes wrong in between.

use super::minds::Mind;
use super::process::Process;
use super::rank::{LATENCY, PORT, Setting, Slot, host, patience, software};
use super::stranger;
use super::troubles::{Tally, Troubles};
use crate::chance::Rng;
use crate::endpoints::world::ms;
use crate::words::RANKS;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use transfer::endpoint::ErrorKind;
use transfer::fault::Faults;
use transfer::hello::Side;
use transfer::transport::in_process::Fabric;
use turmoil::{Builder, Sim};

/// Time between two looks at everything.
const TICK: Duration = Duration::from_millis(5);

/// A pair of ranks' network, while it is not well.
#[derive(Debug, Clone, Copy)]
enum Ill {
    Held(Duration),
    Cut(Duration),
}

#[derive(Debug, Default)]
struct Client {
    next: u64,
    /// Requests that the decode server has, with what is left of their tries, and since when.
    asked: BTreeMap<u64, (u32, Duration)>,
    /// When which request is asked again.
    again: Vec<(Duration, u32)>,
}

pub(crate) struct Hosts {
    sim: Sim<'static>,
    fabric: Fabric,
    rng: Rng,
    troubles: Troubles,
    slots: [Vec<Rc<RefCell<Slot>>>; 2],
    processes: [Option<Process>; 2],
    /// When which server starts again.
    restart: [Option<Duration>; 2],
    ill: [Option<Ill>; RANKS],
    client: Client,
    pub(crate) violations: Vec<String>,
    pub(crate) tally: Tally,
}

const SIDES: [Side; 2] = [Side::Prefill, Side::Decode];

impl Hosts {
    pub(crate) fn new(seed: u64, troubles: Troubles) -> Self {
        let mut rng = Rng::new(seed);
        let mut sim = Builder::new()
            .tick_duration(TICK)
            .simulation_duration(Duration::from_secs(120))
            .min_message_latency(ms(0))
            .max_message_latency(LATENCY)
            .enable_random_order()
            .rng_seed(rng.next())
            .build();
        let faults = Faults::parse(&format!("seed={}; {}", rng.next(), troubles.pages)).expect("rules");
        let fabric = Fabric::new(rng.next(), 0..=15, Arc::new(faults));
        let Troubles { verify, on, queued_bytes, frames, .. } = troubles;
        let setting = Setting { verify, on, queued_bytes, frames, seed: rng.next() >> 8 };
        let slot = |side, rank| Slot::new(side, rank, fabric.clone(), setting.clone());
        let slots = SIDES.map(|side| (0..RANKS).map(|rank| slot(side, rank)).collect::<Vec<_>>());
        for (side, slots) in SIDES.into_iter().zip(&slots) {
            for (rank, slot) in slots.iter().enumerate() {
                let slot = Rc::clone(slot);
                sim.host(host(side, rank), move || software(&slot));
            }
        }
        if troubles.noise {
            let targets = (0..RANKS).map(|rank| format!("{}:{PORT}", host(Side::Prefill, rank))).collect();
            sim.client("stranger", stranger::noise(targets, Rng::new(rng.next()), troubles.until));
        }
        if troubles.mute {
            let target = format!("{}:{PORT}", host(Side::Prefill, 0));
            sim.client("mute", stranger::mute(target, troubles.until));
        }
        let processes = [None, None];
        let mut hosts = Self {
            sim,
            fabric,
            rng,
            troubles,
            slots,
            processes,
            restart: [None; 2],
            ill: [None; RANKS],
            client: Client::default(),
            violations: vec![],
            tally: Tally::default(),
        };
        (0..2).for_each(|number| hosts.start(number));
        hosts
    }

    fn now(&self) -> Duration {
        self.sim.elapsed()
    }

    fn violation(&mut self, text: String) {
        self.violations.push(format!("{:?}: {text}", self.now()));
    }

    fn faulty(&self) -> bool {
        self.now() < self.troubles.until
    }

    fn chance(&mut self, permille: u32) -> bool {
        self.faulty() && self.rng.chance(permille)
    }

    fn names(number: usize) -> Vec<String> {
        (0..RANKS).map(|rank| host(SIDES[number], rank)).collect()
    }

    fn start(&mut self, number: usize) {
        self.processes[number] = Some(Process::new(SIDES[number], &self.slots[number], &mut self.rng));
    }

    pub(crate) fn kill(&mut self, number: usize) {
        if self.processes[number].take().is_none() {
            return;
        }
        self.tally.restarts += 1;
        for name in Self::names(number) {
            self.sim.crash(name.as_str());
        }
        self.slots[number].iter().for_each(|slot| slot.borrow_mut().process = None);
        let pause = self.rng.between(20, 600);
        self.restart[number] = Some(self.now() + pause);
        if SIDES[number] == Side::Decode {
            // Its clients see their connections close.
            for (tries, _) in std::mem::take(&mut self.client.asked).into_values() {
                self.ended(Err("the server is gone".into()), tries);
            }
        }
    }

    /// A client asks; it asks again up to `tries` times.
    pub(crate) fn request(&mut self, tries: u32) {
        let Some(Process { mind: Mind::Decode(mind), .. }) = &mut self.processes[1] else {
            return self.ended(Err("nobody listens".into()), tries);
        };
        self.client.next += 1;
        mind.waiting.push_back(self.client.next);
        self.client.asked.insert(self.client.next, (tries, self.sim.elapsed()));
    }

    fn ended(&mut self, end: Result<(), String>, tries: u32) {
        match end {
            Ok(()) => self.tally.answered += 1,
            Err(reason) => {
                self.tally.failed += 1;
                *self.tally.reasons.entry(reason).or_default() += 1;
                if tries > 1 {
                    let pause = self.rng.between(20, 200);
                    let when = self.now() + pause;
                    self.client.again.push((when, tries - 1));
                }
            }
        }
    }

    /// Runs for that long, or until something is wrong.
    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until && self.violations.is_empty() {
            if let Err(error) = self.sim.step() {
                self.violation(error.to_string());
            }
            self.fabric.advance(TICK.as_millis() as u64);
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now = self.now();
        if now.as_millis().is_multiple_of(20) {
            self.trouble();
        }
        let (leave, refuse) = match self.faulty() {
            true => (self.troubles.leave, self.troubles.refuse),
            false => (0, 0),
        };
        for number in 0..2 {
            if self.restart[number].is_some_and(|when| when <= now) {
                self.restart[number] = None;
                Self::names(number).iter().for_each(|name| self.sim.bounce(name.as_str()));
                self.start(number);
            }
            let Some(process) = &mut self.processes[number] else { continue };
            match &mut process.mind {
                Mind::Prefill(mind) => mind.refuse = refuse,
                Mind::Decode(mind) => mind.leave = leave,
            }
            if let Err(violation) = process.step(now, self.troubles.pace, &mut self.rng) {
                self.violation(violation);
            }
        }
        self.fetch();
        let due = |&(when, _): &(Duration, u32)| when <= now;
        let (again, later) = std::mem::take(&mut self.client.again).into_iter().partition(due);
        self.client.again = later;
        let again: Vec<_> = again;
        again.into_iter().for_each(|(_, tries)| self.request(tries));
    }

    fn fetch(&mut self) {
        let Some(Process { mind: Mind::Decode(mind), .. }) = &mut self.processes[1] else { return };
        for (number, answer) in std::mem::take(&mut mind.answers) {
            match self.client.asked.remove(&number) {
                Some((tries, since)) => {
                    if answer.is_ok() {
                        self.tally.slowest = self.tally.slowest.max(self.sim.elapsed() - since);
                    }
                    self.ended(answer.map_err(|reason| reason.to_string()), tries);
                }
                None => self.violation(format!("request {number} was answered and is not asked: {answer:?}")),
            }
        }
    }

    fn trouble(&mut self) {
        for number in 0..2 {
            if self.chance(self.troubles.kill) {
                self.kill(number);
            }
        }
        for rank in 0..RANKS {
            match self.ill[rank] {
                Some(ill) => self.heal(rank, ill),
                None => self.harm(rank),
            }
        }
    }

    fn heal(&mut self, rank: usize, ill: Ill) {
        let (now, [a, b]) = (self.now(), SIDES.map(|side| host(side, rank)));
        match ill {
            Ill::Held(until) if until <= now => self.sim.release(a, b),
            Ill::Cut(until) if until <= now => self.sim.repair(a, b),
            Ill::Held(_) | Ill::Cut(_) => return,
        }
        self.ill[rank] = None;
    }

    fn harm(&mut self, rank: usize) {
        let (now, [a, b]) = (self.now(), SIDES.map(|side| host(side, rank)));
        if self.chance(self.troubles.hold) {
            self.sim.hold(a, b);
            self.ill[rank] = Some(Ill::Held(now + self.rng.between(20, 400)));
            self.tally.held += 1;
        } else if self.chance(self.troubles.cut) {
            self.sim.partition(a, b);
            self.ill[rank] = Some(Ill::Cut(now + self.rng.between(20, 600)));
            self.tally.cut += 1;
        }
    }

    /// What keeps the servers from being idle.
    pub(crate) fn busy(&self) -> Vec<String> {
        let mut busy = vec![];
        for (side, process) in SIDES.into_iter().zip(&self.processes) {
            match process {
                None => busy.push(format!("{side:?} does not run")),
                Some(process) => busy.extend(process.left().iter().map(|left| format!("{side:?} is not idle: {left}"))),
            }
        }
        if !self.client.asked.is_empty() || !self.client.again.is_empty() {
            busy.push(format!("not answered: {:?}", self.client));
        }
        busy
    }

    /// Waits until all is idle, as long as all deadlines behind each other may take, asks once more, and waits again.
    pub(crate) fn settle(&mut self) {
        self.run(self.troubles.until.saturating_sub(self.now()) + ms(700));
        self.fabric.replace_faults(Faults::none());
        self.idle(ms(10_000));
        let before = self.tally.answered;
        if self.violations.is_empty() {
            // Where frames are still lost, time is the bound: the pauses of a number of tries may all lie in one outage of 0.63 s.
            self.request(if self.troubles.frames.is_empty() { 1 } else { u32::MAX });
            self.idle(patience());
            if self.tally.answered != before + 1 {
                self.violation(format!("the next request was not served: {:?}", self.tally));
            }
            let left = self.processes.iter().flatten().filter_map(Process::written);
            self.busy().into_iter().chain(left.collect::<Vec<_>>()).for_each(|left| self.violation(left));
        }
        let tally = &mut self.tally;
        self.processes.iter().flatten().for_each(|process| {
            process.count(|snapshot| {
                let kinds = [ErrorKind::Stream, ErrorKind::UnknownKind, ErrorKind::Body, ErrorKind::Early];
                tally.malformed += kinds.iter().map(|&kind| snapshot.errors.of(kind)).sum::<u64>();
                tally.overflows += snapshot.errors.of(ErrorKind::Overflow);
                tally.verified += snapshot.verified.matching;
            });
        });
    }

    fn idle(&mut self, limit: Duration) {
        let until = self.now() + limit;
        // A decision must have passed before a request that is answered counts as over.
        while self.now() < until && self.violations.is_empty() {
            self.run(ms(100));
            if self.busy().is_empty() {
                break;
            }
        }
    }
}
