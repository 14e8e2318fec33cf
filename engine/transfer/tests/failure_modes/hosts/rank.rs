//! A rank: the driver's loop on a simulated host, its port and its memory in the hands of the test.

use crate::endpoints::world::ms;
use crate::words::{hello, layout};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use transfer::arena::Arena;
use transfer::driver::{DriverConfig, DriverLoop, DriverPort, Net};
use transfer::endpoint::Config;
use transfer::fault::Faults;
use transfer::hello::Side;
use transfer::ids::{RoomKey, Unit};
use transfer::layout::{Layout, PagesByClass};
use transfer::room::{Protections, Timers};
use transfer::transport::in_process::Fabric;
use turmoil::net::{TcpListener, TcpStream};

/// Control port of every prefill rank.
pub(crate) const PORT: u16 = 4000;

/// What a page holds that is nobody's.
const POISON: u8 = 0xa5;

/// Turmoil's sockets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simulated;

impl Net for Simulated {
    type Stream = TcpStream;
    type Listener = TcpListener;

    async fn bind(&self, address: &str) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    fn address(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }
}

/// Host of a rank.
pub(crate) fn host(side: Side, rank: usize) -> String {
    format!("{}-{rank}", if side == Side::Prefill { "prefill" } else { "decode" })
}

/// Between two attempts to connect.
const RECONNECT: Duration = Duration::from_millis(50);

/// What a message takes at most, on a network that is well.
pub(crate) const LATENCY: Duration = Duration::from_millis(20);

/// For a request that is asked again and again to be served where now and then a frame is lost. A lost HELLO leaves its connection to the
/// handshake's end; then comes the next attempt, and connection and HELLO go there and back. A room that a lost frame catches costs at
/// most all its timers, one behind the other. Both may happen, and again on the second try: 2 * (0.63 + 4.5) s.
pub(crate) fn patience() -> Duration {
    let Timers { handshake, lease, progress, taken, drain, .. } = timers();
    let connection = handshake + RECONNECT + 4 * LATENCY;
    let room = handshake + lease + progress + lease + taken + drain;
    2 * (connection + room)
}

/// Short, so that a run of seconds sees every timer end.
fn timers() -> Timers {
    Timers {
        handshake: ms(500),
        lease: ms(1000),
        progress: ms(600),
        taken: ms(1000),
        acknowledge: ms(500),
        drain: ms(400),
        retry: ms(100),
        beat: ms(50),
        misses: 5,
    }
}

/// What every process of a rank is started with.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) verify: bool,
    pub(crate) queued_bytes: usize,
    /// Rules for frames.
    pub(crate) frames: &'static str,
    pub(crate) seed: u64,
    pub(crate) on: Protections,
}

/// Where a rank's process leaves its port.
#[derive(Debug)]
pub(crate) struct Slot {
    side: Side,
    rank: usize,
    incarnation: u64,
    fabric: Fabric,
    setting: Setting,
    pub(crate) process: Option<Ends>,
}

/// A rank's ends of its driver.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) port: DriverPort,
    pub(crate) memory: Memory,
}

impl Slot {
    pub(crate) fn new(side: Side, rank: usize, fabric: Fabric, setting: Setting) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { side, rank, incarnation: 0, fabric, setting, process: None }))
    }

    /// A new process under the same name.
    fn begin(&mut self) -> DriverLoop<Simulated> {
        self.incarnation += 1;
        let mut config = Config::new(hello(self.side, 0, self.rank, self.incarnation));
        config.timers = timers();
        config.protections = self.setting.on;
        config.limits.queued_bytes = self.setting.queued_bytes;
        let (listen, connect) = match self.side {
            Side::Prefill => (Some(format!("0.0.0.0:{PORT}")), Vec::new()),
            Side::Decode => (None, vec![format!("{}:{PORT}", host(Side::Prefill, self.rank))]),
        };
        let Setting { verify, frames, seed, .. } = self.setting;
        let seed = seed + 10 * self.incarnation + self.rank as u64;
        let faults = Arc::new(Faults::parse(&format!("seed={seed}; {frames}")).expect("rules"));
        let config =
            DriverConfig { listen, connect, verify, reconnect: RECONNECT, faults, ..DriverConfig::new(config) };
        let memory = Memory::new(self.side, self.rank);
        let (transport, arena) = (Box::new(self.fabric.transport()), Arc::clone(&memory.arena));
        let made = DriverLoop::new(config, Simulated, transport, arena, Box::new(|| ()));
        let (driver, port) = made.expect("a hello of our own");
        self.process = Some(Ends { port, memory });
        driver
    }
}

/// What a host runs. The driver ends when its port is gone, and never of itself.
pub(crate) fn software(slot: &Rc<RefCell<Slot>>) -> impl Future<Output = turmoil::Result> + use<> {
    let driver = slot.borrow_mut().begin();
    async move {
        let mut refusal = None;
        driver.run(|ready| refusal = ready.err()).await;
        Err(format!("the driver ended: {refusal:?}").into())
    }
}

/// An arena of which is known what it should hold.
#[derive(Debug)]
pub(crate) struct Memory {
    arena: Arc<Arena>,
    layout: Layout,
    rank: usize,
}

/// How many pages hold what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    /// What nobody's pages hold.
    pub(crate) poison: u32,
    /// What the room's pages hold once they have landed.
    pub(crate) own: u32,
    pub(crate) foreign: u32,
}

impl Memory {
    fn new(side: Side, rank: usize) -> Self {
        let layout = layout(side);
        let arena = Arc::new(Arena::of(&layout).expect("a small arena"));
        arena.fill(0, arena.bytes(), POISON).expect("all of it");
        Self { arena, layout, rank }
    }

    /// Places of a unit's pages and what they hold when they are of this room.
    fn pages<'a>(
        &'a self,
        key: RoomKey,
        unit: Unit,
        pages: &'a PagesByClass,
    ) -> impl Iterator<Item = (u64, Vec<u8>)> + 'a {
        let items = self.layout.unit(unit).enumerate();
        items.flat_map(move |(i, item)| {
            let pages = pages[item.spec.class.0 as usize].iter().enumerate();
            pages.map(move |(nth, &page)| {
                let (offset, bytes) = self.layout.place(item, page);
                (offset, content(key, [self.rank as u64, u64::from(unit.0), i as u64, nth as u64], bytes))
            })
        })
    }

    /// Prefill: the unit is computed.
    pub(crate) fn compute(&self, key: RoomKey, unit: Unit, pages: &PagesByClass) {
        for (offset, bytes) in self.pages(key, unit, pages) {
            self.arena.write(offset, &bytes).expect("a page");
        }
    }

    /// What the pages of a unit hold.
    pub(crate) fn holds(&self, key: RoomKey, unit: Unit, pages: &PagesByClass) -> Holds {
        let mut holds = Holds::default();
        for (offset, expected) in self.pages(key, unit, pages) {
            let mut bytes = vec![0; expected.len()];
            self.arena.read(offset, &mut bytes).expect("a page");
            let count = match () {
                () if bytes == expected => &mut holds.own,
                () if bytes.iter().all(|&byte| byte == POISON) => &mut holds.poison,
                () => &mut holds.foreign,
            };
            *count += 1;
        }
        holds
    }

    /// The pages are nobody's.
    pub(crate) fn poison(&self, pages: &PagesByClass) {
        for item in self.layout.items() {
            for &page in &pages[item.spec.class.0 as usize] {
                let (offset, bytes) = self.layout.place(item, page);
                self.arena.fill(offset, bytes, POISON).expect("a page");
            }
        }
    }

    /// Pages that are nobody's and hold something all the same, by class.
    pub(crate) fn written(&self, pages: &PagesByClass) -> Vec<(String, u32)> {
        let mut written = vec![];
        for item in self.layout.items() {
            for &page in &pages[item.spec.class.0 as usize] {
                let (offset, bytes) = self.layout.place(item, page);
                let mut held = vec![0; bytes as usize];
                self.arena.read(offset, &mut held).expect("a page");
                if held.iter().any(|&byte| byte != POISON) {
                    written.push((format!("unit {} {}", item.spec.unit, item.spec.name), page));
                }
            }
        }
        written
    }
}

/// Bytes of a page: of that room and epoch, rank, unit, item and place in the list, and of no other.
fn content(key: RoomKey, place: [u64; 4], bytes: u64) -> Vec<u8> {
    let parts = [u64::from(key.epoch)].into_iter().chain(place);
    let mut state = parts.fold(key.room, |sum, part| (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    let word = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some((state >> 33) as u8)
    };
    std::iter::from_fn(word).take(bytes as usize).collect()
}
