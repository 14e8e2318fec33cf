//! Servers of a local deployment, children of this process that end with it.

use super::{DeploymentArgs, ExperimentError};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// For a server to listen: it may have to make its random model first.
const START: Duration = Duration::from_secs(300);
/// For an answer to a question about a server.
const ANSWER: Duration = Duration::from_secs(10);
/// For halves to find each other, and for pages to come back.
pub(super) const SETTLE: Duration = Duration::from_secs(30);

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts a role and waits until it listens.
    pub(super) fn start(role: &'static str, options: &[String]) -> Result<Self, ExperimentError> {
        let program = std::env::current_exe().map_err(ExperimentError::io("this program"))?;
        let words = std::iter::once(role.to_owned()).chain(options.iter().cloned()).map(OsString::from);
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(ExperimentError::io(role))?;
        let (found, address) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(Ok(address)) = line.strip_prefix("listening on http://").map(str::parse) {
                        // Only the first is waited for.
                        let _ = found.send(address);
                    }
                }
            });
        }
        match address.recv_timeout(START) {
            Ok(address) => Ok(Self { name: role, address, child }),
            Err(why) => {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                let why = if why == RecvTimeoutError::Timeout { "does not listen" } else { "ended before it listened" };
                Err(ExperimentError::Server(format!("{role} {}: {why}", options.join(" "))))
            }
        }
    }

    /// Whether its process is still there.
    pub(super) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Status and body of an answer, and how long it took.
    pub(super) fn get(&self, path: &str) -> std::io::Result<(u16, String, Duration)> {
        let start = Instant::now();
        let mut stream = TcpStream::connect_timeout(&self.address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other("expected a status line"))?;
        Ok((status, text, start.elapsed()))
    }

    /// What is not as before: pages that are not free, rooms that are open or held.
    pub(super) fn unaccounted(&self) -> Result<Vec<String>, ExperimentError> {
        let (_, text, _) = self.get("/metrics").map_err(ExperimentError::io(self.name))?;
        let sum = |name: &str| -> Result<f64, ExperimentError> {
            let values = text.lines().filter(|line| line.starts_with(name));
            let values: Vec<f64> = values.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
            match values.is_empty() {
                true => Err(ExperimentError::Server(format!("{}: no metric {name}", self.name))),
                false => Ok(values.iter().sum()),
            }
        };
        let mut wrong = Vec::new();
        for pool in ["compressed", "window", "request"] {
            let free = sum(&format!("sm120_pool_free_pages{{pool=\"{pool}\"}}"))?;
            let all = sum(&format!("sm120_pool_pages{{pool=\"{pool}\"}}"))?;
            if free != all {
                wrong.push(format!("{}: {free} of {all} {pool} pages", self.name));
            }
        }
        for rooms in ["sm120_transfer_open_rooms{", "sm120_transfer_quarantined_rooms{"] {
            let count = sum(rooms)?;
            if count != 0.0 {
                wrong.push(format!("{}: {count} {}", self.name, rooms.trim_end_matches('{')));
            }
        }
        Ok(wrong)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Router, decode, prefill.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) router: Server,
    pub(super) decode: Server,
    pub(super) prefill: Server,
}

impl Servers {
    /// Starts a deployment; `decode` are options of the decode server alone, `both` of both halves.
    pub(super) fn start(args: &DeploymentArgs, both: &[&str], decode: &[&str]) -> Result<Self, ExperimentError> {
        let control = control_address(args.tp)?.to_string();
        let verify: &[&str] = if args.verify_transfers { &["--verify-transfers"] } else { &[] };
        let half = |own: &[&str]| -> Vec<String> {
            options(args).into_iter().chain([both, verify, own].concat().into_iter().map(str::to_owned)).collect()
        };
        let prefill = Server::start("prefill", &half(&["--control", &control]))?;
        let decode = Server::start("decode", &half(&[&["--prefill", &control], decode].concat()))?;
        let target = decode.address.to_string();
        let router = Server::start("router", &["--port", "0", "--decode", &target].map(str::to_owned))?;
        let servers = Self { router, decode, prefill };
        let start = Instant::now();
        // One real token, by the way of all requests.
        while !matches!(servers.decode.get("/health_generate"), Ok((200, ..)))
            || !matches!(servers.router.get("/health"), Ok((200, ..)))
        {
            if start.elapsed() > SETTLE {
                return Err(ExperimentError::Server("the halves do not find each other".into()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(servers)
    }

    /// All of them.
    pub(super) fn all(&mut self) -> [&mut Server; 3] {
        [&mut self.router, &mut self.decode, &mut self.prefill]
    }
}

/// Options of every server with a model.
pub(super) fn options(args: &DeploymentArgs) -> Vec<String> {
    let tp = args.tp.to_string();
    ["--preset", &args.preset, "--tp", &tp, "--port", "0", "--context", "1024"].map(str::to_owned).to_vec()
}

/// An address at which `ranks` consecutive ports are free.
fn control_address(ranks: u32) -> Result<SocketAddr, ExperimentError> {
    for _ in 0..64 {
        let first = TcpListener::bind(("127.0.0.1", 0)).map_err(ExperimentError::io("a port"))?;
        let address = first.local_addr().map_err(ExperimentError::io("a port"))?;
        let next = |i| u16::try_from(i).ok().and_then(|i| address.port().checked_add(i));
        let rest: Option<Vec<_>> = (1..ranks).map(|i| TcpListener::bind(("127.0.0.1", next(i)?)).ok()).collect();
        if rest.is_some() {
            return Ok(address);
        }
    }
    Err(ExperimentError::Server(format!("no {ranks} free ports in a row")))
}
