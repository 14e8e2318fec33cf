//! Connections on which peers post: one thread each, which writes pages into the arena itself. A closed socket and a joined
//! thread are therefore a proof of quiet.

use super::shared::{Event, Keep, Shared, Stage};
use super::wire::{HEAD_BYTES, Head, Kind, RANGE_BYTES, Verdict, WireError, decode_table};
use crate::ids::PeerId;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a connection may take to say who it is and to become known by [`Server::admit`], both together.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that nobody knows yet; with one more the oldest is closed, so that those who say nothing keep no place.
const MAX_STRANGERS: usize = 64;

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    /// Who it is, once it has said so and is known.
    token: Option<u64>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Known {
    peers: HashMap<u64, PeerId>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    closing: bool,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    events: Sender<Event>,
    known: Mutex<Known>,
    news: Condvar,
}

/// The listening side.
#[derive(Debug)]
pub(super) struct Server {
    inner: Arc<Inner>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(listener: TcpListener, shared: Arc<Shared>, events: Sender<Event>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner { shared, events, known: Mutex::default(), news: Condvar::new() });
        let accepting = inner.clone();
        let acceptor =
            std::thread::Builder::new().name("pages-accept".into()).spawn(move || accepting.accept(listener))?;
        Ok(Self { inner, address, acceptor: Some(acceptor) })
    }

    /// Lets a peer in by its token.
    pub(super) fn admit(&self, token: u64, peer: PeerId) {
        self.inner.lock().peers.insert(token, peer);
        self.inner.news.notify_all();
    }

    /// Shuts a peer out, closes its connection and waits for the thread.
    pub(super) fn tear_down(&self, token: u64) {
        let mut known = self.inner.lock();
        known.peers.remove(&token);
        let of_peer: Vec<_> =
            known.connections.iter().filter(|(_, open)| open.token == Some(token)).map(|(id, _)| *id).collect();
        let closed: Vec<_> = of_peer.into_iter().filter_map(|id| known.connections.remove(&id)).collect();
        drop(known);
        close(closed);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut known = self.inner.lock();
        known.closing = true;
        known.peers.clear();
        let all = std::mem::take(&mut known.connections);
        drop(known);
        self.inner.news.notify_all();
        close(all.into_values());
        // Wakes the acceptor, which sees that it is over.
        let _ = TcpStream::connect_timeout(&self.address, HELLO_TIMEOUT);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn close(connections: impl IntoIterator<Item = Connection>) {
    for Connection { socket, thread, .. } in connections {
        let _ = socket.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

/// All of `bytes` by then, however slowly they come.
fn read_until(socket: &mut TcpStream, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        // Refuses no time at all.
        socket.set_read_timeout(Some(left))?;
        match socket.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes = &mut bytes[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = listener.accept();
            let mut known = self.lock();
            if known.closing {
                return;
            }
            let Ok((socket, _)) = accepted else {
                // Out of descriptors, or a connection that died in the queue: neither ends the service.
                drop(known);
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            known.connections.retain(|_, open| open.token.is_some() || !open.thread.is_finished());
            let strangers = known.connections.iter().filter(|(_, open)| open.token.is_none());
            let (count, oldest) = (strangers.clone().count(), strangers.map(|(&id, _)| id).next());
            // Not joined: without its place in the table it cannot become known, so it writes nothing.
            if let Some(oldest) = oldest.filter(|_| count >= MAX_STRANGERS).and_then(|id| known.connections.remove(&id))
            {
                let _ = oldest.socket.shutdown(Shutdown::Both);
                self.news.notify_all();
            }
            let id = known.next;
            known.next += 1;
            // The thread enters itself as known under the lock that is held here, so its connection is in the table then.
            let serving = self.clone();
            let spawn = |from: TcpStream| {
                std::thread::Builder::new().name("pages-from".into()).spawn(move || serving.connection(from, id))
            };
            if let Ok(clone) = socket.try_clone()
                && let Ok(thread) = spawn(clone)
            {
                known.connections.insert(id, Connection { socket, token: None, thread });
            }
        }
    }

    fn connection(&self, mut socket: TcpStream, id: u64) {
        // A stranger has no ticket and no peer number: its end is counted, not told.
        let Some((token, peer)) = self.hello(&mut socket, id) else {
            let _ = socket.shutdown(Shutdown::Both);
            return;
        };
        let reason = match self.serve(&mut socket) {
            Ok(()) => "the peer closed its connection".into(),
            Err(error) => error.to_string(),
        };
        let _ = socket.shutdown(Shutdown::Both);
        if self.lock().peers.get(&token) == Some(&peer) {
            let _ = self.events.send(Event::Lost { peer, reason });
        }
    }

    /// Who it is, once it is known; a peer has one connection.
    fn hello(&self, socket: &mut TcpStream, id: u64) -> Option<(u64, PeerId)> {
        let until = Instant::now() + HELLO_TIMEOUT;
        socket.set_nodelay(true).ok()?;
        let mut bytes = [0; HEAD_BYTES];
        read_until(socket, &mut bytes, until).ok()?;
        let head = Head::decode(&bytes).ok().filter(|head| head.kind == Kind::Hello);
        let Some(head) = head.filter(|head| head.tag.room == self.shared.token) else {
            self.shared.malformed.fetch_add(1, Relaxed);
            return None;
        };
        socket.set_read_timeout(None).ok()?;
        let token = head.ticket.0;
        let mut known = self.lock();
        loop {
            if known.closing || !known.connections.contains_key(&id) {
                return None;
            }
            if let Some(&peer) = known.peers.get(&token) {
                let second = known.connections.values().any(|open| open.token == Some(token));
                let connection = known.connections.get_mut(&id).filter(|_| !second)?;
                connection.token = Some(token);
                return Some((token, peer));
            }
            let left = until.checked_duration_since(Instant::now())?;
            (known, _) = self.news.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn serve(&self, socket: &mut TcpStream) -> io::Result<()> {
        let shared = &self.shared;
        let (mut stage, mut table) = (Stage::new(), Vec::new());
        let mut bytes = [0; HEAD_BYTES];
        let never = AtomicBool::new(false);
        loop {
            if let Err(error) = socket.read_exact(&mut bytes) {
                return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error) };
            }
            let malformed = |error: WireError| {
                shared.malformed.fetch_add(1, Relaxed);
                io::Error::new(io::ErrorKind::InvalidData, error)
            };
            let head = Head::decode(&bytes).map_err(malformed)?;
            if !matches!(head.kind, Kind::Write | Kind::Read) {
                return Err(malformed(WireError::Unexpected { kind: head.kind }));
            }
            // At most MAX_COPIES ranges: the head was checked.
            table.resize(head.ranges as usize * RANGE_BYTES, 0);
            socket.read_exact(&mut table)?;
            let ranges = decode_table(&head, &table, shared.arena.bytes()).map_err(malformed)?;
            let inside = ranges.iter().all(|range| shared.bounds.item(range.offset, range.bytes).is_some());
            let verdict = match head.kind {
                // Ranges outside are dropped whole, the connection stays in step.
                Kind::Write if !inside => {
                    shared.land(socket, &mut stage, &ranges, Keep::Nothing)?;
                    Verdict::Range
                }
                // Asked page by page: a room that ends while its bytes arrive stops landing.
                Kind::Write => match shared.land(socket, &mut stage, &ranges, Keep::Room(head.tag))? {
                    true => Verdict::Done,
                    false => Verdict::Stale,
                },
                _ if !inside => Verdict::Range,
                _ if !shared.expects(head.tag) => Verdict::Stale,
                _ => {
                    let reply = Head::new(Kind::Bytes, head.ticket, head.tag).encode();
                    shared.send(socket, &mut stage, &reply, ranges.into_iter(), &never)?;
                    // Once more: pages may have found another use while they were read.
                    if shared.expects(head.tag) { Verdict::Done } else { Verdict::Stale }
                }
            };
            socket.write_all(&Head { verdict, ..Head::new(Kind::Ack, head.ticket, head.tag) }.encode())?;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Bytes that drip are as good as none: the time is that of all of them.
    #[test]
    fn a_head_has_its_time_as_a_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let dripping = std::thread::spawn(move || {
            while slow.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let start = Instant::now();
        let read = read_until(&mut socket, &mut [0; 100], start + Duration::from_millis(300));
        assert!(read.is_err() && start.elapsed() >= Duration::from_millis(300));
        assert!(start.elapsed() < Duration::from_secs(3), "100 bytes would take 5 s");
        read_until(&mut socket, &mut [0; 2], Instant::now() + Duration::from_secs(20)).unwrap();
        drop(socket);
        dripping.join().unwrap();
    }
}
