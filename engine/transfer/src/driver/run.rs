//! The driver's loop.

mod connections;
mod view;

use super::busy::Busy;
use super::link::Event;
use super::net::Net;
use super::port::Message;
use super::targets::Targets;
use super::{Checked, DriverConfig, DriverError, Shared};
use crate::arena::Arena;
use crate::checksum::{Miss, Rooms};
use crate::endpoint::{CommandError, Endpoint, NewRoom, Output};
use crate::exchange::Command;
use crate::hello::Side;
use crate::ids::{PeerId, RoomKey, Ticket};
use crate::layout::{Layout, PagesByClass};
use crate::reason::{Code, Reason};
use crate::transport::{End, News, Op, Post, Transport};
use connections::Connection;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel};
use tokio::time::Instant;

/// Events that wait for the loop at most; readers wait beyond.
const EVENTS: usize = 256;

/// No connection is accepted for so long after one could not be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Pages that differ and are kept for the report.
const MISSES: usize = 32;

/// A number that stands for no connection.
const NOBODY: PeerId = PeerId(u32::MAX);

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
    moving: Busy,
    /// Peers that the transport knows.
    admitted: BTreeSet<PeerId>,
    targets: Targets,
    /// Prefill: pages of rooms in the own arena, for their sums.
    sources: BTreeMap<RoomKey, PagesByClass>,
    checked: BTreeMap<RoomKey, Checked>,
    ghosts: BTreeMap<RoomKey, Reason>,
    verified: Rooms,
    misses: Vec<Miss>,
    changed: bool,
}

/// A driver that has not begun: its loop, for a runtime of the caller's. All that it waits for is sockets of its [`Net`], tokio's
/// time and its [`DriverPort`](super::DriverPort), so that it runs on simulated ones as well. [`Driver::start`](super::Driver::start)
/// gives it a thread.
pub struct DriverLoop<N: Net> {
    pub(super) config: DriverConfig,
    pub(super) net: N,
    pub(super) endpoint: Endpoint,
    pub(super) transport: Box<dyn Transport>,
    pub(super) arena: Arc<Arena>,
    pub(super) layout: Layout,
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: UnboundedReceiver<Message>,
}

impl<N: Net> fmt::Debug for DriverLoop<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverLoop").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<N: Net> DriverLoop<N> {
    /// Runs until every port is dropped. `ready` is called once, with the control address if there is one, or with the
    /// reason why the loop ends at once.
    pub async fn run(self, ready: impl FnOnce(Result<Option<String>, DriverError>)) {
        let Self { config, net, endpoint, transport, arena, layout, shared, mut inbox } = self;
        let listener = match &config.listen {
            None => None,
            Some(address) => match net.bind(address).await {
                Ok(listener) => Some(listener),
                Err(error) => return ready(Err(DriverError::Listen { address: address.clone(), error })),
            },
        };
        let address = listener.as_ref().and_then(|listener| N::address(listener).ok());
        ready(Ok(address.map(|address| address.to_string())));
        let (events, mut happened) = channel(EVENTS);
        let mut run = Run {
            targets: Targets::new(&config.connect),
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
            moving: Busy::default(),
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
        let mut accept_from = None;
        loop {
            let accepted = async {
                match &listener {
                    Some(listener) => {
                        if let Some(from) = accept_from {
                            tokio::time::sleep_until(from).await;
                        }
                        N::accept(listener).await
                    }
                    None => std::future::pending().await,
                }
            };
            // In this order, so that a run on a simulated network repeats. Nothing starves: a tick is due now and then only, and
            // whatever wakes the loop, commands and as many events as a tick allows are taken in behind it.
            tokio::select! {
                biased;
                _ = tick.tick() => {
                    let now = self.now();
                    self.endpoint.on_tick(now);
                    self.release_held();
                    self.reconnect(now);
                }
                message = inbox.recv() => match message {
                    Some(Message::Stop) | None => break,
                    Some(message) => self.obey(message),
                },
                accepted = accepted => {
                    // Out of files, most likely: others have to end first, and those that are there go on meanwhile.
                    accept_from = accepted.is_err().then(|| Instant::now() + ACCEPT_PAUSE);
                    match accepted {
                        Ok(stream) => _ = self.link(stream),
                        Err(error) => tracing::warn!(%error, "accept"),
                    }
                }
                Some(event) = happened.recv() => self.happen(event),
            }
            while let Ok(message) = inbox.try_recv() {
                match message {
                    Message::Stop => return self.stop(),
                    message => self.obey(message),
                }
            }
            // A tick's time at most: a read may hold thousands of frames, and beats must not wait for all of them.
            let until = Instant::now() + self.config.tick;
            while Instant::now() < until
                && let Ok(event) = happened.try_recv()
            {
                self.happen(event);
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
                self.moving.set(!self.posts.is_empty(), now);
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
                tracing::warn!(%peer, name = self.name(peer), reason, "data connection");
                self.endpoint.on_lost(peer, now);
            }
        }
    }

    /// What a peer calls itself.
    fn name(&self, peer: PeerId) -> &str {
        let hello = self.endpoint.peers().find(|known| known.id == peer).and_then(|known| known.hello);
        hello.map_or("unknown: no HELLO", |hello| &hello.name)
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
                    Ok(()) => {
                        self.posts.insert(ticket, key);
                        let now = self.now();
                        self.moving.set(true, now);
                    }
                    Err(error) => self.refused(ticket, Some(key), format!("unit {unit}: {error}")),
                }
            }
            Output::TearDown { peer, reason } => {
                tracing::info!(%peer, name = self.name(peer), %reason, "tear down");
                self.transport.tear_down(peer);
                self.admitted.remove(&peer);
                self.links.remove(&peer);
                let now = self.now();
                self.targets.lost(peer, &reason, now + self.config.reconnect);
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
            Command::Open { key, server, request, pages } => {
                let peer = self.targets.peer(server).unwrap_or(NOBODY);
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
}

/// Rooms that ended and were forgotten take commands in silence.
fn ignore_unknown(result: Result<(), CommandError>) -> Result<(), CommandError> {
    match result {
        Err(CommandError::UnknownRoom(_)) => Ok(()),
        other => other,
    }
}
