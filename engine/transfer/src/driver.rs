//! An endpoint on sockets and a clock: one thread per rank, which owns the endpoint, its control connections and its transport.
//!
//! The rank's own thread never waits for it: commands go in through a channel, and what the rank sees is a snapshot that the
//! driver replaces whenever something changed ([`DriverPort`]). Sockets are read and written by tasks, one each per connection,
//! so that a peer that neither reads nor writes delays nobody else. The loop itself awaits nothing but its next event.
//!
//! With [`DriverConfig::verify`] the sender sums every page of a unit before it is posted and the receiver before the unit counts as
//! landed; a unit that differs fails its room and is never shown.

mod busy;
mod link;
mod lossy;
mod net;
mod port;
mod run;
mod targets;

#[cfg(test)]
mod tests;

pub use net::{Net, TokioNet};
pub use port::DriverPort;
pub use run::DriverLoop;

use crate::arena::Arena;
use crate::checksum::{Miss, Rooms};
use crate::endpoint::{Config, Endpoint, Errors, RoomView};
use crate::exchange::PeerSeen;
use crate::fault::Faults;
use crate::hello::Refusal;
use crate::ids::{PeerId, RoomKey};
use crate::reason::Reason;
use crate::room::{Outcome, UnitSet};
use crate::transport::{Counters, Transport, TransportError};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::mpsc::UnboundedSender;

/// What a driver is made from.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Endpoint; transport name and blob of its hello are the driver's to fill in.
    pub endpoint: Config,
    /// `HOST:PORT` for control connections (prefill); port 0 takes a free one.
    pub listen: Option<String>,
    /// `HOST:PORT` of the ranks to connect to (decode), for as long as the driver lives.
    pub connect: Vec<String>,
    /// Sum every page on both sides.
    pub verify: bool,
    /// Between two looks at clock and transport, at most.
    pub tick: Duration,
    /// For a connection to come about, and between two attempts.
    pub reconnect: Duration,
    /// What happens to frames.
    pub faults: Arc<Faults>,
}

impl DriverConfig {
    /// The usual times, no peers, no faults.
    pub fn new(endpoint: Config) -> Self {
        let (tick, reconnect) = (Duration::from_millis(5), Duration::from_millis(200));
        let (listen, connect, faults) = (None, Vec::new(), Arc::new(Faults::none()));
        Self { endpoint, listen, connect, verify: false, tick, reconnect, faults }
    }
}

/// Why a driver did not start.
#[derive(Debug, Error)]
pub enum DriverError {
    /// The hello contradicts itself.
    #[error("hello: {0}")]
    Hello(#[from] Refusal),
    /// The arena could not be offered.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The address could not be taken.
    #[error("control address {address}: {error}")]
    Listen {
        /// Address.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// No thread.
    #[error("driver thread: {0}")]
    Thread(std::io::Error),
}

/// A connection as reports show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Connection.
    pub id: PeerId,
    /// What it calls itself; empty before its hello.
    pub name: String,
    /// Its process.
    pub incarnation: u64,
    /// Whether both sides fit.
    pub ready: bool,
}

/// What a driver knows, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Rooms. Units that do not match their sums are left out of `landed`.
    pub rooms: BTreeMap<RoomKey, RoomView>,
    /// Rooms that were aborted here before they were known: over and quiet.
    pub ghosts: BTreeMap<RoomKey, Reason>,
    /// Servers of [`DriverConfig::connect`], in its order.
    pub targets: Vec<PeerSeen>,
    /// Connections.
    pub peers: Vec<PeerStatus>,
    /// Errors by kind since the start.
    pub errors: Errors,
    /// Bytes since the start.
    pub counters: Counters,
    /// Time in which at least one post of its own was under way.
    pub moving: Duration,
    /// Rooms whose every page was compared.
    pub verified: Rooms,
    /// Pages that differed, the first of them.
    pub misses: Vec<Miss>,
}

impl Snapshot {
    /// Rooms without an outcome.
    pub fn open_rooms(&self) -> usize {
        self.rooms.values().filter(|room| !matches!(room.outcome, Outcome::Finished | Outcome::Failed(_))).count()
    }

    /// Rooms whose outcome is final and whose pages may still be written.
    pub fn quarantined_rooms(&self) -> usize {
        let over = |room: &&RoomView| matches!(room.outcome, Outcome::Finished | Outcome::Failed(_)) && !room.free;
        self.rooms.values().filter(over).count()
    }
}

/// What driver and port share.
pub(crate) struct Shared {
    snapshot: Mutex<Arc<Snapshot>>,
    /// Milliseconds since `start` at the loop's last turn.
    beat: AtomicU64,
    start: Instant,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("beat_ms", &self.beat).finish_non_exhaustive()
    }
}

impl Shared {
    fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let snapshot = Mutex::new(Arc::new(Snapshot::default()));
        Self { snapshot, beat: AtomicU64::new(0), start: Instant::now(), wake }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Snapshot>> {
        // A snapshot is replaced as a whole, so a panic elsewhere leaves a whole one.
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.lock())
    }

    fn replace(&self, snapshot: Snapshot) {
        *self.lock() = Arc::new(snapshot);
        (self.wake)();
    }

    fn turn(&self) {
        self.beat.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

/// A running driver. Dropped, it says goodbye to its peers and ends.
#[derive(Debug)]
pub struct Driver {
    commands: UnboundedSender<port::Message>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    address: Option<String>,
}

impl Driver {
    /// Starts a driver over `arena`, which is laid out as the endpoint's hello says. `wake` is called on the driver's thread
    /// whenever the view has changed; it must not wait.
    ///
    /// # Errors
    /// A hello that contradicts itself, an arena that does not fit it, an address in use.
    pub fn start(
        config: DriverConfig,
        transport: Box<dyn Transport>,
        arena: Arc<Arena>,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(Self, DriverPort), DriverError> {
        let name = format!("transfer {}", config.endpoint.hello.rank);
        let (driver, port) = DriverLoop::new(config, TokioNet, transport, arena, wake)?;
        let shared = Arc::clone(&driver.shared);
        let (started, starting) = mpsc::channel();
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    // Nobody waits any more if this fails.
                    let _ = started.send(Err(DriverError::Thread(error)));
                    return;
                }
            };
            runtime.block_on(driver.run(|ready| {
                let _ = started.send(ready);
            }));
        };
        let thread = std::thread::Builder::new().name(name).spawn(run).map_err(DriverError::Thread)?;
        let gone = || DriverError::Thread(std::io::Error::other("it ended before it began"));
        let address = starting.recv().map_err(|_| gone())??;
        Ok((Self { commands: port.commands(), shared, thread: Some(thread), address }, port))
    }

    /// Address of the control port, where there is one.
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// What it knows now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot()
    }

    /// Whether its thread has ended; it never does on its own, whatever peers send.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Time since the loop's last turn: a few ticks at most while it is well.
    pub fn still(&self) -> Duration {
        let beat = Duration::from_millis(self.shared.beat.load(Ordering::Relaxed));
        self.shared.start.elapsed().saturating_sub(beat)
    }
}

impl<N: Net> DriverLoop<N> {
    /// A loop over `arena`, and the rank's end of it; the rest as for [`Driver::start`].
    ///
    /// # Errors
    /// A hello that contradicts itself, an arena that does not fit it.
    pub fn new(
        mut config: DriverConfig,
        net: N,
        mut transport: Box<dyn Transport>,
        arena: Arc<Arena>,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(Self, DriverPort), DriverError> {
        let layout = crate::hello::check_own(&config.endpoint.hello)?;
        transport.register(Arc::clone(&arena), &layout)?;
        config.endpoint.hello.transport = transport.name().to_owned();
        let endpoint = Endpoint::new(config.endpoint.clone())?;
        let shared = Arc::new(Shared::new(wake));
        let (commands, inbox) = tokio::sync::mpsc::unbounded_channel();
        let port = DriverPort::new(config.endpoint.hello.side, commands, Arc::clone(&shared), Arc::clone(&arena));
        Ok((Self { config, net, endpoint, transport, arena, layout, shared, inbox }, port))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Fails if the thread is gone.
        let _ = self.commands.send(port::Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Units of a room whose bytes were compared, and what came of it.
#[derive(Debug, Clone, Default)]
struct Checked {
    units: UnitSet,
    report: crate::checksum::Report,
    counted: bool,
}
