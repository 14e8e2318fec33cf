//! `sm120 router` and `sm120 pd`: one address in front of decode servers, and a whole deployment on this machine with one command.

mod role;

use crate::halves::{HalfArgs, Transports};
use crate::serve::{self, ServeError};
use clap::Args;
use role::{Role, UNTIL_STDIN_CLOSES, failed};
use server::router::{Address, Balancer, Timing};
use server::serve::{Drained, serve as serve_site};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Options of `router`.
#[derive(Debug, Clone, Args)]
pub struct RouterArgs {
    /// A decode server; more than one share the requests.
    #[arg(long, required = true, value_delimiter = ',', value_name = "HOST:PORT")]
    pub decode: Vec<Address>,
    /// Address to listen at; there is no authentication, so think before you open it.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub host: IpAddr,
    /// Port to listen at; 0 takes a free one.
    #[arg(long, default_value_t = 8000, value_name = "N")]
    pub port: u16,
    /// Seconds for answers under way when the router is told to stop.
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_seconds: u64,
    /// What is logged to standard error: a level, or `target=level` pairs.
    #[arg(long, env = "SM120_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

/// Options of `pd`.
#[derive(Debug, Clone, Args)]
pub struct PdArgs {
    /// Of every half; --host and --port are the router's.
    #[command(flatten)]
    pub half: HalfArgs,
    /// Prefill servers.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub prefills: u32,
    /// Decode servers.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub decodes: u32,
}

/// Runs a router. It listens once it has looked at every server.
///
/// # Errors
/// What keeps it from starting.
pub fn router(args: &RouterArgs, say: impl FnMut(&str)) -> Result<ExitCode, ServeError> {
    serve::log_to_stderr(&args.log)?;
    route(args, bind(args.host, args.port)?, Duration::ZERO, say)
}

/// The address of a router: taken before anything else is started, so that one that is not free is said at once.
fn bind(host: IpAddr, port: u16) -> Result<TcpListener, ServeError> {
    let address = SocketAddr::new(host, port);
    let listener = TcpListener::bind(address).map_err(|source| ServeError::Listen { address, source })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Runs a router that waits for its servers to be well, for at most `patience`, before it answers.
fn route(
    args: &RouterArgs,
    listener: TcpListener,
    patience: Duration,
    mut say: impl FnMut(&str),
) -> Result<ExitCode, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let address = listener.local_addr()?;
    let listener = runtime.block_on(async { tokio::net::TcpListener::from_std(listener) })?;
    let balancer = Balancer::new(args.decode.clone(), Timing::default());
    for target in balancer.targets() {
        say(&format!("decode server {}", target.address()));
    }
    let drained = runtime.block_on(async {
        let stop = serve::signalled()?;
        if !balancer.settle(patience).await {
            tracing::warn!("not every decode server is well");
        }
        tokio::spawn(Arc::clone(&balancer).watch());
        say(&format!("listening on http://{address}"));
        Ok::<_, std::io::Error>(serve_site(listener, balancer, stop, Duration::from_secs(args.drain_seconds)).await)
    })?;
    runtime.shutdown_background();
    Ok(match drained {
        Drained::All => ExitCode::SUCCESS,
        Drained::Cut(answers) => {
            tracing::warn!(answers, "cut off");
            ExitCode::FAILURE
        }
    })
}

/// For servers that listen to find each other.
const SETTLE: Duration = Duration::from_secs(20);
/// For a server to end when it is told to, beyond the time for answers under way.
const END: Duration = Duration::from_secs(15);

/// `count` consecutive free ports.
pub(crate) fn free_ports(host: IpAddr, count: u32) -> Result<u16, ServeError> {
    for _ in 0..64 {
        let first = TcpListener::bind((host, 0))?;
        let port = first.local_addr()?.port();
        let next = (1..count).map(|i| u16::try_from(i).ok().and_then(|i| port.checked_add(i)));
        let rest: Option<Vec<_>> = next.map(|port| TcpListener::bind((host, port?)).ok()).collect();
        if rest.is_some() {
            return Ok(port);
        }
    }
    Err(failed("pd", format!("no {count} free ports in a row at {host}")))
}

/// The options of this command line that belong to every half.
fn shared_options(line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const OWN: [&str; 4] = ["--host", "--port", "--prefills", "--decodes"];
    let mut options = Vec::new();
    let mut skip = false;
    for word in line {
        let text = word.to_string_lossy();
        if std::mem::take(&mut skip) || text == UNTIL_STDIN_CLOSES {
            continue;
        }
        let own = OWN.iter().find(|own| text == **own || text.starts_with(&format!("{own}=")));
        match own {
            Some(own) => skip = text == *own,
            None => options.push(word),
        }
    }
    options
}

/// Runs a router, prefill and decode servers, each a process, until it is told to stop.
///
/// # Errors
/// A server that does not start, or ends again and again.
pub fn pd(
    args: &PdArgs,
    transports: Transports,
    line: impl Iterator<Item = OsString>,
    mut say: impl FnMut(&str),
) -> Result<ExitCode, ServeError> {
    serve::log_to_stderr(&args.half.serve.log)?;
    if args.half.serve.until_stdin_closes {
        serve::end_with_stdin()?;
    }
    args.half.check(transports)?;
    let listener = bind(args.half.serve.host, args.half.serve.port)?;
    let shared = shared_options(line);
    let half = |command: &str, own: &[String]| {
        let own = own.iter().map(OsString::from);
        [OsString::from(command)].into_iter().chain(shared.iter().cloned()).chain(own).collect::<Vec<_>>()
    };
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let host = args.half.data_host;
    let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
    let mut controls = Vec::new();
    for i in 0..args.prefills {
        let control = SocketAddr::new(host, free_ports(host, args.half.serve.model.tp)?).to_string();
        let own = words(&["--control", &control, "--host", "127.0.0.1", "--port", "0"]);
        prefills.push(Role::start(format!("prefill {i}"), half("prefill", &own))?);
        controls.push(control);
    }
    for i in 0..args.decodes {
        // A server that is started again is found under its old address.
        let port = free_ports(IpAddr::from([127, 0, 0, 1]), 1)?.to_string();
        let own = words(&["--prefill", &controls.join(","), "--host", "127.0.0.1", "--port", &port]);
        decodes.push(Role::start(format!("decode {i}"), half("decode", &own))?);
    }
    for role in prefills.iter().chain(&decodes) {
        say(&format!("{} at http://{}, process {}", role.name, role.address, role.id()));
    }
    let targets = decodes.iter().map(|role| role.address.parse()).collect::<Result<Vec<Address>, _>>();
    let stop = Arc::new(AtomicBool::new(false));
    let keeper = keep(prefills, decodes, Arc::clone(&stop), args.half.serve.drain_seconds)?;
    let front = RouterArgs {
        decode: targets.map_err(|error| failed("pd", error))?,
        host: args.half.serve.host,
        port: args.half.serve.port,
        drain_seconds: args.half.serve.drain_seconds,
        log: args.half.serve.log.clone(),
    };
    let served = route(&front, listener, SETTLE, say);
    stop.store(true, Ordering::Release);
    match (keeper.join(), served) {
        (Ok(Ok(())), served) => served,
        (Ok(Err(error)), _) => Err(error),
        (Err(_), _) => Err(failed("pd", "the supervisor has panicked")),
    }
}

/// A deployment of this machine that lives as long as this value.
pub struct Local(Option<Role>);

impl Local {
    /// Starts `sm120 pd` with these options, at a free port.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start(options: &[&str]) -> Result<Self, ServeError> {
        let line = ["pd", "--port", "0", "--log", "error"].iter().chain(options);
        Ok(Self(Some(Role::start("deployment".into(), line.map(OsString::from).collect())?)))
    }

    /// Where its prefill servers answer over HTTP, as it says.
    pub fn prefill_servers(&self) -> Vec<String> {
        let said = self.0.as_ref().map(Role::said);
        let address = |line: &String| {
            let (address, _) = line.strip_prefix("prefill ")?.split_once(" at http://")?.1.split_once(", process ")?;
            Some(address.to_owned())
        };
        said.unwrap_or_default().iter().filter_map(address).collect()
    }

    /// Where its router listens.
    pub fn url(&self) -> String {
        self.0.as_ref().map(|role| format!("http://{}", role.address)).unwrap_or_default()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        end(self.0.take().into_iter().collect(), END);
    }
}

/// Ends these together.
fn end(mut roles: Vec<Role>, patience: Duration) {
    roles.iter_mut().for_each(Role::tell);
    let deadline = Instant::now() + patience;
    roles.into_iter().for_each(|role| role.end(deadline));
}

/// Looks after the processes until it is told to stop, then ends them: decode servers first, for they ask the others.
fn keep(
    mut prefills: Vec<Role>,
    mut decodes: Vec<Role>,
    stop: Arc<AtomicBool>,
    drain_seconds: u64,
) -> Result<JoinHandle<Result<(), ServeError>>, ServeError> {
    let body = move || {
        let mut outcome = Ok(());
        let (_never, pause) = channel::<()>();
        while outcome.is_ok() && !stop.load(Ordering::Acquire) {
            outcome = prefills.iter_mut().chain(&mut decodes).try_for_each(Role::look_after);
            let Err(RecvTimeoutError::Timeout) = pause.recv_timeout(Duration::from_millis(100)) else { break };
        }
        // A router that was told to stop has finished its answers already.
        let mut patience = END;
        if let Err(error) = &outcome {
            tracing::error!(%error, "the deployment ends");
            serve::stop_self();
            patience += Duration::from_secs(drain_seconds);
        }
        end(decodes, patience);
        end(prefills, END);
        outcome
    };
    Ok(std::thread::Builder::new().name("supervisor".into()).spawn(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_router_stay_with_it() {
        let line = [
            "--until-stdin-closes",
            "--tp",
            "2",
            "--port",
            "9",
            "--host=::1",
            "--preset",
            "tiny",
            "--decodes=2",
            "--prefills",
            "1",
        ];
        let shared = shared_options(line.iter().map(OsString::from));
        assert_eq!(shared, ["--tp", "2", "--preset", "tiny"].map(OsString::from));
    }

    #[test]
    fn ports_in_a_row_are_free() {
        let host = IpAddr::from([127, 0, 0, 1]);
        let first = free_ports(host, 3).unwrap();
        for port in first..first + 3 {
            TcpListener::bind((host, port)).unwrap();
        }
    }
}
