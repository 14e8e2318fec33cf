//! The loop between scheduler and runner, in lockstep or overlapped, and a handle for clients on other threads.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use thiserror::Error;

use crate::ids::SequenceId;
use crate::runner::{RunError, Runner};
use crate::scheduler::{AddError, CommitError, Scheduler, SchedulerStats};
use crate::sequence::{Event, FinishReason, Request};
use crate::step::StepPlan;

/// Whether the host decides about a step while the one before runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Decide, run, take in, decide.
    Lockstep,
    /// The next step is handed over before the tokens of this one are known.
    Overlap,
}

/// Why the loop cannot go on.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A step failed; its requests have been ended with the reason.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The runner answered with something else than the step's own output.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

/// Scheduler and runner on the caller's thread.
#[derive(Debug)]
pub struct Engine {
    scheduler: Scheduler,
    runner: Runner,
    depth: usize,
    flight: VecDeque<StepPlan>,
}

impl Engine {
    /// An engine whose runner has the pools that the scheduler deals out.
    pub fn new(scheduler: Scheduler, runner: Runner, schedule: Schedule) -> Self {
        let depth = match schedule {
            Schedule::Lockstep => 1,
            Schedule::Overlap => 2,
        };
        Self { scheduler, runner, depth, flight: VecDeque::new() }
    }

    /// Queues a request.
    pub fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        self.scheduler.add(request)
    }

    /// Ends a request; `None` if it has ended already.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        self.scheduler.cancel(id)
    }

    /// Whether any request waits, runs or still holds pages.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Forgets all cached beginnings.
    pub fn clear_prefix(&mut self) {
        self.scheduler.clear_prefix();
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Hands over what can be handed over, then takes in the oldest step. Nothing happens without work.
    ///
    /// # Errors
    /// A step failed. The requests in flight have ended by then: `events` holds what their clients are told.
    pub fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        while self.flight.len() < self.depth {
            let Some(plan) = self.scheduler.schedule() else { break };
            let submitted = self.runner.submit(plan.clone());
            self.flight.push_back(plan);
            if let Err(error) = submitted {
                return self.fail(error, events);
            }
        }
        if self.flight.is_empty() {
            return Ok(());
        }
        match self.runner.wait() {
            Ok(output) => {
                let plan = self.flight.pop_front().expect("the runner answers steps in flight");
                events.extend(self.scheduler.commit(&plan, &output)?);
                Ok(())
            }
            Err(error) => self.fail(error, events),
        }
    }

    /// Ends everything in flight.
    fn fail(&mut self, error: RunError, events: &mut Vec<Event>) -> Result<(), EngineError> {
        for plan in self.flight.drain(..) {
            events.extend(self.scheduler.fail(&plan, &error.to_string())?);
        }
        Err(error.into())
    }
}

enum Command {
    Add(Request, Sender<Event>, Sender<Result<SequenceId, AddError>>),
    Cancel(SequenceId),
    Stats(Sender<SchedulerStats>),
}

/// An engine on a thread of its own. Dropped, it takes in what is in flight and ends.
#[derive(Debug)]
pub struct EngineThread {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
}

impl EngineThread {
    /// Moves an engine to a thread.
    pub fn spawn(engine: Engine) -> std::io::Result<Self> {
        let (commands, inbox) = channel();
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || serve(engine, &inbox))?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        let commands = self.commands.as_ref().ok_or(EngineError::Ended)?;
        commands.send(command).map_err(|_| EngineError::Ended)
    }

    /// Queues a request. Its events arrive at the receiver; dropping that cancels the request.
    ///
    /// # Errors
    /// The engine has ended; inside, the request was refused.
    pub fn add(&self, request: Request) -> Result<Result<(SequenceId, Receiver<Event>), AddError>, EngineError> {
        let (events, receiver) = channel();
        let (answer, answered) = channel();
        self.send(Command::Add(request, events, answer))?;
        let id = answered.recv().map_err(|_| EngineError::Ended)?;
        Ok(id.map(|id| (id, receiver)))
    }

    /// Ends a request, if it has not ended.
    pub fn cancel(&self, id: SequenceId) -> Result<(), EngineError> {
        self.send(Command::Cancel(id))
    }

    /// Counts since the start.
    pub fn stats(&self) -> Result<SchedulerStats, EngineError> {
        let (answer, answered) = channel();
        self.send(Command::Stats(answer))?;
        answered.recv().map_err(|_| EngineError::Ended)
    }

    /// Takes no more commands, finishes every request, and ends.
    pub fn finish(mut self) -> Result<(), EngineError> {
        self.commands = None;
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Err(EngineError::Ended)))
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // Clients of a failed engine have been told by their events.
            let _ = thread.join();
        }
    }
}

/// Runs until nobody can send commands any more and every request has ended.
fn serve(mut engine: Engine, inbox: &Receiver<Command>) -> Result<(), EngineError> {
    let mut clients: HashMap<SequenceId, Sender<Event>> = HashMap::new();
    let mut open = true;
    loop {
        // Without work there is nothing to do but wait for a command; with work, commands are taken as they come.
        while open {
            let command = if engine.has_work() {
                match inbox.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        open = false;
                        break;
                    }
                }
            } else {
                match inbox.recv() {
                    Ok(command) => command,
                    Err(_) => {
                        open = false;
                        break;
                    }
                }
            };
            obey(&mut engine, &mut clients, command);
        }
        if !open && !engine.has_work() {
            return Ok(());
        }
        let mut events = Vec::new();
        let turned = engine.turn(&mut events);
        for event in events {
            tell(&mut engine, &mut clients, event);
        }
        if let Err(error) = turned {
            // Requests that were not in the failed step have no event yet, and nobody will run them.
            let why = error.to_string();
            for (id, client) in clients.drain() {
                if let Some(Event::Finished { sequence, usage, .. }) = engine.cancel(id) {
                    // A client that is gone needs no news.
                    let _ = client.send(Event::Finished { sequence, reason: FinishReason::Failed(why.clone()), usage });
                }
            }
            return Err(error);
        }
    }
}

fn obey(engine: &mut Engine, clients: &mut HashMap<SequenceId, Sender<Event>>, command: Command) {
    match command {
        Command::Add(request, events, answer) => {
            let added = engine.add(request);
            if let Ok(id) = &added {
                clients.insert(*id, events);
            }
            let id = added.as_ref().ok().copied();
            if let (Err(_), Some(id)) = (answer.send(added), id) {
                // The client went away before it knew its number.
                engine.cancel(id);
                clients.remove(&id);
            }
        }
        Command::Cancel(id) => {
            if let Some(event) = engine.cancel(id) {
                tell(engine, clients, event);
            }
        }
        Command::Stats(answer) => {
            let _ = answer.send(engine.scheduler().stats());
        }
    }
}

/// Passes an event on; a client that is gone has cancelled its request.
fn tell(engine: &mut Engine, clients: &mut HashMap<SequenceId, Sender<Event>>, event: Event) {
    let (id, ends) = match &event {
        Event::Token { sequence, .. } => (*sequence, false),
        Event::Finished { sequence, .. } => (*sequence, true),
    };
    let gone = clients.get(&id).is_some_and(|client| client.send(event).is_err());
    if gone {
        engine.cancel(id);
    }
    if gone || ends {
        clients.remove(&id);
    }
}
