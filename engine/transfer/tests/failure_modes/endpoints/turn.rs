//! One event after another.

use super::world::{Coordinator, Event, World, ms};
use std::time::Duration;
use transfer::endpoint::Output;
use transfer::hello::Side;
use transfer::ids::PeerId;

impl World {
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
}
