//! The connection on which this side posts: one thread that sends, one that receives acks and the bytes of reads.

use super::faulty::Course;
use super::shared::{Event, Keep, Shared, Stage};
use super::wire::{HEAD_BYTES, Head, Kind, Range, Verdict, WireError, encode_post};
use crate::ids::{PeerId, RoomKey, Ticket};
use crate::transport::{End, Op, Post};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Posts that may wait for the sender.
const QUEUE: usize = 4096;
/// How long a connection may take to come about; tear-down does not wait for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Targets of reads under way.
type Reads = Arc<Mutex<HashMap<Ticket, Vec<Range>>>>;

#[derive(Debug)]
pub(super) struct Link {
    posts: SyncSender<(Post, Course)>,
    stop: Arc<AtomicBool>,
    socket: Arc<Mutex<Option<TcpStream>>>,
    reached: SyncSender<io::Result<TcpStream>>,
    sender: JoinHandle<()>,
}

impl Link {
    /// Starts the threads; the connection comes about in the background, with the first post.
    pub(super) fn start(
        shared: Arc<Shared>,
        peer: PeerId,
        address: SocketAddr,
        token: u64,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let (posts, queue) = sync_channel(QUEUE);
        let (stop, socket) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        // Room for both who send: who connects, and who tears down.
        let (reached, reach) = sync_channel(2);
        let run = Sending {
            shared,
            peer,
            address,
            token,
            events,
            stop: stop.clone(),
            socket: socket.clone(),
            reached: reached.clone(),
            reach,
        };
        let sender = std::thread::Builder::new().name(format!("pages-to-{peer}")).spawn(move || run.run(queue))?;
        Ok(Self { posts, stop, socket, reached, sender })
    }

    /// False: the queue is full. A sender that has ended takes posts and loses them; its end was reported.
    pub(super) fn post(&self, post: Post, course: Course) -> bool {
        !matches!(self.posts.try_send((post, course)), Err(TrySendError::Full(_)))
    }

    /// Closes the connection and waits for both threads.
    pub(super) fn tear_down(self) {
        {
            let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
            self.stop.store(true, Relaxed);
            if let Some(socket) = &*socket {
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
        // Nobody listens once the connection stands.
        let _ = self.reached.try_send(Err(io::ErrorKind::ConnectionAborted.into()));
        drop(self.posts);
        let _ = self.sender.join();
    }
}

struct Sending {
    shared: Arc<Shared>,
    peer: PeerId,
    address: SocketAddr,
    token: u64,
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
    socket: Arc<Mutex<Option<TcpStream>>>,
    reached: SyncSender<io::Result<TcpStream>>,
    reach: Receiver<io::Result<TcpStream>>,
}

impl Sending {
    fn run(self, queue: Receiver<(Post, Course)>) {
        let Ok(first) = queue.recv() else { return };
        let reads = Reads::default();
        let receiver = match self.connect(&reads) {
            Ok((mut socket, receiver)) => {
                let sent = self.send_all(&mut socket, std::iter::once(first).chain(queue.iter()), &reads);
                if let Err(error) = sent {
                    self.lost(&error);
                }
                // Whatever ended this, nothing is sent any more; the receiver sees the end of the connection.
                let _ = socket.shutdown(Shutdown::Both);
                receiver
            }
            Err(error) => return self.lost(&error),
        };
        let _ = receiver.join();
    }

    fn connect(&self, reads: &Reads) -> io::Result<(TcpStream, JoinHandle<()>)> {
        let mut socket = self.reach()?;
        socket.set_nodelay(true)?;
        {
            let mut place = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
            if self.stop.load(Relaxed) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            *place = Some(socket.try_clone()?);
        }
        let tokens = RoomKey { room: self.token, epoch: 0 };
        socket.write_all(&Head::new(Kind::Hello, Ticket(self.shared.token), tokens).encode())?;
        let (shared, peer, events) = (self.shared.clone(), self.peer, self.events.clone());
        let (mut from, reads) = (socket.try_clone()?, reads.clone());
        let receive = move || {
            let reason = match receive(&shared, &mut from, peer, &events, &reads) {
                Ok(()) => "the peer closed the connection".into(),
                Err(error) => error.to_string(),
            };
            let _ = events.send(Event::Lost { peer, reason });
        };
        let receiver = std::thread::Builder::new().name(format!("acks-of-{peer}")).spawn(receive)?;
        Ok((socket, receiver))
    }

    /// A connection, or the tear-down if that comes first: a machine that has gone answers nobody, and the thread that tears down has
    /// other peers. What connects too late is closed without a byte.
    fn reach(&self) -> io::Result<TcpStream> {
        let (address, reached) = (self.address, self.reached.clone());
        let connect = move || _ = reached.try_send(TcpStream::connect_timeout(&address, CONNECT_TIMEOUT));
        std::thread::Builder::new().name(format!("pages-find-{}", self.peer)).spawn(connect)?;
        // Both senders live as long as this.
        self.reach.recv().unwrap_or_else(|_| Err(io::ErrorKind::ConnectionAborted.into()))
    }

    fn send_all(
        &self,
        socket: &mut TcpStream,
        posts: impl Iterator<Item = (Post, Course)>,
        reads: &Reads,
    ) -> io::Result<()> {
        let mut stage = Stage::new();
        for (post, course) in posts {
            std::thread::sleep(course.wait);
            self.send(socket, &mut stage, &post, reads)?;
            if let Some(later) = course.again {
                std::thread::sleep(later);
                self.send(socket, &mut stage, &post, reads)?;
            }
        }
        Ok(())
    }

    fn send(&self, socket: &mut TcpStream, stage: &mut Stage, post: &Post, reads: &Reads) -> io::Result<()> {
        let Post { ticket, op, tag, copies, .. } = post;
        let sources = copies.iter().map(|copy| Range { offset: copy.src, bytes: copy.bytes });
        let targets = copies.iter().map(|copy| Range { offset: copy.dst, bytes: copy.bytes });
        match op {
            Op::Write => {
                let head = encode_post(&Head::new(Kind::Write, *ticket, *tag), targets);
                self.shared.send(socket, stage, &head, sources, &self.stop)
            }
            Op::Read => {
                reads.lock().unwrap_or_else(PoisonError::into_inner).insert(*ticket, targets.collect());
                socket.write_all(&encode_post(&Head::new(Kind::Read, *ticket, *tag), sources))
            }
        }
    }

    fn lost(&self, error: &io::Error) {
        let reason = format!("{}: {error}", self.address);
        let _ = self.events.send(Event::Lost { peer: self.peer, reason });
    }
}

/// Takes acks and read bytes until the connection ends.
fn receive(
    shared: &Arc<Shared>,
    socket: &mut TcpStream,
    peer: PeerId,
    events: &Sender<Event>,
    reads: &Reads,
) -> io::Result<()> {
    let mut stage = Stage::new();
    let mut bytes = [0; HEAD_BYTES];
    loop {
        if let Err(error) = socket.read_exact(&mut bytes) {
            return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error) };
        }
        let malformed = |error: WireError| {
            shared.malformed.fetch_add(1, Relaxed);
            io::Error::new(io::ErrorKind::InvalidData, error)
        };
        let head = Head::decode(&bytes).map_err(malformed)?;
        let ticket = head.ticket;
        match head.kind {
            Kind::Ack => {
                reads.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
                let end = match head.verdict {
                    Verdict::Done => End::Done,
                    Verdict::Range => End::Refused("a range is not inside one page of the peer".into()),
                    Verdict::Stale => End::Refused(format!("the peer does not expect {}", head.tag)),
                };
                let _ = events.send(Event::Ended { peer, ticket, end });
            }
            Kind::Bytes => {
                // Where they go was said by our own post, not by the peer.
                let ranges = reads.lock().unwrap_or_else(PoisonError::into_inner).get(&ticket).cloned();
                let ranges = ranges.ok_or_else(|| malformed(WireError::Unexpected { kind: Kind::Bytes }))?;
                shared.land(socket, &mut stage, &ranges, Keep::All)?;
            }
            kind => return Err(malformed(WireError::Unexpected { kind })),
        }
    }
}
