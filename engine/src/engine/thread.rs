//! An engine, or one half of two, on a thread of its own.

use super::shown::Shown;
use super::{Engine, EngineError, Snapshot, Turns};
use crate::ids::SequenceId;
use crate::progress::{Part, PartState};
use crate::scheduler::AddError;
use crate::sequence::{Event, FinishReason, Request};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Wakes an [`EngineThread`] from other threads: something outside has news. Rung before the thread is there, it rings then.
#[derive(Debug, Clone, Default)]
pub struct Bell(Arc<Mutex<BellState>>);

#[derive(Debug, Default)]
struct BellState {
    commands: Option<Sender<Command>>,
    /// Rung, and not heard yet.
    rung: bool,
}

impl Bell {
    /// A bell that nobody hears yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, BellState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings; more than once before it is heard is once.
    pub fn ring(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.rung, true)
            && let Some(commands) = &state.commands
        {
            // A loop that has ended hears nothing.
            let _ = commands.send(Command::Wake);
        }
    }

    fn hang(&self, commands: Sender<Command>) {
        let mut state = self.lock();
        if state.rung {
            let _ = commands.send(Command::Wake);
        }
        state.commands = Some(commands);
    }

    fn heard(&self) {
        self.lock().rung = false;
    }

    fn silence(&self) {
        self.lock().commands = None;
    }
}

/// Who is told about a request. Called on the engine's thread: must not block.
pub trait Client: Send {
    /// The request was queued or refused. False if nobody wants it any more, which cancels it.
    fn answer(&mut self, added: Result<SequenceId, AddError>) -> bool;
    /// Something happened to it. False if nobody wants it any more, which cancels it.
    fn event(&mut self, event: Event) -> bool;
}

/// A request at an [`EngineThread`], from the moment it is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Commands taken between two steps at most: who sends without pause keeps no other from its tokens.
const COMMANDS_PER_TURN: usize = 256;

enum Command {
    Add(Ticket, Request, Box<dyn Client>),
    Cancel(SequenceId),
    Withdraw(Ticket),
    Stop,
    /// A [`Bell`] rang.
    Wake,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Command::Add(..) => "Add",
            Command::Cancel(_) => "Cancel",
            Command::Withdraw(_) => "Withdraw",
            Command::Wake => "Wake",
            Command::Stop => "Stop",
        })
    }
}

/// An engine on a thread of its own. Dropped, it cancels every request, takes in the steps in flight and ends.
#[derive(Debug)]
pub struct EngineThread {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
    shown: Arc<Shown>,
    tickets: AtomicU64,
    bell: Bell,
}

impl EngineThread {
    /// Moves an engine to a thread.
    pub fn spawn(engine: Engine) -> std::io::Result<Self> {
        Self::spawn_with(Box::new(engine), Bell::new())
    }

    /// Moves anything that turns to a thread, where it is woken by a bell.
    pub fn spawn_with(engine: Box<dyn Turns>, bell: Bell) -> std::io::Result<Self> {
        let (commands, inbox) = channel();
        bell.hang(commands.clone());
        let ranks = engine.rank_parts().to_vec();
        let part = Part::new("engine", ranks.clone());
        let shown = Arc::new(Shown {
            snapshot: Mutex::new(Snapshot::of(engine.scheduler())),
            commands: Part::new("commands", [&ranks[..], &[Arc::clone(&part)]].concat()),
            engine: part,
            ranks,
            failure: OnceLock::new(),
        });
        let (theirs, ears) = (Arc::clone(&shown), bell.clone());
        let body = move || {
            let ended = serve(engine, &inbox, &theirs, &ears);
            if let Err(error) = &ended {
                // The only writer.
                let _ = theirs.failure.set(error.to_string());
            }
            ended
        };
        let thread = std::thread::Builder::new().name("engine".into()).spawn(body)?;
        Ok(Self { commands: Some(commands), thread: Some(thread), shown, tickets: AtomicU64::new(0), bell })
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        let commands = self.commands.as_ref().ok_or(EngineError::Ended)?;
        self.shown.commands.arrive();
        commands.send(command).map_err(|_| EngineError::Ended)
    }

    /// Hands a request over without waiting for the loop. The client is told whether it was queued, then its events. A client
    /// that is dropped without an end has lost its engine; [`EngineThread::ended`] knows why.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn submit(&self, request: Request, client: Box<dyn Client>) -> Result<Ticket, EngineError> {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        self.send(Command::Add(ticket, request, client))?;
        Ok(ticket)
    }

    /// Cancels a request that was handed over, if it has not ended.
    pub fn withdraw(&self, ticket: Ticket) -> Result<(), EngineError> {
        self.send(Command::Withdraw(ticket))
    }

    /// Queues a request. Its events arrive at the receiver; dropping that cancels the request with its next event.
    ///
    /// # Errors
    /// The engine has ended; inside, the request was refused.
    pub fn add(&self, request: Request) -> Result<Result<(SequenceId, Receiver<Event>), AddError>, EngineError> {
        let (events, receiver) = channel();
        let (answer, answered) = channel();
        self.submit(request, Box::new(Channels { answer, events }))?;
        let id = answered.recv().map_err(|_| EngineError::Ended)?;
        Ok(id.map(|id| (id, receiver)))
    }

    /// Ends a request, if it has not ended.
    pub fn cancel(&self, id: SequenceId) -> Result<(), EngineError> {
        self.send(Command::Cancel(id))
    }

    /// How the scheduler stood after the last command or step.
    pub fn snapshot(&self) -> Snapshot {
        *self.shown.snapshot()
    }

    /// How far the queue of commands, the loop and every rank are.
    pub fn parts(&self) -> Vec<PartState> {
        let Shown { commands, engine, ranks, .. } = &*self.shown;
        ranks.iter().chain([engine, commands]).map(|part| part.state()).collect()
    }

    /// Why the loop is no longer there; `None` while it is.
    pub fn ended(&self) -> Option<String> {
        if let Some(why) = self.shown.failure.get() {
            return Some(why.clone());
        }
        let gone = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        gone.then(|| "the engine thread has stopped".to_owned())
    }

    /// Takes no more commands, finishes every request, and ends.
    pub fn finish(mut self) -> Result<(), EngineError> {
        self.bell.silence();
        self.commands = None;
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Err(EngineError::Ended)))
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.bell.silence();
        // An engine that has ended takes no command.
        let _ = self.send(Command::Stop);
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // Clients of a failed engine have been told by their events.
            let _ = thread.join();
        }
    }
}

/// A client behind two channels.
struct Channels {
    answer: Sender<Result<SequenceId, AddError>>,
    events: Sender<Event>,
}

impl Client for Channels {
    fn answer(&mut self, added: Result<SequenceId, AddError>) -> bool {
        self.answer.send(added).is_ok()
    }

    fn event(&mut self, event: Event) -> bool {
        self.events.send(event).is_ok()
    }
}

/// Clients by request, and their requests by ticket.
#[derive(Default)]
struct Clients {
    clients: HashMap<SequenceId, (Ticket, Box<dyn Client>)>,
    tickets: HashMap<Ticket, SequenceId>,
}

impl Clients {
    fn remove(&mut self, id: SequenceId) -> Option<Box<dyn Client>> {
        let (ticket, client) = self.clients.remove(&id)?;
        self.tickets.remove(&ticket);
        Some(client)
    }
}

/// How long a loop with open work that only others can move waits before it looks again by itself.
const LOOK: Duration = Duration::from_millis(20);

/// Runs until nobody can send commands any more, or one says stop, and every request has ended.
fn serve(mut engine: Box<dyn Turns>, inbox: &Receiver<Command>, shown: &Shown, bell: &Bell) -> Result<(), EngineError> {
    let engine = &mut *engine;
    let mut clients = Clients::default();
    let mut open = true;
    loop {
        // Without work there is nothing to do but wait for a command; with work, those are taken that are there.
        let (mut taken, mut rung) = (0, false);
        while open && (taken < COMMANDS_PER_TURN || !(rung || engine.has_work())) {
            taken += 1;
            let received = match (engine.has_work(), rung || !engine.is_idle()) {
                (_, true) => inbox.try_recv().map_err(|error| error == TryRecvError::Disconnected),
                (true, false) => inbox.recv_timeout(LOOK).map_err(|error| error == RecvTimeoutError::Disconnected),
                (false, false) => inbox.recv().map_err(|RecvError| true),
            };
            match received {
                Ok(Command::Wake) => {
                    bell.heard();
                    rung = true;
                }
                Ok(command) => {
                    open = !matches!(command, Command::Stop);
                    obey(engine, &mut clients, command);
                    shown.show(engine);
                    shown.commands.leave();
                }
                Err(disconnected) => {
                    open = !disconnected;
                    break;
                }
            }
        }
        if !open && !engine.has_work() {
            debug_assert_eq!(engine.scheduler().audit(), Ok(()), "every page is accounted for");
            return Ok(());
        }
        if !open && engine.is_idle() {
            // Nobody rings any more.
            std::thread::sleep(LOOK);
        }
        let mut events = Vec::new();
        let before = engine.progress();
        let turned = engine.turn(&mut events);
        if engine.progress() > before {
            shown.engine.tick();
        }
        for event in events {
            tell(engine, &mut clients, event);
        }
        shown.show(engine);
        if let Err(error) = turned {
            // Requests that were not in the failed step have no event yet, and nobody will run them.
            let why = error.to_string();
            for (id, (_, mut client)) in clients.clients.drain() {
                if let Some(Event::Finished { sequence, usage, .. }) = engine.cancel(id) {
                    // A client that is gone needs no news.
                    let _ =
                        client.event(Event::Finished { sequence, reason: FinishReason::Failed(why.clone()), usage });
                }
            }
            return Err(error);
        }
    }
}

fn obey(engine: &mut dyn Turns, clients: &mut Clients, command: Command) {
    match command {
        Command::Add(ticket, request, mut client) => {
            let added = engine.add(request);
            let id = added.as_ref().ok().copied();
            let wanted = client.answer(added);
            match id {
                Some(id) if wanted => {
                    clients.clients.insert(id, (ticket, client));
                    clients.tickets.insert(ticket, id);
                }
                // The client went away before it knew its number.
                Some(id) => _ = engine.cancel(id),
                None => {}
            }
        }
        Command::Cancel(id) => cancel(engine, clients, id),
        Command::Wake => {}
        Command::Withdraw(ticket) => {
            if let Some(&id) = clients.tickets.get(&ticket) {
                cancel(engine, clients, id);
            }
        }
        Command::Stop => {
            let ids: Vec<SequenceId> = clients.clients.keys().copied().collect();
            ids.into_iter().for_each(|id| cancel(engine, clients, id));
        }
    }
}

fn cancel(engine: &mut dyn Turns, clients: &mut Clients, id: SequenceId) {
    if let Some(event) = engine.cancel(id) {
        tell(engine, clients, event);
    }
}

/// Passes an event on; a client that is gone has cancelled its request.
fn tell(engine: &mut dyn Turns, clients: &mut Clients, event: Event) {
    let (id, ends) = match &event {
        Event::Token { sequence, .. } => (*sequence, false),
        Event::Finished { sequence, .. } => (*sequence, true),
    };
    let gone = clients.clients.get_mut(&id).is_some_and(|(_, client)| !client.event(event));
    if gone {
        engine.cancel(id);
    }
    if gone || ends {
        clients.remove(id);
    }
}
