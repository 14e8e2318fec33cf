//! The double: a network in memory, with its own clock, in which everything that real transports do wrong can be had on
//! demand, by seed.
//!
//! Copies of a post travel one by one, each with its own delay, so they land in any order; source bytes are read when they
//! land, as a card does. Faults come from [`Faults`]: `post` (fail, stale, delay), `completion` (fail with half the copies
//! lost, never-end, end-early, error-then-write, late-write), `page-copy` and `landing` by item (delay, corrupt,
//! late-write), `poll` (delay: no news this time), `tear-down` (delay: time passes before it takes hold). Their numbers are
//! ticks. Like one-sided transports it does not look at tags.

use super::{Bounds, Counters, End, News, Op, Post, Tickets, Transport, TransportError};
use crate::arena::Arena;
use crate::fault::{Fault, Faults, Point, mix};
use crate::ids::{PeerId, Ticket};
use crate::layout::{Layout, PageCopy};
use crate::room::Proof;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NAME: &str = "in-process";

/// A network and its clock.
#[derive(Debug, Clone)]
pub struct Fabric(Arc<Mutex<World>>);

/// One end of a [`Fabric`]. Dropping it is the death of its process.
#[derive(Debug)]
pub struct InProcess {
    world: Arc<Mutex<World>>,
    id: u64,
}

/// One end of a connection: a port, and the number by which it knows the other end. Numbers are used once, so a pair of ports
/// that connects again does so over other ends.
type Place = (u64, PeerId);

#[derive(Debug)]
struct World {
    now: u64,
    seed: u64,
    drawn: u64,
    delay: RangeInclusive<u64>,
    faults: Arc<Faults>,
    next_id: u64,
    /// A port that nothing reaches and nothing leaves (tests).
    deaf: Option<u64>,
    ports: BTreeMap<u64, Port>,
    /// Ends of connections that are gone.
    broken: BTreeSet<Place>,
    /// By due time, then by a random number.
    flights: BTreeMap<(u64, u64), Flight>,
}

#[derive(Debug)]
struct Port {
    memory: Option<(Arc<Arena>, Bounds)>,
    tickets: Tickets,
    peers: BTreeMap<PeerId, Place>,
    news: Vec<News>,
    counters: Counters,
}

#[derive(Debug)]
enum Flight {
    /// Bytes from one port's arena to another's; `data`: read already.
    Copy { from: Place, to: Place, copy: PageCopy, data: Option<Vec<u8>>, flip: Option<u64> },
    /// The end of a post.
    End { at: Place, ticket: Ticket, end: End },
    /// The port learns that the other end is gone.
    Lost { at: Place },
}

impl Fabric {
    /// A network in which every copy takes as many ticks as the range allows.
    pub fn new(seed: u64, delay: RangeInclusive<u64>, faults: Arc<Faults>) -> Self {
        Self(Arc::new(Mutex::new(World {
            now: 0,
            seed,
            drawn: 0,
            delay,
            faults,
            next_id: 1,
            deaf: None,
            ports: BTreeMap::new(),
            broken: BTreeSet::new(),
            flights: BTreeMap::new(),
        })))
    }

    /// A new end, its own incarnation.
    pub fn transport(&self) -> InProcess {
        let mut world = lock(&self.0);
        let id = world.next_id;
        world.next_id += 1;
        let port = Port {
            memory: None,
            tickets: Tickets::new(),
            peers: BTreeMap::new(),
            news: Vec::new(),
            counters: Counters::default(),
        };
        world.ports.insert(id, port);
        InProcess { world: self.0.clone(), id }
    }

    /// Lets ticks pass.
    pub fn advance(&self, ticks: u64) {
        lock(&self.0).advance(ticks);
    }

    /// From now on other faults.
    pub fn replace_faults(&self, faults: Faults) {
        lock(&self.0).faults = Arc::new(faults);
    }

    /// Copies and messages that have not arrived.
    pub fn in_flight(&self) -> usize {
        lock(&self.0).flights.len()
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    fn report(&mut self, tickets: Vec<Ticket>, reason: &str) {
        let failed = |ticket| News::Ended { ticket, end: End::Failed(reason.into()) };
        self.news.extend(tickets.into_iter().map(failed));
    }
}

impl World {
    fn random(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.seed ^ mix(self.drawn))
    }

    fn delay(&mut self) -> u64 {
        let (least, most) = (*self.delay.start(), *self.delay.end());
        least + self.random() % (most.saturating_sub(least) + 1)
    }

    fn send(&mut self, due: u64, flight: Flight) {
        let order = self.random();
        self.flights.insert((due, order), flight);
    }

    fn advance(&mut self, ticks: u64) {
        let until = self.now + ticks;
        while let Some(entry) = self.flights.first_entry().filter(|entry| entry.key().0 <= until) {
            self.now = self.now.max(entry.key().0);
            let flight = entry.remove();
            self.arrive(flight);
        }
        self.now = until;
    }

    fn arrive(&mut self, flight: Flight) {
        match flight {
            Flight::Copy { from, to, copy, data, flip } => {
                let read = || {
                    let (arena, _) = self.ports.get(&from.0)?.memory.as_ref()?;
                    let mut data = vec![0; copy.bytes as usize];
                    arena.read(copy.src, &mut data).ok().map(|()| data)
                };
                let Some(mut data) = data.or_else(read) else { return };
                if let Some(at) = flip.filter(|_| !data.is_empty()) {
                    let at = at as usize % data.len();
                    data[at] ^= 0x10;
                }
                let Some(port) = self.ports.get_mut(&to.0) else { return };
                let Some((arena, _)) = &port.memory else { return };
                if arena.write(copy.dst, &data).is_ok() {
                    port.counters.landed_bytes += copy.bytes;
                }
                if let Some(port) = self.ports.get_mut(&from.0) {
                    port.counters.sent_bytes += copy.bytes;
                }
            }
            Flight::End { at: (id, peer), ticket, end } => {
                let Some(port) = self.ports.get_mut(&id).filter(|port| port.peers.contains_key(&peer)) else { return };
                if port.tickets.end(peer, ticket, !matches!(end, End::Failed(_))) {
                    port.news.push(News::Ended { ticket, end });
                }
            }
            Flight::Lost { at: (id, peer) } => {
                let Some(port) = self.ports.get_mut(&id).filter(|port| port.peers.contains_key(&peer)) else { return };
                let lost = port.tickets.lose(peer);
                port.report(lost, "the peer is gone");
                port.news.push(News::Lost { peer, reason: "the peer is gone".into() });
            }
        }
    }

    fn post(&mut self, id: u64, post: Post) -> Result<(), TransportError> {
        let now = self.now;
        let port = self.ports.get(&id).ok_or(TransportError::NoArena)?;
        let (_, bounds) = port.memory.as_ref().ok_or(TransportError::NoArena)?;
        port.tickets.check(&post, bounds)?;
        let Post { ticket, op, peer, copies, .. } = post;
        let other = port.peers[&peer];
        let at_post = self.faults.at(Point::Post, "").map(|hit| (hit.fault, hit.number));
        if let Some((Fault::Fail, _)) = at_post {
            return Err(TransportError::System { transport: NAME, reason: "a fault refuses the post".into() });
        }
        if let Some(port) = self.ports.get_mut(&id) {
            port.tickets.begin(peer, ticket);
        }
        let here = (id, peer);
        let end = |due, end| (due, Flight::End { at: here, ticket, end });
        if self.deaf == Some(other.0) {
            return Ok(());
        }
        let admitted = self.ports.get(&other.0).is_some_and(|port| port.peers.get(&other.1) == Some(&here));
        if !admitted || self.broken.contains(&here) || matches!(at_post, Some((Fault::Stale, _))) {
            let (due, flight) = end(now + 1, End::Failed("the peer is gone or of another incarnation".into()));
            self.send(due, flight);
            return Ok(());
        }
        let theirs = |copy: &&PageCopy| if op == Op::Write { (copy.dst, copy.bytes) } else { (copy.src, copy.bytes) };
        let bounds = self.ports.get(&other.0).and_then(|port| port.memory.as_ref()).map(|(_, bounds)| bounds);
        let inside = |copy: &&PageCopy| {
            let (offset, bytes) = theirs(copy);
            bounds.is_some_and(|bounds| bounds.item(offset, bytes).is_some())
        };
        if let Some(copy) = copies.iter().find(|copy| !inside(copy)) {
            let (offset, bytes) = theirs(&copy);
            let reason = format!("bytes {offset}..{offset}+{bytes} are not inside one page");
            let (due, flight) = end(now + 1, End::Refused(reason));
            self.send(due, flight);
            return Ok(());
        }
        self.launch(here, other, ticket, op, copies, at_post.map_or(0, |(_, number)| number));
        Ok(())
    }

    /// Sends the copies of a post and its end, as the faults have it.
    fn launch(&mut self, here: Place, other: Place, ticket: Ticket, op: Op, copies: Vec<PageCopy>, delay: u64) {
        let (from, to) = if op == Op::Write { (here, other) } else { (other, here) };
        let start = self.now + 1 + delay;
        let completion = self.faults.at(Point::Completion, "").map(|hit| (hit.fault, hit.number));
        let shift = match completion {
            Some((Fault::EndEarly | Fault::ErrorThenWrite, number)) => number.max(1),
            _ => 0,
        };
        let lossy = matches!(completion, Some((Fault::Fail, _)));
        let mut last = start;
        for copy in copies {
            let mut due = start + shift + self.delay();
            let (mut again, mut flip) = (None, None);
            for point in [Point::PageCopy, Point::Landing] {
                let bounds = self.ports.get(&to.0).and_then(|port| port.memory.as_ref()).map(|(_, bounds)| bounds);
                let item = bounds.and_then(|bounds| bounds.item(copy.dst, copy.bytes)).unwrap_or_default();
                match self.faults.at(point, item).map(|hit| (hit.fault, hit.number, hit.random)) {
                    Some((Fault::Delay, number, _)) => due += number,
                    Some((Fault::Corrupt, _, random)) => flip = Some(random),
                    Some((Fault::LateWrite, number, _)) => again = Some(number),
                    _ => {}
                }
            }
            last = last.max(due);
            let flight = || Flight::Copy { from, to, copy, data: None, flip };
            if let Some(number) = again {
                self.send(due + number, flight());
            }
            if let Some((Fault::LateWrite, number)) = completion {
                let late = due + *self.delay.end() + number;
                self.send(late, flight());
            }
            if !(lossy && self.random().is_multiple_of(2)) {
                self.send(due, flight());
            }
        }
        let (due, end) = match completion {
            Some((Fault::NeverEnd, _)) => return,
            Some((Fault::Fail, _)) => (last + 1, End::Failed("a fault fails the post".into())),
            Some((Fault::ErrorThenWrite, _)) => (start, End::Failed("a fault fails the post".into())),
            Some((Fault::EndEarly, _)) => (start, End::Done),
            _ => (last + 1, End::Done),
        };
        self.send(due, Flight::End { at: here, ticket, end });
    }

    fn tear_down(&mut self, id: u64, peer: PeerId) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        let open = port.tickets.tear_down(peer);
        port.report(open, "torn down");
        let Some(other) = port.peers.remove(&peer) else { return };
        let here = (id, peer);
        self.broken.extend([here, other]);
        for (key, flight) in std::mem::take(&mut self.flights) {
            let flight = match flight {
                Flight::Copy { from, to, .. } if (from, to) == (other, here) => continue,
                // What has left this arena may still be on its way: half of it is, as the bytes were.
                Flight::Copy { from, to, copy, data, flip } if (from, to) == (here, other) => {
                    if self.random().is_multiple_of(2) {
                        continue;
                    }
                    let memory = self.ports.get(&id).and_then(|port| port.memory.as_ref());
                    let read = || {
                        let mut data = vec![0; copy.bytes as usize];
                        memory?.0.read(copy.src, &mut data).ok().map(|()| data)
                    };
                    Flight::Copy { from, to, copy, data: data.or_else(read), flip }
                }
                Flight::End { at, .. } if at == here || at == other => continue,
                flight => flight,
            };
            self.flights.insert(key, flight);
        }
        let due = self.now + 1 + self.delay();
        self.send(due, Flight::Lost { at: other });
    }
}

impl InProcess {
    fn with<R>(&self, call: impl FnOnce(&mut Port) -> R) -> Option<R> {
        lock(&self.world).ports.get_mut(&self.id).map(call)
    }
}

impl Transport for InProcess {
    fn name(&self) -> &'static str {
        NAME
    }

    fn register(&mut self, arena: Arc<Arena>, layout: &Layout) -> Result<(), TransportError> {
        if arena.bytes() < layout.bytes() {
            return Err(TransportError::Arena { layout: layout.bytes(), arena: arena.bytes() });
        }
        let memory = (arena, Bounds::new(layout));
        let register = |port: &mut Port| match port.memory {
            Some(_) => Err(TransportError::SecondArena),
            None => {
                port.memory = Some(memory);
                Ok(())
            }
        };
        self.with(register).unwrap_or(Err(TransportError::NoArena))
    }

    fn blob(&mut self, peer: PeerId) -> Vec<u8> {
        format!("{NAME}:{}:{}", self.id, peer.0).into_bytes()
    }

    fn connect(&mut self, peer: PeerId, blob: &[u8]) -> Result<(), TransportError> {
        let place = || {
            let (id, peer) = std::str::from_utf8(blob).ok()?.strip_prefix(NAME)?.strip_prefix(':')?.split_once(':')?;
            Some((id.parse().ok()?, PeerId(peer.parse().ok()?)))
        };
        let wrong = || {
            let reason = format!("expected `{NAME}:number:number`, got {:?}", String::from_utf8_lossy(blob));
            TransportError::Blob { peer, transport: NAME, reason }
        };
        let other = place().ok_or_else(wrong)?;
        let connect = |port: &mut Port| {
            port.tickets.connect(peer)?;
            port.peers.insert(peer, other);
            Ok(())
        };
        self.with(connect).unwrap_or(Err(TransportError::NoArena))
    }

    fn post(&mut self, post: Post) -> Result<(), TransportError> {
        lock(&self.world).post(self.id, post)
    }

    /// Lets a tick pass, too.
    fn poll(&mut self) -> Vec<News> {
        let mut world = lock(&self.world);
        world.advance(1);
        if world.faults.at(Point::Poll, "").is_some() {
            return Vec::new();
        }
        world.ports.get_mut(&self.id).map(|port| std::mem::take(&mut port.news)).unwrap_or_default()
    }

    fn prove_quiet(&mut self, peer: PeerId, upto: Ticket) -> Option<Proof> {
        self.with(|port| port.tickets.prove(peer, upto)).flatten()
    }

    fn tear_down(&mut self, peer: PeerId) -> Proof {
        let mut world = lock(&self.world);
        if let Some(hit) = world.faults.at(Point::TearDown, "") {
            world.advance(hit.number);
        }
        world.tear_down(self.id, peer);
        Proof::TornDown
    }

    fn counters(&self) -> Counters {
        self.with(|port| port.counters).unwrap_or_default()
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        let peers: Vec<_> = world.ports.get(&self.id).into_iter().flat_map(|port| port.peers.keys().copied()).collect();
        for peer in peers {
            world.tear_down(self.id, peer);
        }
        world.ports.remove(&self.id);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
