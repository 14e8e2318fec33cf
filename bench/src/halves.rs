//! `sm120 prefill` and `sm120 decode`: the two halves of a deployment. A decode server answers over HTTP and asks a prefill server
//! for every prompt; the pages of its cache arrive rank by rank, layer by layer, while they are computed.

mod timers;
mod transports;

pub use timers::TimerArgs;
pub use transports::{Make, TransportKind, Transports};

use crate::serve::{self, ServeArgs, ServeError, Started};
use crate::serving::{Assembly, ServingError};
use clap::Args;
use engine::config::{LayerKind, ModelConfig};
use engine::coordinator::{Coordinator, Decode, Prefill};
use engine::engine::{Bell, EngineThread};
use engine::geometry::CacheGeometry;
use engine::handover::{Handover, RankRooms};
use engine::pools::PoolSizes;
use engine::progress::PartState;
use engine::sequence::Request;
use reference::ops::ScaleRule;
use server::backend::{Backend, EngineBackend, Figure, FigureKind, Updates};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use transfer::arena::Arena;
use transfer::driver::{Driver, DriverConfig, DriverError};
use transfer::endpoint::Config;
use transfer::exchange::{merge_peers, nobody_up};
use transfer::hello::{Hello, PROTOCOL, Side};

/// What both halves have in common.
#[derive(Debug, Clone, Args)]
pub struct HalfArgs {
    /// Model, device, HTTP.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// What carries pages; both halves need the same.
    #[arg(long, value_enum, default_value_t = TransportKind::Tcp)]
    pub transport: TransportKind,
    /// Address at which the other half's pages or acknowledgements arrive over tcp.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub data_host: IpAddr,
    /// Texts of full length whose pages can be on their way at once; more wait.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub arena_texts: u32,
    /// Sum every page before it is sent and before it is used; a page that differs fails its request. Both halves need it.
    #[arg(long)]
    pub verify_transfers: bool,
    /// Share of an arena's bytes that may wait for proof that nobody writes them; above it the oldest connection is torn down.
    #[arg(long, default_value_t = 50, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub quarantine_percent: u32,
    /// How long it waits for what.
    #[command(flatten)]
    pub timers: TimerArgs,
}

impl HalfArgs {
    /// The address that peers are told must be one that they can reach.
    fn data_address(&self) -> Result<(), ServingError> {
        if !self.data_host.is_unspecified() {
            return Ok(());
        }
        let (expected, got) =
            ("an address of this machine that the other half can reach".into(), self.data_host.to_string());
        Err(ServingError::Choice { option: "--data-host", expected, got })
    }

    /// Refuses what no half could be started with.
    ///
    /// # Errors
    /// Contradictions, and a transport that is not there.
    pub fn check(&self, transports: Transports) -> Result<(), ServeError> {
        self.timers.of_rooms()?;
        self.data_address()?;
        transports.of_ranks(self.transport, 1, self.data_host, &Arc::new(self.serve.faults()?)).map(drop)
    }
}

/// Options of `prefill`.
#[derive(Debug, Clone, Args)]
pub struct PrefillArgs {
    /// Both halves'.
    #[command(flatten)]
    pub half: HalfArgs,
    /// Address at which decode servers connect: rank i listens at this port + i; 0 takes free ports.
    #[arg(long, default_value = "127.0.0.1:9100", value_name = "IP:PORT")]
    pub control: SocketAddr,
}

/// Options of `decode`.
#[derive(Debug, Clone, Args)]
pub struct DecodeArgs {
    /// Both halves'.
    #[command(flatten)]
    pub half: HalfArgs,
    /// Control address of a prefill server; rank i connects to this port + i. More than one share the prompts.
    #[arg(long, required = true, value_delimiter = ',', value_name = "IP:PORT")]
    pub prefill: Vec<SocketAddr>,
}

/// Runs a prefill server.
///
/// # Errors
/// What keeps it from starting.
pub fn prefill(
    args: &PrefillArgs,
    transports: Transports,
    quiet: bool,
    say: impl FnMut(&str),
) -> Result<ExitCode, ServeError> {
    let control = args.control;
    let port = move |rank: u32| match control.port() {
        0 => Some(0),
        first => u16::try_from(rank).ok().and_then(|rank| first.checked_add(rank)),
    };
    let listen = move |rank| port(rank).map(|port| SocketAddr::new(control.ip(), port).to_string());
    let wires = Wires { side: Side::Prefill, transports, listen: Box::new(listen), connect: Vec::new() };
    serve::run_with(&args.half.serve, say, |serve| start(&args.half, serve, wires, quiet))
}

/// Runs a decode server.
///
/// # Errors
/// What keeps it from starting.
pub fn decode(
    args: &DecodeArgs,
    transports: Transports,
    quiet: bool,
    say: impl FnMut(&str),
) -> Result<ExitCode, ServeError> {
    let twice = args.prefill.iter().enumerate().find(|(i, address)| args.prefill[..*i].contains(address));
    if let Some((_, address)) = twice {
        let (expected, got) = ("every server once".into(), format!("{address} twice"));
        return Err(ServingError::Choice { option: "--prefill", expected, got }.into());
    }
    let wires = Wires { side: Side::Decode, transports, listen: Box::new(|_| None), connect: args.prefill.clone() };
    serve::run_with(&args.half.serve, say, |serve| start(&args.half, serve, wires, quiet))
}

/// Who listens where and connects to whom.
struct Wires {
    side: Side,
    transports: Transports,
    listen: Box<dyn Fn(u32) -> Option<String>>,
    connect: Vec<SocketAddr>,
}

/// Names of the formats, as both halves must have them.
fn dtypes(geometry: &CacheGeometry, rule: ScaleRule) -> (String, String) {
    let rule = match rule {
        ScaleRule::Exact => "",
        ScaleRule::PowerOfTwo => ", power-of-two scales",
    };
    (geometry.kv.name().to_owned(), format!("{}{rule}", geometry.index_k.name()))
}

/// One letter per layer.
fn schedule(config: &ModelConfig) -> String {
    let letter = |kind: &LayerKind| match kind {
        LayerKind::Swa => 'S',
        LayerKind::Csa => 'C',
        LayerKind::Hca => 'H',
    };
    config.layers.iter().map(letter).collect()
}

/// Pages of an arena that holds this many texts of `context` tokens, the same on both sides.
pub(crate) fn arena_sizes(texts: u32, geometry: &CacheGeometry, context: u32) -> PoolSizes {
    let shape = &geometry.shape;
    PoolSizes {
        compressed_pages: texts.saturating_mul(shape.compressed_pages(context)),
        // What a text needs at its end: the pages of its window.
        window_pages: texts.saturating_mul(shape.max_window_pages(1)),
        request_slots: if shape.has_request_slots() { texts } else { 0 },
    }
}

/// Bytes of a rank's arena that may be in quarantine.
fn quarantine_bytes(args: &HalfArgs, arena: u64) -> u64 {
    (u128::from(arena) * u128::from(args.quarantine_percent) / 100) as u64
}

fn start(args: &HalfArgs, serve: &ServeArgs, wires: Wires, quiet: bool) -> Result<Started, ServeError> {
    args.data_address()?;
    let (faults, timers) = (Arc::new(serve.faults()?), args.timers.of_rooms()?);
    // Before weights are loaded: what is missing is missing.
    let transports = wires.transports.of_ranks(args.transport, serve.model.tp, args.data_host, &faults)?;
    let checkpoint = serve.model.checkpoint()?;
    let served = serve.served(&checkpoint)?;
    let context = served.context;
    let config = checkpoint.config().clone();
    let numerics = serve.model.numerics(&config)?;
    let hash = checkpoint.fingerprint();
    let tp = serve.model.tp;
    let mut drivers = Vec::new();
    let rooms = |geometry: &CacheGeometry, bell: &Bell| {
        let sizes = arena_sizes(args.arena_texts, geometry, context);
        let (kv_dtype, index_k_dtype) = dtypes(geometry, numerics.scale_rule);
        let word = match wires.side {
            Side::Prefill => "prefill",
            Side::Decode => "decode",
        };
        // Part of the name: processes of the same number on two machines, or in two containers, are not each other.
        let incarnation = RandomState::new().hash_one(0);
        (0..tp)
            .zip(transports)
            .map(|(rank, transport)| {
                let handover =
                    Handover::new(geometry, sizes).map_err(|error| ServingError::Transfer(error.to_string()))?;
                let layout = handover.layout();
                let hello = Hello {
                    protocol: PROTOCOL,
                    side: wires.side,
                    name: format!("{word} {} {incarnation:016x} rank {rank}", std::process::id()),
                    incarnation,
                    rank,
                    tp_size: tp,
                    model: served.name.clone(),
                    model_hash: hash,
                    kv_dtype: kv_dtype.clone(),
                    index_k_dtype: index_k_dtype.clone(),
                    activations: numerics.activations.name().into(),
                    page_sizes: vec![geometry.shape.page_tokens, geometry.shape.window_page_tokens, 1],
                    layer_schedule: schedule(&config),
                    units: layout.num_units(),
                    classes: layout.classes().to_vec(),
                    items: layout.items().iter().map(|item| item.spec.clone()).collect(),
                    layout_hash: layout.hash(),
                    transport: String::new(),
                    blob: Vec::new(),
                };
                let arena = Arena::of(layout).map_err(|error| ServingError::Transfer(error.to_string()))?;
                let peer = |first: &SocketAddr| {
                    let port = u16::try_from(rank).ok().and_then(|rank| first.port().checked_add(rank));
                    port.map(|port| SocketAddr::new(first.ip(), port).to_string())
                };
                let mut endpoint = Config::new(hello);
                endpoint.timers = timers.clone();
                endpoint.limits.quarantine_bytes = quarantine_bytes(args, arena.bytes());
                let driver = DriverConfig {
                    listen: (wires.listen)(rank),
                    connect: wires.connect.iter().filter_map(peer).collect(),
                    verify: args.verify_transfers,
                    faults: Arc::clone(&faults),
                    reconnect: args.timers.reconnect.0,
                    ..DriverConfig::new(endpoint)
                };
                let ring = bell.clone();
                let (driver, port) = Driver::start(driver, transport, Arc::new(arena), Box::new(move || ring.ring()))
                    .map_err(|error: DriverError| ServingError::Transfer(error.to_string()))?;
                drivers.push(driver);
                Ok(RankRooms::new(handover, Box::new(port)).with_faults(Arc::clone(&faults)).into())
            })
            .collect()
    };
    let Assembly { scheduler, mut runner, schedule, setup, geometry, bell, .. } =
        serve.model.assemble(checkpoint, context, quiet, Arc::clone(&faults), rooms)?;
    runner.set_deadline(args.timers.step_timeout.0);
    let handover = Handover::new(&geometry, arena_sizes(args.arena_texts, &geometry, context))
        .map_err(|error| ServingError::Transfer(error.to_string()))?;
    let handover = &handover;
    let engine: Box<dyn engine::engine::Turns> = match wires.side {
        Side::Prefill => {
            let side = Prefill::new(handover, geometry.shape).with_faults(faults);
            Box::new(Coordinator::on_side(scheduler, runner, schedule, side))
        }
        Side::Decode => {
            let side = Decode::new(handover, geometry.shape).with_faults(faults);
            Box::new(Coordinator::on_side(scheduler, runner, schedule, side))
        }
    };
    let mut lines = vec![format!("model {}: {}", served.name, setup.headline())];
    let addresses: Vec<&str> = drivers.iter().filter_map(Driver::address).collect();
    if let Some(first) = addresses.first() {
        lines.push(format!("control at {first}, {} rank(s)", addresses.len()));
    }
    for prefill in &wires.connect {
        lines.push(format!("prompts from {prefill}"));
    }
    let bytes = handover.layout().bytes();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let held = mib(quarantine_bytes(args, bytes));
    lines.push(format!("arena: {:.1} MiB per rank, of them at most {held:.1} MiB in quarantine", mib(bytes)));
    let engine = EngineBackend::new(EngineThread::spawn_with(engine, bell)?);
    let half = Half { engine: engine.clone(), drivers: Arc::new(drivers), side: wires.side };
    Ok(Started { backend: Arc::new(half), engine, served, lines })
}

/// The engine of this process and the threads that move its pages.
struct Half {
    engine: EngineBackend,
    drivers: Arc<Vec<Driver>>,
    side: Side,
}

impl Backend for Half {
    fn submit(&self, request: Request) -> Updates {
        self.engine.submit(request)
    }

    fn parts(&self) -> Vec<PartState> {
        let driver = |(rank, driver): (usize, &Driver)| PartState {
            name: format!("transfer {rank}"),
            // Its loop turns without rooms too; one that stands still would not notice a peer.
            waiting: 1 + driver.snapshot().open_rooms() as u64,
            done: driver.snapshot().counters.landed_bytes,
            still: driver.still(),
            behind: Vec::new(),
        };
        self.engine.parts().into_iter().chain(self.drivers.iter().enumerate().map(driver)).collect()
    }

    fn ended(&self) -> Option<String> {
        let dead = |(rank, driver): (usize, &Driver)| {
            driver.has_ended().then(|| format!("the transfer thread of rank {rank} has stopped"))
        };
        self.engine.ended().or_else(|| self.drivers.iter().enumerate().find_map(dead))
    }

    fn unavailable(&self) -> Option<String> {
        if self.side == Side::Prefill {
            return None;
        }
        // As the ranks' coordinator sees it with its next exchange.
        let seen: Vec<_> = self.drivers.iter().map(Driver::snapshot).collect();
        nobody_up(&merge_peers(seen.iter().map(|rank| rank.targets.as_slice())))
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = self.engine.figures();
        for (rank, driver) in self.drivers.iter().enumerate() {
            let now = driver.snapshot();
            let mut put = |name, kind, help, extra: Option<(&'static str, String)>, value: f64| {
                let labels = [("rank", rank.to_string())].into_iter().chain(extra).collect();
                figures.push(Figure { name, help, kind, labels, value });
            };
            let (counter, gauge) = (FigureKind::Counter, FigureKind::Gauge);
            let open = now.open_rooms() as f64;
            put("sm120_transfer_open_rooms", gauge, "Rooms without an outcome.", None, open);
            let held = now.quarantined_rooms() as f64;
            put("sm120_transfer_quarantined_rooms", gauge, "Rooms that are over and not quiet.", None, held);
            let ready = now.peers.iter().filter(|peer| peer.ready).count() as f64;
            put("sm120_transfer_peers", gauge, "Connections whose other side fits.", None, ready);
            let bytes = match self.side {
                Side::Prefill => now.counters.sent_bytes,
                Side::Decode => now.counters.landed_bytes,
            };
            put("sm120_transfer_bytes_total", counter, "Page bytes sent or landed.", None, bytes as f64);
            let moving = now.moving.as_secs_f64();
            put("sm120_transfer_moving_seconds_total", counter, "Time with units under way.", None, moving);
            let stale = now.counters.stale_bytes as f64;
            put("sm120_transfer_stale_bytes_total", counter, "Page bytes of rooms not expected.", None, stale);
            let (matching, rooms) = (now.verified.matching as f64, now.verified.rooms as f64);
            put("sm120_transfer_rooms_compared_total", counter, "Rooms whose pages were compared.", None, rooms);
            put("sm120_transfer_rooms_matching_total", counter, "Rooms whose pages all match.", None, matching);
            for (kind, count) in now.errors.iter() {
                let label = Some(("kind", kind.name().to_owned()));
                put("sm120_transfer_errors_total", counter, "What peers sent that was dropped.", label, count as f64);
            }
        }
        figures.sort_by_key(|figure| figure.name);
        figures
    }
}
