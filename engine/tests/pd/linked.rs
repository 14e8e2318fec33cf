//! A prefill engine and a decode engine whose ranks are linked by drivers: real sockets, threads and clocks.

use crate::pair::Setup;
use engine::config::LayerKind;
use engine::coordinator::{Coordinator, Decode, Prefill};
use engine::engine::Bell;
use engine::handover::{Handover, RankRooms};
use engine::pools::PoolSizes;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer::arena::Arena;
use transfer::driver::{Driver, DriverConfig};
use transfer::endpoint::Config;
use transfer::fault::Faults;
use transfer::hello::{Hello, PROTOCOL, Side};
use transfer::layout::Layout;
use transfer::transport::tcp::Tcp;

/// Beyond this something hangs, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One half.
pub(crate) struct Half<S> {
    pub(crate) coordinator: Coordinator<S>,
    /// One per rank.
    pub(crate) drivers: Vec<Driver>,
    /// Rung when a rank has news.
    pub(crate) bell: Bell,
}

/// Both, connected.
pub(crate) struct Linked {
    pub(crate) prefill: Half<Prefill>,
    pub(crate) decode: Half<Decode>,
}

/// Repeats until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Setup {
    /// Two engines with these faults each, whose ranks know each other. A step that takes longer than `deadline` fails.
    pub(crate) fn linked(&self, prefill: &str, decode: &str, deadline: Duration) -> Linked {
        let faults = |rules| Arc::new(Faults::parse(rules).expect("rules"));
        let arena = |pages| {
            let sizes = PoolSizes { compressed_pages: pages, window_pages: 2 * pages, request_slots: pages };
            Handover::new(&self.geometry(), sizes).expect("an arena")
        };
        let make = |side, pages, faults: &Arc<Faults>, connect: &[String]| {
            let bell = Bell::new();
            let rank = |rank: u32| {
                let mut driver = DriverConfig::new(Config::new(self.hello(side, rank, arena(pages).layout())));
                driver.listen = (side == Side::Prefill).then(|| "127.0.0.1:0".into());
                driver.connect = connect.get(rank as usize).cloned().into_iter().collect();
                (driver.verify, driver.faults) = (true, Arc::clone(faults));
                // A machine with more threads than cores is no dead peer.
                driver.endpoint.timers.misses = 40;
                driver.endpoint.timers.retry = Duration::from_millis(100);
                let memory = Arena::of(arena(pages).layout()).expect("memory");
                let transport = Tcp::bind("127.0.0.1:0".parse().expect("an address"), Arc::clone(faults));
                let (transport, ring) = (transport.expect("a port"), bell.clone());
                Driver::start(driver, Box::new(transport), Arc::new(memory), Box::new(move || ring.ring()))
                    .expect("a driver")
            };
            let (drivers, ports): (Vec<_>, Vec<_>) = (0..self.ranks).map(rank).unzip();
            let rooms = |port| RankRooms::new(arena(pages), Box::new(port)).with_faults(Arc::clone(faults));
            (drivers, ports.into_iter().map(rooms).collect::<Vec<_>>(), bell)
        };
        let (of_prefill, of_decode) = (faults(prefill), faults(decode));
        let (drivers, rooms, bell) = make(Side::Prefill, self.arena, &of_prefill, &[]);
        let addresses: Vec<_> = drivers.iter().filter_map(Driver::address).map(str::to_owned).collect();
        let ranks = |sizes, rooms| {
            let mut runner = self.runner(sizes, rooms);
            runner.set_deadline(deadline);
            runner
        };
        let (sizes, side) = (self.sizes(48), Prefill::new(&arena(self.arena), self.shape()).with_faults(of_prefill));
        let coordinator = Coordinator::on_side(self.scheduler(sizes), ranks(sizes, rooms), self.schedule, side);
        let prefill = Half { coordinator, drivers, bell };
        let (drivers, rooms, bell) = make(Side::Decode, self.arena + 1, &of_decode, &addresses);
        let (sizes, side) =
            (self.sizes(self.pages), Decode::new(&arena(self.arena + 1), self.shape()).with_faults(of_decode));
        let coordinator = Coordinator::on_side(self.scheduler(sizes), ranks(sizes, rooms), self.schedule, side);
        let decode = Half { coordinator, drivers, bell };
        until("the ranks know each other", || {
            let knows = |driver: &Driver| driver.snapshot().peers.iter().any(|peer| peer.ready);
            prefill.drivers.iter().chain(&decode.drivers).all(knows)
        });
        Linked { prefill, decode }
    }

    fn hello(&self, side: Side, rank: u32, layout: &Layout) -> Hello {
        let config = self.checkpoint.config();
        let letter = |kind: &LayerKind| match kind {
            LayerKind::Swa => 'S',
            LayerKind::Csa => 'C',
            LayerKind::Hca => 'H',
        };
        Hello {
            protocol: PROTOCOL,
            side,
            name: format!("{side:?} {rank}"),
            incarnation: RandomState::new().hash_one(0),
            rank,
            tp_size: self.ranks,
            model: "test".into(),
            model_hash: 1,
            kv_dtype: "kv".into(),
            index_k_dtype: "keys".into(),
            activations: "f32".into(),
            page_sizes: vec![256, self.shape().window_page_tokens, 1],
            layer_schedule: config.layers.iter().map(letter).collect(),
            units: layout.num_units(),
            classes: layout.classes().to_vec(),
            items: layout.items().iter().map(|item| item.spec.clone()).collect(),
            layout_hash: layout.hash(),
            transport: String::new(),
            blob: Vec::new(),
        }
    }
}
