//! Pages over NIXL (UCX: RDMA, shared memory, tcp), one-sided: peers write into the arena and no code of ours runs.
//!
//! What that means here, measured with NIXL 1.5.1 (see the notes in `peer.rs`):
//! * A write ends when its request is terminal, or when the NIXL object of either side is destroyed. Releasing a request,
//!   removing the peer, unregistering memory do not end it. So **every peer has a NIXL object of its own**, in which the same
//!   arena is registered again, and a tear-down destroys that object: a proof, and nobody else's transfers notice.
//! * Requests stay in a table until they are terminal or their object dies: dropping one releases it in silence.
//! * Nothing is known about a peer that only writes here; the control connection tells that it is gone.
//! * A post may copy before it returns (between address spaces of one host): keep the transport off a thread that must not
//!   wait, and post in slices.
//!
//! `cargo test` needs NIXL's libraries and skips, loudly, without them:
//! ```text
//! pip download nixl-cu12==1.5.1 --no-deps && unzip -q nixl_cu12-*.whl -d nixl
//! NIXL_LIBRARY=nixl/.nixl_cu12.mesonpy.libs/libnixl_capi.so UCX_TLS=tcp cargo test
//! ```

mod library;
mod memory;
mod peer;
#[cfg(test)]
mod tests;

pub use library::load;

use peer::Peer;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use transfer::arena::Arena;
use transfer::ids::{PeerId, RoomKey, Ticket};
use transfer::layout::Layout;
use transfer::room::Proof;
use transfer::transport::{Bounds, Counters, End, News, Op, Post, Tickets, Transport, TransportError};

const NAME: &str = "nixl";

/// How NIXL objects are made.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Whether each object has a thread that makes progress; without it, a peer's writes move only while this side polls.
    pub progress_thread: bool,
    /// Microseconds between its rounds: 0 spins, which costs a core per peer.
    pub progress_delay_us: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { progress_thread: true, progress_delay_us: 100 }
    }
}

/// What a peer is told.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Blob {
    transport: String,
    /// NIXL's description of the object made for this peer.
    metadata: Vec<u8>,
    /// Address of the arena in the other process.
    base: u64,
    bounds: Bounds,
}

/// Pages over NIXL.
pub struct Nixl {
    config: Config,
    /// This incarnation; in the names of its objects.
    token: u64,
    memory: Option<(Arc<Arena>, Bounds)>,
    peers: BTreeMap<PeerId, Peer>,
    tickets: Tickets,
    news: Vec<News>,
    sent_bytes: u64,
}

impl Nixl {
    /// Opens NIXL's library if that has not happened ([`load`]).
    ///
    /// # Errors
    /// The library is not there.
    pub fn new(config: Config) -> Result<Self, TransportError> {
        load()?;
        let token = RandomState::new().build_hasher().finish();
        let peers = BTreeMap::new();
        Ok(Self { config, token, memory: None, peers, tickets: Tickets::new(), news: Vec::new(), sent_bytes: 0 })
    }

    /// The object for a peer, made when it is first needed.
    fn peer(&mut self, peer: PeerId) -> Result<&mut Peer, TransportError> {
        let (arena, _) = self.memory.as_ref().ok_or(TransportError::NoArena)?;
        match self.peers.entry(peer) {
            std::collections::btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                let name = format!("{:016x}-{peer}", self.token);
                Ok(place.insert(Peer::new(&name, arena.clone(), self.config)?))
            }
        }
    }

    fn end(&mut self, peer: PeerId, ticket: Ticket, end: End) {
        if self.tickets.end(peer, ticket, !matches!(end, End::Failed(_))) {
            self.news.push(News::Ended { ticket, end });
        }
    }
}

fn system(reason: impl ToString) -> TransportError {
    TransportError::System { transport: NAME, reason: reason.to_string() }
}

impl Transport for Nixl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn register(&mut self, arena: Arc<Arena>, layout: &Layout) -> Result<(), TransportError> {
        if self.memory.is_some() {
            return Err(TransportError::SecondArena);
        }
        if arena.bytes() < layout.bytes() {
            return Err(TransportError::Arena { layout: layout.bytes(), arena: arena.bytes() });
        }
        self.memory = Some((arena, Bounds::new(layout)));
        Ok(())
    }

    fn blob(&mut self, peer: PeerId) -> Vec<u8> {
        let metadata = self.peer(peer).and_then(|peer| peer.metadata());
        let (Ok(metadata), Some((arena, bounds))) = (metadata, &self.memory) else { return Vec::new() };
        let base = arena.base().addr() as u64;
        let blob = Blob { transport: NAME.into(), metadata, base, bounds: bounds.clone() };
        serde_json::to_vec(&blob).unwrap_or_default()
    }

    fn connect(&mut self, peer: PeerId, blob: &[u8]) -> Result<(), TransportError> {
        let wrong = |reason: String| TransportError::Blob { peer, transport: NAME, reason };
        let theirs: Blob = serde_json::from_slice(blob).map_err(|error| wrong(error.to_string()))?;
        if theirs.transport != NAME {
            return Err(wrong(format!("it is one of {}", theirs.transport)));
        }
        self.tickets.connect(peer)?;
        let connected = self.peer(peer).and_then(|peer| peer.connect(theirs));
        connected.map_err(|error| wrong(error.to_string()))
    }

    fn one_sided(&self) -> bool {
        true
    }

    /// The tag does not travel: one-sided writes carry none.
    fn post(&mut self, post: Post) -> Result<(), TransportError> {
        let (_, bounds) = self.memory.as_ref().ok_or(TransportError::NoArena)?;
        self.tickets.check(&post, bounds)?;
        let Post { ticket, op, peer, tag: RoomKey { .. }, copies } = post;
        let other = self.peers.get_mut(&peer).ok_or(TransportError::Peer(peer))?;
        let outside = copies.iter().find_map(|copy| {
            let offset = if op == Op::Write { copy.dst } else { copy.src };
            (!other.is_inside(offset, copy.bytes)).then_some((offset, copy.bytes))
        });
        self.tickets.begin(peer, ticket);
        if let Some((offset, bytes)) = outside {
            let reason = format!("bytes {offset}..{offset}+{bytes} are not inside one page of the peer");
            self.end(peer, ticket, End::Refused(reason));
            return Ok(());
        }
        if copies.is_empty() {
            self.end(peer, ticket, End::Done);
            return Ok(());
        }
        // Whatever NIXL says here, bytes may be under way.
        if let Err(error) = other.post(ticket, op, &copies) {
            self.end(peer, ticket, End::Failed(error.to_string()));
        }
        Ok(())
    }

    fn poll(&mut self) -> Vec<News> {
        let mut ended = Vec::new();
        for (&peer, other) in &mut self.peers {
            other.poll(|ticket, bytes, result| ended.push((peer, ticket, bytes, result)));
        }
        for (peer, ticket, bytes, result) in ended {
            match result {
                Ok(()) => {
                    self.sent_bytes += bytes;
                    self.end(peer, ticket, End::Done);
                }
                Err(reason) => {
                    self.end(peer, ticket, End::Failed(reason.clone()));
                    if self.peers.get_mut(&peer).is_some_and(Peer::lose) {
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
        // Destroys the NIXL object of this peer: its drop order is the proof.
        drop(self.peers.remove(&peer));
        let failed = |ticket| News::Ended { ticket, end: End::Failed("torn down".into()) };
        self.news.extend(self.tickets.tear_down(peer).into_iter().map(failed));
        Proof::TornDown
    }

    fn counters(&self) -> Counters {
        Counters { sent_bytes: self.sent_bytes, ..Counters::default() }
    }
}
