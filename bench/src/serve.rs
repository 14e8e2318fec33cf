//! `sm120 serve`: one process that answers over HTTP.

use crate::serving::{ModelArgs, Serving, ServingError};
use clap::Args;
use engine::checkpoint::Checkpoint;
use engine::engine::{Engine, EngineError, EngineThread};
use engine::ids::TokenId;
use engine::scheduler::AddError;
use engine::sequence::Request;
use engine::step::Sampling;
use engine::tokenizer::{Tokenizer, TokenizerError};
use server::api::Served;
use server::backend::{Backend, EngineBackend};
use server::http::{App, Limits};
use server::serve::{Drained, serve};
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use transfer::fault::Faults;
use transfer::transport::TransportError;

/// Time between the end of the engine and that of the process, in which probes read why.
const LINGER: Duration = Duration::from_secs(2);
/// For the engine to end when the server has.
const ENGINE_END: Duration = Duration::from_secs(10);

/// Options of `serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Address to listen at; there is no authentication, so think before you open it.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub host: IpAddr,
    /// Port to listen at; 0 takes a free one.
    #[arg(long, default_value_t = 8000, value_name = "N")]
    pub port: u16,
    /// Tokens of a text at most, prompt included; default: 4096, or the model's positions if they are fewer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub context: Option<u32>,
    /// Name of the model in requests; default: that of the preset or the folder.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Texts that wait beside those that run; more are refused with 429.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub max_queue: u32,
    /// MiB of a body at most.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub body_mib: u32,
    /// Connections at most; more are closed.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,
    /// Seconds for answers under way when the server is told to stop; then they are cut off.
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_seconds: u64,
    /// What is logged to standard error: a level, or `target=level` pairs.
    #[arg(long, env = "SM120_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// Faults to inject, for tests: rules `point[:name]=fault[(number)][@probability or #occurrence]`, separated by `;`, such as
    /// `seed=7; landing=delay(5)@0.01; http:write=stall(500)#3`. A word that does not exist is answered by those that do.
    #[arg(long, env = "SM120_FAULTS", default_value = "", value_name = "RULES", hide_default_value = true)]
    pub faults: String,
    /// Stop, as by a signal, when standard input ends: a server of a process that may be killed.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Why there is no server.
#[derive(Debug, Error)]
pub enum ServeError {
    /// No engine.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// Tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The first token failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no room for a token.
    #[error(transparent)]
    Refused(#[from] AddError),
    /// The address is taken, or not ours.
    #[error("cannot listen at {address}: {source}; see --host and --port")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A thread, a signal handler.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Rules of faults that do not parse.
    #[error("--faults: {0}")]
    Faults(String),
    /// What carries pages is not there.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Times that contradict each other.
    #[error("{0}")]
    Times(String),
    /// A server of a deployment.
    #[error("{0}")]
    Deployment(String),
    /// A filter that does not parse.
    #[error("--log: expected a filter such as `info` or `server=debug`, got `{0}`")]
    Log(String),
}

/// Why a server stops.
enum Stopped {
    Told,
    EngineEnded(String),
}

/// What answers, and what is to be said about it.
pub struct Started {
    /// Who computes, as HTTP sees it.
    pub backend: Arc<dyn Backend>,
    /// The engine in it.
    pub engine: EngineBackend,
    /// What requests need to know.
    pub served: Served,
    /// Lines for the operator.
    pub lines: Vec<String>,
}

/// Logs to standard error, in colours on a terminal alone and without NO_COLOR; where another logger is there, that one decides.
///
/// # Errors
/// A filter that does not parse.
pub fn log_to_stderr(filter: &str) -> Result<(), ServeError> {
    let parsed = tracing_subscriber::EnvFilter::try_new(filter).map_err(|_| ServeError::Log(filter.to_owned()))?;
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let log = tracing_subscriber::fmt().with_env_filter(parsed).with_ansi(colours).with_writer(std::io::stderr);
    // Whoever read standard error may be gone; to complain of that there would be a panic.
    let _ = log.log_internal_errors(false).try_init();
    Ok(())
}

/// Resolves at SIGINT or SIGTERM; a second one ends the process at once.
///
/// # Errors
/// The handlers cannot be set.
pub fn signalled() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        told(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping: answers under way are finished first; a second signal ends at once");
        tokio::spawn(async move {
            let code = told(&mut interrupt, &mut terminate).await;
            tracing::warn!("ended at once");
            std::process::exit(code);
        });
    })
}

/// Stops this process once nobody can write to its standard input any more. Before it listens that ends it at once.
///
/// # Errors
/// No thread.
pub fn end_with_stdin() -> std::io::Result<()> {
    let wait = || {
        // What comes is of no interest, and an input that cannot be read has ended too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        tracing::warn!("standard input has ended");
        stop_self();
    };
    std::thread::Builder::new().name("stdin".into()).spawn(wait).map(drop)
}

/// Tells this process to stop, as an operator would.
pub fn stop_self() {
    // The process is there.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}

/// Serves until it is told to stop or cannot go on. The process ends with 0 when every answer was finished, 1 when some were cut
/// off at the deadline, 3 when the engine ended by itself.
///
/// # Errors
/// What keeps it from starting.
pub fn run(args: &ServeArgs, quiet: bool, say: impl FnMut(&str)) -> Result<ExitCode, ServeError> {
    run_with(args, say, |args| start(args, quiet))
}

/// [`run`] with another engine behind it.
///
/// # Errors
/// What keeps it from starting.
pub fn run_with(
    args: &ServeArgs,
    mut say: impl FnMut(&str),
    start: impl FnOnce(&ServeArgs) -> Result<Started, ServeError>,
) -> Result<ExitCode, ServeError> {
    log_to_stderr(&args.log)?;
    if args.until_stdin_closes {
        end_with_stdin()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // The port first: weights may take minutes.
    let address = SocketAddr::new(args.host, args.port);
    let listener =
        runtime.block_on(TcpListener::bind(address)).map_err(|source| ServeError::Listen { address, source })?;
    let address = listener.local_addr()?;
    let Started { backend, engine, served, lines } = start(args)?;
    let pools = engine.engine().snapshot();
    let limits = Limits {
        in_flight: (args.model.max_running + args.max_queue) as usize,
        body_bytes: (args.body_mib as usize) << 20,
        connections: args.connections as usize,
        ..Limits::default()
    };
    for line in lines {
        say(&line);
    }
    say(&format!(
        "pools: {} compressed pages, {} window pages, {} rings",
        pools.compressed.pages, pools.window.pages, pools.requests.pages
    ));
    say(&format!(
        "limits: {} tokens of context, {} texts run, {} more wait",
        served.context, args.model.max_running, args.max_queue
    ));
    let app = App::new(Arc::clone(&backend), served, limits).with_faults(Arc::new(args.faults()?));
    let app = Arc::new(app);
    let (why, stopped) = oneshot::channel();
    let drain = Duration::from_secs(args.drain_seconds);
    let drained = runtime.block_on(async {
        let told = signalled()?;
        say(&format!("listening on http://{address}"));
        let watched = Arc::clone(&backend);
        let stop = async move {
            let reason = tokio::select! {
                () = told => Stopped::Told,
                reason = engine_end(&*watched) => Stopped::EngineEnded(reason),
            };
            if let Stopped::EngineEnded(reason) = &reason {
                tracing::error!(%reason, "the engine has ended");
                tokio::time::sleep(LINGER).await;
            }
            // The receiver is read below.
            let _ = why.send(reason);
        };
        Ok::<_, std::io::Error>(serve(listener, Arc::clone(&app), stop, drain).await)
    })?;
    drop((app, engine));
    let ended = end(backend);
    runtime.shutdown_background();
    Ok(match (runtime_verdict(stopped), drained) {
        (Stopped::EngineEnded(_), _) => ExitCode::from(3),
        (Stopped::Told, Drained::Cut(texts)) => {
            tracing::warn!(texts, "cut off");
            ended.unwrap_or(ExitCode::FAILURE)
        }
        (Stopped::Told, Drained::All) => {
            tracing::info!("every answer was finished");
            ended.unwrap_or(ExitCode::SUCCESS)
        }
    })
}

fn runtime_verdict(stopped: oneshot::Receiver<Stopped>) -> Stopped {
    // Without a word the server was told to stop and nobody could say so any more.
    stopped.blocking_recv().unwrap_or(Stopped::Told)
}

impl ServeArgs {
    /// What is to go wrong.
    ///
    /// # Errors
    /// Rules that do not parse; the message names what there is.
    pub fn faults(&self) -> Result<Faults, ServeError> {
        Faults::parse(&self.faults).map_err(|error| ServeError::Faults(error.to_string()))
    }

    /// What requests need to know about a checkpoint that is served.
    ///
    /// # Errors
    /// A tokenizer that cannot be read.
    pub fn served(&self, checkpoint: &Checkpoint) -> Result<Served, ServeError> {
        let config = checkpoint.config();
        let tokenizer = Tokenizer::open(checkpoint.dir(), config)?;
        let context = self.context.unwrap_or(config.max_position.min(4096));
        let folder = self.model.model.as_ref().and_then(|dir| dir.canonicalize().ok());
        let folder = folder.and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
        let name = self.served_model_name.clone().or(folder).unwrap_or_else(|| self.model.preset.clone());
        Ok(Served {
            name,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            tokenizer,
            vocab_size: config.vocab_size,
            context,
            eos: config.eos_ids.iter().map(|&id| TokenId(id)).collect(),
            max_prompts: (self.model.max_running + self.max_queue) as usize,
        })
    }
}

/// An engine that does everything itself.
fn start(args: &ServeArgs, quiet: bool) -> Result<Started, ServeError> {
    let checkpoint = args.model.checkpoint()?;
    let served = args.served(&checkpoint)?;
    let faults = Arc::new(args.faults()?);
    let Serving { mut engine, setup, bell, .. } =
        args.model.start_with_faults(checkpoint, served.context, quiet, faults)?;
    warm_up(&mut engine, served.eos[0])?;
    let engine = EngineBackend::new(EngineThread::spawn_with(Box::new(engine), bell)?);
    let lines = vec![format!("model {}: {}", served.name, setup.headline())];
    Ok(Started { backend: Arc::new(engine.clone()), engine, served, lines })
}

/// One token through everything: what loads at first use is loaded, and an engine that cannot run is found before it is asked.
fn warm_up(engine: &mut Engine, token: TokenId) -> Result<(), ServeError> {
    engine.add(Request { prompt: vec![token], max_tokens: 2, stop: Vec::new(), sampling: Sampling::GREEDY })?;
    let mut events = Vec::new();
    while engine.has_work() {
        engine.turn(&mut events)?;
    }
    Ok(())
}

/// Waits for a signal; the status of a process that it ends.
async fn told(interrupt: &mut Signal, terminate: &mut Signal) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => 128 + SignalKind::interrupt().as_raw_value(),
        _ = terminate.recv() => 128 + SignalKind::terminate().as_raw_value(),
    }
}

/// Waits for the end of the engine, a panic included.
async fn engine_end(backend: &dyn Backend) -> String {
    let mut look = tokio::time::interval(Duration::from_millis(100));
    loop {
        look.tick().await;
        if let Some(why) = backend.ended() {
            return why;
        }
    }
}

/// Ends the engine, unless it hangs: then the status with which to end without it.
fn end(backend: Arc<dyn Backend>) -> Option<ExitCode> {
    let (done, ended) = std::sync::mpsc::channel();
    let ender = move || {
        drop(backend);
        // Nobody listens when it took too long.
        let _ = done.send(());
    };
    let started = std::thread::Builder::new().name("end".into()).spawn(ender);
    if started.is_err() || ended.recv_timeout(ENGINE_END).is_err() {
        tracing::error!("the engine does not end");
        return Some(ExitCode::FAILURE);
    }
    None
}
