//! The double: a network in memory, with its own clock, in which everything that real transports do wrong can be had on
//! demand, by seed.
//!
//! Copies of a post travel one by one, each with its own delay, so they land in any order; source bytes are read when they
//! land, as a card does. Faults come from [`Faults`]: `post` (fail, stale, delay), `completion` (fail with half the copies
//! lost, never-end, end-early, error-then-write, late-write), `page-copy` and `landing` by item (delay, corrupt,
//! late-write), `poll` (delay: no news this time), `tear-down` (delay: time passes before it takes hold). Their numbers are
//! ticks. Like one-sided transports it does not look at tags.

mod world;

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
