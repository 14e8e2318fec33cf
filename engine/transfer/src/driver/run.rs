//! The driver's loop.

use super::link::{Event, Link};
use super::lossy::Lossy;
use super::net::Net;
use super::port::Message;
use super::{Checked, DriverConfig, DriverError, PeerStatus, Shared, Snapshot};
use crate::arena::Arena;
use crate::checksum::{self, Miss, Place, Rooms};
use crate::endpoint::{CommandError, Endpoint, NewRoom, Output, RoomView};
use crate::exchange::Command;
use crate::frame::FrameReader;
use crate::hello::Side;
use crate::ids::{PeerId, RoomKey, Ticket, Unit};
use crate::layout::{Layout, PagesByClass};
use crate::reason::{Code, Reason};
use crate::room::{Outcome, UnitSet};
use crate::transport::{End, News, Op, Post, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel};
use tokio::time::Instant;

/// Events that wait for the loop at most; readers wait beyond.
const EVENTS: usize = 256;

/// Pages that differ and are kept for the report.
const MISSES: usize = 32;

/// A number that stands for no connection.
const NOBODY: PeerId = PeerId(u32::MAX);

/// A rank to connect to.
#[derive(Debug)]
struct Target {
    address: String,
    peer: Option<PeerId>,
    connecting: bool,
    retry: Duration,
}

/// A connection.
struct Connection {
    link: Link,
    reader: FrameReader,
    /// Only where there are faults for frames.
    lossy: Option<Lossy>,
}

struct Run<N: Net> {
    config: DriverConfig,
    net: N,
    endpoint: Endpoint,
    transport: Box<dyn Transport>,
    arena: Arc<Arena>,
    layout: Layout,
    shared: Arc<Shared>,
    events: Sender<Event<N::Stream>>,
    start: Instant,
    next_peer: u32,
    links: BTreeMap<PeerId, Connection>,
    /// Posts that have not ended.
    posts: BTreeMap<Ticket, RoomKey>,
    /// Peers that the transport knows.
    admitted: BTreeSet<PeerId>,
    targets: Vec<Target>,
    /// Prefill: pages of rooms in the own arena, for their sums.
    sources: BTreeMap<RoomKey, PagesByClass>,
    checked: BTreeMap<RoomKey, Checked>,
    ghosts: BTreeMap<RoomKey, Reason>,
    verified: Rooms,
    misses: Vec<Miss>,
    changed: bool,
}

/// Runs until it is told to stop. `ready` is called once, with the control address or the reason why there is none.
pub(super) async fn run<N: Net>(
    config: DriverConfig,
    net: N,
    transport: Box<dyn Transport>,
    (arena, layout): (Arc<Arena>, Layout),
    shared: Arc<Shared>,
    mut inbox: UnboundedReceiver<Message>,
    ready: impl FnOnce(Result<Option<String>, DriverError>),
) {
    let listener = match &config.listen {
        None => None,
        Some(address) => match net.bind(address).await {
            Ok(listener) => Some(listener),
            Err(error) => return ready(Err(DriverError::Listen { address: address.clone(), error })),
        },
    };
    let endpoint = match Endpoint::new(config.endpoint.clone()) {
        Ok(endpoint) => endpoint,
        Err(refusal) => return ready(Err(refusal.into())),
    };
    let address = listener.as_ref().and_then(|listener| N::address(listener).ok()).map(|address| address.to_string());
    ready(Ok(address));
    let (events, mut happened) = channel(EVENTS);
    let target =
        |address: &String| Target { address: address.clone(), peer: None, connecting: false, retry: Duration::ZERO };
    let mut run = Run {
        targets: config.connect.iter().map(target).collect(),
        config,
        net,
        endpoint,
        transport,
        arena,
        layout,
        shared,
        events,
        start: Instant::now(),
        next_peer: 0,
        links: BTreeMap::new(),
        posts: BTreeMap::new(),
        admitted: BTreeSet::new(),
        sources: BTreeMap::new(),
        checked: BTreeMap::new(),
        ghosts: BTreeMap::new(),
        verified: Rooms::default(),
        misses: Vec::new(),
        changed: true,
    };
    run.serve(listener, &mut inbox, &mut happened).await;
}

impl<N: Net> Run<N> {
    async fn serve(
        &mut self,
        listener: Option<N::Listener>,
        inbox: &mut UnboundedReceiver<Message>,
        happened: &mut Receiver<Event<N::Stream>>,
    ) {
        let mut tick = tokio::time::interval(self.config.tick);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let accepted = async {
                match &listener {
                    Some(listener) => N::accept(listener).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(Message::Stop) | None => break,
                    Some(message) => self.obey(message),
                },
                Some(event) = happened.recv() => self.happen(event),
                accepted = accepted => match accepted {
                    Ok(stream) => _ = self.link(stream),
                    Err(error) => {
                        // Out of files, most likely: others have to end first.
                        tracing::warn!(%error, "accept");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                _ = tick.tick() => {
                    let now = self.now();
                    self.endpoint.on_tick(now);
                    self.release_held();
                    self.reconnect(now);
                }
            }
            // What else is there is taken in before anything is sent or shown.
            while let Ok(message) = inbox.try_recv() {
                match message {
                    Message::Stop => return self.stop(),
                    message => self.obey(message),
                }
            }
            self.settle();
            self.shared.turn();
        }
        self.stop();
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Carries out everything that follows from what happened, and shows the result.
    fn settle(&mut self) {
        loop {
            for news in self.transport.poll() {
                self.hear(news);
            }
            self.admit_ready();
            let mut quiet = true;
            while let Some(output) = self.endpoint.poll() {
                quiet = false;
                self.carry_out(output);
            }
            if quiet {
                break;
            }
        }
        if self.config.verify && self.endpoint.side() == Side::Decode {
            self.verify();
        }
        if std::mem::take(&mut self.changed) {
            self.show();
        }
    }

    fn stop(&mut self) {
        let now = self.now();
        self.endpoint.bye(now);
        self.settle();
    }

    fn link(&mut self, stream: N::Stream) -> PeerId {
        self.next_peer += 1;
        let peer = PeerId(self.next_peer);
        let link = Link::start(peer, stream, self.events.clone());
        let lossy = Lossy::new(&self.config.faults);
        self.links.insert(peer, Connection { link, reader: FrameReader::new(), lossy });
        let (now, blob) = (self.now(), self.transport.blob(peer));
        self.endpoint.on_connected_with(peer, blob, now);
        self.changed = true;
        peer
    }

    fn happen(&mut self, event: Event<N::Stream>) {
        let now = self.now();
        match event {
            Event::Connected(target, Ok(stream)) => {
                let peer = self.link(stream);
                self.targets[target].connecting = false;
                self.targets[target].peer = Some(peer);
            }
            Event::Connected(target, Err(error)) => {
                let target = &mut self.targets[target];
                tracing::debug!(address = target.address, %error, "connect");
                (target.connecting, target.retry) = (false, now + self.config.reconnect);
            }
            Event::Bytes(peer, mut bytes) => {
                if let Some(Connection { lossy: Some(lossy), .. }) = self.links.get_mut(&peer) {
                    bytes = lossy.receive(&bytes, now);
                }
                self.read(peer, &bytes);
            }
            Event::Sent(peer, bytes) => self.endpoint.on_sent(peer, bytes),
            Event::Closed(peer) => {
                if self.links.contains_key(&peer) {
                    self.endpoint.on_lost(peer, now);
                }
            }
        }
    }

    fn read(&mut self, peer: PeerId, bytes: &[u8]) {
        let now = self.now();
        let Some(Connection { reader, .. }) = self.links.get_mut(&peer) else { return };
        reader.push(bytes);
        while let Some(frame) = reader.next_frame() {
            match frame {
                Ok(frame) => self.endpoint.on_frame(peer, frame, now),
                Err(error) => self.endpoint.on_bad_bytes(peer, &error, now),
            }
        }
    }

    fn send(&mut self, peer: PeerId, frame: Vec<u8>) {
        let now = self.now();
        match self.links.get_mut(&peer) {
            Some(Connection { link, lossy: None, .. }) => link.send(frame),
            Some(Connection { link, lossy: Some(lossy), .. }) => {
                // What a fault drops or holds would never be reported as written.
                self.endpoint.on_sent(peer, frame.len());
                lossy.send(frame, now).into_iter().for_each(|frame| link.send(frame));
            }
            None => {}
        }
    }

    /// Lets go of frames that a fault has delayed long enough.
    fn release_held(&mut self) {
        let now = self.now();
        let mut arrived = Vec::new();
        for (&peer, connection) in &mut self.links {
            let Some(lossy) = &mut connection.lossy else { continue };
            lossy.sent(now).into_iter().for_each(|frame| connection.link.send(frame));
            arrived.push((peer, lossy.received(now)));
        }
        arrived.into_iter().for_each(|(peer, bytes)| self.read(peer, &bytes));
    }

    /// Connects to targets without a connection.
    fn reconnect(&mut self, now: Duration) {
        for (index, target) in self.targets.iter_mut().enumerate() {
            if target.peer.is_some() || target.connecting || now < target.retry {
                continue;
            }
            target.connecting = true;
            let (net, address, events) = (self.net.clone(), target.address.clone(), self.events.clone());
            let patience = self.config.reconnect.max(Duration::from_millis(100));
            tokio::spawn(async move {
                let late = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
                let stream = tokio::time::timeout(patience, net.connect(&address)).await.unwrap_or_else(|_| late());
                // Fails when the driver has ended.
                let _ = events.send(Event::Connected(index, stream)).await;
            });
        }
    }

    /// Introduces peers whose hello fits to the transport.
    fn admit_ready(&mut self) {
        let new = |peer: &crate::endpoint::PeerView<'_>| peer.ready && !self.admitted.contains(&peer.id);
        let ready: Vec<_> = (self.endpoint.peers().filter(new))
            .filter_map(|peer| Some((peer.id, peer.hello?.blob.clone(), peer.hello?.name.clone())))
            .collect();
        for (peer, blob, name) in ready {
            self.admitted.insert(peer);
            self.changed = true;
            match self.transport.connect(peer, &blob) {
                Ok(()) => tracing::info!(%peer, name, "connected"),
                Err(error) => {
                    tracing::warn!(%peer, name, %error, "no data connection");
                    let now = self.now();
                    self.endpoint.on_lost(peer, now);
                }
            }
        }
    }

    fn hear(&mut self, news: News) {
        let now = self.now();
        match news {
            News::Ended { ticket, end } => {
                let key = self.posts.remove(&ticket);
                match end {
                    End::Done => self.endpoint.on_ticket(ticket, true, now),
                    End::Refused(reason) => self.refused(ticket, key, reason),
                    End::Failed(reason) => {
                        tracing::warn!(ticket = ticket.0, reason, "post");
                        self.endpoint.on_ticket(ticket, false, now);
                    }
                }
            }
            News::Lost { peer, reason } => {
                tracing::warn!(%peer, reason, "data connection");
                self.endpoint.on_lost(peer, now);
            }
        }
    }

    /// A post whose bytes did not all arrive, and of which nothing more will be written: the room fails, its pages are quiet.
    fn refused(&mut self, ticket: Ticket, key: Option<RoomKey>, reason: String) {
        tracing::debug!(ticket = ticket.0, reason, "post refused");
        let now = self.now();
        if let Some(key) = key {
            self.endpoint.abort(key, Reason::new(Code::Transport, reason), now);
        }
        self.endpoint.on_ticket(ticket, true, now);
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { peer, bytes } => self.send(peer, bytes),
            Output::Post { peer, key, unit, copies, ticket } => {
                let post = Post { ticket, op: Op::Write, peer, tag: key, copies };
                match self.transport.post(post) {
                    Ok(()) => _ = self.posts.insert(ticket, key),
                    Err(error) => self.refused(ticket, Some(key), format!("unit {unit}: {error}")),
                }
            }
            Output::TearDown { peer, reason } => {
                tracing::info!(%peer, %reason, "tear down");
                self.transport.tear_down(peer);
                self.admitted.remove(&peer);
                self.links.remove(&peer);
                let now = self.now();
                for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
                    (target.peer, target.retry) = (None, now + self.config.reconnect);
                }
                self.endpoint.on_torn_down(peer, now);
                self.changed = true;
            }
            Output::Wake => self.changed = true,
        }
    }

    fn obey(&mut self, message: Message) {
        match message {
            Message::Apply(command) => {
                let key = command.key();
                if let Err(error) = self.apply(command) {
                    tracing::warn!(%key, %error, "command");
                    let now = self.now();
                    self.endpoint.abort(key, Reason::new(Code::Protocol, error.to_string()), now);
                }
            }
            Message::LayerDone(key, unit) => {
                let sums = match self.config.verify {
                    true => self.sums(key, unit),
                    false => Vec::new(),
                };
                let now = self.now();
                match self.endpoint.unit_ready(key, unit, sums, now) {
                    // A room that was aborted or forgotten meanwhile.
                    Ok(()) | Err(CommandError::UnknownRoom(_)) => {}
                    Err(error) => {
                        tracing::warn!(%key, %unit, %error, "unit");
                        self.endpoint.abort(key, Reason::new(Code::Protocol, error.to_string()), now);
                    }
                }
            }
            Message::Stop => {}
        }
    }

    fn apply(&mut self, command: Command) -> Result<(), CommandError> {
        let now = self.now();
        match command {
            Command::Open { key, request, pages } => {
                // Every rank picks the same one, whoever of them is connected at this moment.
                let target = self.targets.get((key.room % self.targets.len().max(1) as u64) as usize);
                let peer = target.and_then(|target| target.peer).unwrap_or(NOBODY);
                self.transport.admit(key);
                self.endpoint.open(NewRoom { key, peer, request, pages, deadline: None, priority: 0 }, now)
            }
            Command::Accept { key, pages } => {
                self.sources.insert(key, pages.clone());
                ignore_unknown(self.endpoint.place(key, pages, now))
            }
            Command::Done { key, handover } => ignore_unknown(self.endpoint.finish(key, handover, now)),
            Command::Taken { key } => self.endpoint.taken(key, now),
            Command::Abort { key, reason } => {
                self.transport.expire(key);
                if self.endpoint.room(key).is_none() {
                    self.ghosts.insert(key, reason.clone());
                    self.changed = true;
                }
                self.endpoint.abort(key, reason, now);
                Ok(())
            }
            Command::Forget { key } => {
                self.transport.expire(key);
                self.sources.remove(&key);
                self.checked.remove(&key);
                self.changed = true;
                let ghost = self.ghosts.remove(&key).is_some();
                let forgotten = self.endpoint.forget(key);
                if ghost { ignore_unknown(forgotten) } else { forgotten }
            }
        }
    }

    /// Sums of a unit in the own arena; none where the room is over.
    fn sums(&self, key: RoomKey, unit: Unit) -> Vec<u64> {
        let Some(pages) = self.sources.get(&key) else { return Vec::new() };
        let place = Place { arena: &self.arena, layout: &self.layout, pages };
        checksum::sums(place, unit).unwrap_or_else(|error| {
            tracing::warn!(%key, %unit, %error, "sums");
            Vec::new()
        })
    }

    /// Compares what has landed since the last look.
    fn verify(&mut self) {
        let view = self.endpoint.view();
        for (key, room) in view {
            if matches!(room.outcome, Outcome::Failed(_)) {
                continue;
            }
            let checked = self.checked.entry(key).or_default();
            let mut failed = None;
            for unit in room.landed.without(checked.units).iter() {
                let sums = self.endpoint.checksums(key, unit).unwrap_or_default();
                let place = Place { arena: &self.arena, layout: &self.layout, pages: &room.pages };
                let report = match checksum::verify(place, unit, sums) {
                    Ok(report) => report,
                    Err(error) => {
                        failed = Some(error.to_string());
                        break;
                    }
                };
                checked.units.insert(unit);
                let matches = report.matches();
                self.misses.extend(report.misses.iter().take(MISSES.saturating_sub(self.misses.len())).cloned());
                checked.report.extend(report);
                if !matches {
                    failed = Some(checked.report.to_string());
                }
                self.changed = true;
            }
            let complete = room.handover.is_some() && room.landed.without(checked.units).is_empty();
            if (complete || failed.is_some()) && !std::mem::replace(&mut checked.counted, true) {
                self.verified.add(&checked.report);
            }
            if let Some(why) = failed {
                let now = self.now();
                self.endpoint.abort(key, Reason::new(Code::Checksum, why), now);
                self.changed = true;
            }
        }
    }

    fn show(&self) {
        let mut rooms = self.endpoint.view();
        if self.config.verify && self.endpoint.side() == Side::Decode {
            for (key, room) in &mut rooms {
                self.hide_unchecked(*key, room);
            }
        }
        let peer = |peer: crate::endpoint::PeerView<'_>| PeerStatus {
            id: peer.id,
            name: peer.hello.map(|hello| hello.name.clone()).unwrap_or_default(),
            incarnation: peer.hello.map_or(0, |hello| hello.incarnation),
            ready: peer.ready,
        };
        self.shared.replace(Snapshot {
            rooms,
            ghosts: self.ghosts.clone(),
            peers: self.endpoint.peers().map(peer).collect(),
            errors: self.endpoint.errors().clone(),
            counters: self.transport.counters(),
            verified: self.verified,
            misses: self.misses.clone(),
        });
    }

    fn hide_unchecked(&self, key: RoomKey, room: &mut RoomView) {
        let checked = self.checked.get(&key).map_or(UnitSet::EMPTY, |checked| checked.units);
        let unchecked = room.landed.without(checked);
        if !unchecked.is_empty() {
            room.landed = room.landed.without(unchecked);
            room.handover = None;
        }
    }
}

/// Rooms that ended and were forgotten take commands in silence.
fn ignore_unknown(result: Result<(), CommandError>) -> Result<(), CommandError> {
    match result {
        Err(CommandError::UnknownRoom(_)) => Ok(()),
        other => other,
    }
}
