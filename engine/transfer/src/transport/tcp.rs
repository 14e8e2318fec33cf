//! Pages over TCP: the embedded default, and nothing but the standard library.
//!
//! Each side listens. Posts of a side travel on a connection that it makes (`link`), and the other side's thread
//! (`serve`) writes the pages into its own arena, having checked that every range lies inside a page and that the room is
//! expected; then it acknowledges. So a post is done when the bytes are in place, and memory is quiet when a peer's sockets
//! are closed and its threads joined.
//!
//! Peers prove nothing about themselves: tokens tell incarnations apart, they are no secret. The network must be trusted.

mod faulty;
mod link;
mod serve;
mod shared;
mod wire;

use super::{Bounds, Counters, End, News, Post, Tickets, Transport, TransportError};
use crate::arena::Arena;
use crate::fault::{Fault, Faults, Point};
use crate::ids::{PeerId, RoomKey, Ticket};
use crate::layout::Layout;
use crate::room::Proof;
use faulty::{Course, RefusedByFault, Told, stand_still};
use link::Link;
use serve::Server;
use shared::{Event, Shared};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};

const NAME: &str = "tcp";

/// What peers are told about a transport.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Blob {
    transport: String,
    address: SocketAddr,
    token: u64,
}

#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    server: Server,
}

/// Pages over TCP.
#[derive(Debug)]
pub struct Tcp {
    listener: Option<TcpListener>,
    blob: Blob,
    faults: Arc<Faults>,
    running: Option<Running>,
    links: BTreeMap<PeerId, (Link, u64)>,
    tickets: Tickets,
    events: Receiver<Event>,
    event_sender: Sender<Event>,
    /// Reported by the next poll.
    news: Vec<News>,
    lost: std::collections::BTreeSet<PeerId>,
    /// Posts of whose end a fault has something else told.
    told: BTreeMap<Ticket, Told>,
}

impl Tcp {
    /// Listens on an address (port 0: any), under which peers must be able to reach it. `faults` may hold rules for `post`,
    /// `poll`, `completion`, `tear-down`, `page-copy` (delay, corrupt), `landing`, and `gate`: a unit with a page that lands
    /// late ends without it.
    ///
    /// # Errors
    /// The address cannot be had; a rule for what it cannot do, a late write by the sender of a page.
    pub fn bind(address: SocketAddr, faults: Arc<Faults>) -> Result<Self, TransportError> {
        if faults.wants(Point::PageCopy, Fault::LateWrite) {
            let reason =
                "fault page-copy=late-write: expected delay or corrupt; landing and completion take late-write";
            return Err(system(reason.into()));
        }
        let listener = TcpListener::bind(address).map_err(|error| system(format!("{address}: {error}")))?;
        let address = listener.local_addr().map_err(|error| system(error.to_string()))?;
        // The standard library's only source of random bits; it differs from process to process and call to call.
        let token = RandomState::new().build_hasher().finish();
        let (event_sender, events) = channel();
        Ok(Self {
            listener: Some(listener),
            blob: Blob { transport: NAME.into(), address, token },
            faults,
            running: None,
            links: BTreeMap::new(),
            tickets: Tickets::new(),
            events,
            event_sender,
            news: Vec::new(),
            lost: Default::default(),
            told: BTreeMap::new(),
        })
    }

    fn end(&mut self, peer: PeerId, ticket: Ticket, end: End) {
        if self.tickets.end(peer, ticket, !matches!(end, End::Failed(_))) {
            self.news.push(News::Ended { ticket, end });
        }
    }

    fn fail(&mut self, tickets: Vec<Ticket>, reason: &str) {
        self.news.extend(tickets.into_iter().map(|ticket| News::Ended { ticket, end: End::Failed(reason.into()) }));
    }
}

fn system(reason: String) -> TransportError {
    TransportError::System { transport: NAME, reason }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn register(&mut self, arena: Arc<Arena>, layout: &Layout) -> Result<(), TransportError> {
        if self.running.is_some() {
            return Err(TransportError::SecondArena);
        }
        if arena.bytes() < layout.bytes() {
            return Err(TransportError::Arena { layout: layout.bytes(), arena: arena.bytes() });
        }
        let listener = self.listener.take().ok_or_else(|| system("the listener is gone".into()))?;
        let shared = Arc::new(Shared {
            arena,
            bounds: Bounds::new(layout),
            token: self.blob.token,
            faults: self.faults.clone(),
            admitted: Default::default(),
            sent_bytes: Default::default(),
            landed_bytes: Default::default(),
            stale_bytes: Default::default(),
            malformed: Default::default(),
        });
        let server = Server::start(listener, shared.clone(), self.event_sender.clone());
        let server = server.map_err(|error| system(error.to_string()))?;
        self.running = Some(Running { shared, server });
        Ok(())
    }

    fn blob(&mut self, _peer: PeerId) -> Vec<u8> {
        serde_json::to_vec(&self.blob).unwrap_or_default()
    }

    fn connect(&mut self, peer: PeerId, blob: &[u8]) -> Result<(), TransportError> {
        let wrong = |reason: String| TransportError::Blob { peer, transport: NAME, reason };
        let theirs: Blob = serde_json::from_slice(blob).map_err(|error| wrong(error.to_string()))?;
        if theirs.transport != NAME {
            return Err(wrong(format!("it is one of {}", theirs.transport)));
        }
        let Running { shared, server } = self.running.as_ref().ok_or(TransportError::NoArena)?;
        self.tickets.connect(peer)?;
        let link = Link::start(shared.clone(), peer, theirs.address, theirs.token, self.event_sender.clone());
        let link = link.map_err(|error| {
            self.tickets.tear_down(peer);
            system(error.to_string())
        })?;
        server.admit(theirs.token, peer);
        self.links.insert(peer, (link, theirs.token));
        Ok(())
    }

    fn admit(&mut self, tag: RoomKey) {
        if let Some(running) = &self.running {
            running.shared.admitted.write().unwrap_or_else(PoisonError::into_inner).insert(tag);
        }
    }

    fn expire(&mut self, tag: RoomKey) {
        if let Some(running) = &self.running {
            running.shared.admitted.write().unwrap_or_else(PoisonError::into_inner).remove(&tag);
        }
    }

    fn drops_stale(&self) -> bool {
        true
    }

    fn post(&mut self, post: Post) -> Result<(), TransportError> {
        let running = self.running.as_ref().ok_or(TransportError::NoArena)?;
        self.tickets.check(&post, &running.shared.bounds)?;
        let course = Course::of(&self.faults).map_err(|RefusedByFault| system("a fault refuses the post".into()))?;
        let (peer, ticket, told) = (post.peer, post.ticket, course.told.clone());
        let (link, _) = self.links.get(&peer).ok_or(TransportError::Peer(peer))?;
        if !self.lost.contains(&peer) && !link.post(post, course) {
            return Err(TransportError::Full(peer));
        }
        self.tickets.begin(peer, ticket);
        if self.lost.contains(&peer) && self.tickets.end(peer, ticket, true) {
            // Never handed to a thread, so nothing of it can be written.
            let end = End::Refused("the connection is lost".into());
            self.news.push(News::Ended { ticket, end });
        }
        match told {
            Told::Truth => {}
            Told::AtOnce(end) => self.end(peer, ticket, end),
            Told::Instead(_) | Told::Nothing => _ = self.told.insert(ticket, told),
        }
        Ok(())
    }

    fn poll(&mut self) -> Vec<News> {
        stand_still(&self.faults, Point::Poll);
        if let Some(running) = &self.running {
            // Orders the reads behind this poll after the bytes that have landed.
            running.shared.landed_bytes.load(Acquire);
        }
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Ended { peer, ticket, end } => match self.told.remove(&ticket) {
                    None => self.end(peer, ticket, end),
                    Some(Told::Instead(end)) => self.end(peer, ticket, end),
                    Some(Told::Truth | Told::AtOnce(_) | Told::Nothing) => {}
                },
                // Either connection, either direction: the first end is told.
                Event::Lost { peer, reason } => {
                    if self.links.contains_key(&peer) && self.lost.insert(peer) {
                        let open = self.tickets.lose(peer);
                        self.fail(open, &reason);
                        self.news.push(News::Lost { peer, reason });
                    }
                }
            }
        }
        std::mem::take(&mut self.news)
    }

    fn prove_quiet(&mut self, peer: PeerId, upto: Ticket) -> Option<Proof> {
        self.tickets.prove(peer, upto)
    }

    fn tear_down(&mut self, peer: PeerId) -> Proof {
        stand_still(&self.faults, Point::TearDown);
        if let Some((link, token)) = self.links.remove(&peer) {
            if let Some(running) = &self.running {
                running.server.tear_down(token);
            }
            link.tear_down();
        }
        let open = self.tickets.tear_down(peer);
        self.fail(open, "torn down");
        self.lost.remove(&peer);
        Proof::TornDown
    }

    fn counters(&self) -> Counters {
        let Some(Running { shared, .. }) = &self.running else { return Counters::default() };
        Counters {
            sent_bytes: shared.sent_bytes.load(Relaxed),
            landed_bytes: shared.landed_bytes.load(Relaxed),
            stale_bytes: shared.stale_bytes.load(Relaxed),
            malformed: shared.malformed.load(Relaxed),
        }
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        for (_, (link, token)) in std::mem::take(&mut self.links) {
            if let Some(running) = &self.running {
                running.server.tear_down(token);
            }
            link.tear_down();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
