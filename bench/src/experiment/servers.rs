//! Servers of a local deployment, children of this process that end with it.

use super::{DeploymentArgs, ExperimentError, stage};
use crate::deployment::free_ports;
use crate::probe;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
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
    options: Vec<String>,
}

impl Server {
    /// Starts a role and waits until it listens.
    pub(super) fn start(role: &'static str, options: &[String]) -> Result<Self, ExperimentError> {
        let program = std::env::current_exe().map_err(ExperimentError::io("this program"))?;
        let words = std::iter::once(role.to_owned()).chain(options.iter().cloned()).map(OsString::from);
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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
        let log = child.stderr.take().map(|log| std::thread::spawn(move || last_line(log)));
        match address.recv_timeout(START) {
            Ok(address) => Ok(Self { name: role, address, child, options: options.to_vec() }),
            Err(why) => {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                let why = match why {
                    RecvTimeoutError::Timeout => format!("does not listen within {START:?}"),
                    RecvTimeoutError::Disconnected => "ended before it listened".to_owned(),
                };
                let last = log.and_then(|log| log.join().ok()).unwrap_or_default();
                Err(ExperimentError::Server(format!("{role} {}: {why}; its last words: {last}", options.join(" "))))
            }
        }
    }

    /// Whether its process is still there.
    pub(super) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops its process or lets it go on.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), ExperimentError> {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // A child that nobody has waited for, so the number is nobody else's.
        let sent = process.map_or(Ok(()), |process| kill_process(process, signal));
        sent.map_err(|error| ExperimentError::io(self.name)(error.into()))
    }

    /// The next process is started without rules of faults.
    pub(super) fn without_faults(&mut self) {
        if let Some(at) = self.options.iter().position(|option| option == "--faults") {
            self.options.drain(at..at + 2);
        }
    }

    /// Ends its process without a word, if it has not ended, and starts another with the same options.
    pub(super) fn restart(&mut self) -> Result<(), ExperimentError> {
        self.kill()?;
        let options = self.options.clone();
        *self = Self::start(self.name, &options)?;
        Ok(())
    }

    /// Ends its process without a word.
    pub(super) fn kill(&mut self) -> Result<(), ExperimentError> {
        // It may have ended by itself.
        let _ = self.child.kill();
        self.child.wait().map(drop).map_err(ExperimentError::io(self.name))
    }

    /// Names of its threads that carry requests, sorted; empty where the system does not tell.
    pub(super) fn threads(&self) -> Vec<String> {
        let of_process = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten();
        let names = of_process.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        let carries =
            |name: &String| ["engine", "rank", "transfer", "pages-accept"].iter().any(|word| name.starts_with(word));
        let mut names: Vec<String> = names.map(|name| name.trim_end().to_owned()).filter(carries).collect();
        names.sort();
        names
    }

    /// Status and body of an answer, and how long it took.
    pub(super) fn get(&self, path: &str) -> std::io::Result<(u16, String, Duration)> {
        self.get_within(path, ANSWER)
    }

    /// The same, where an answer has to come sooner.
    pub(super) fn get_within(&self, path: &str, patience: Duration) -> std::io::Result<(u16, String, Duration)> {
        probe::get(self.address, path, patience)
    }

    /// What is not as before: pages that are neither free nor cached, rooms that are open or held.
    pub(super) fn unaccounted(&self) -> Result<Vec<String>, ExperimentError> {
        let (_, text, _) = self.get("/metrics").map_err(ExperimentError::io(self.name))?;
        let sum = |name: &str| probe::sum(&text, name).map_err(ExperimentError::io(self.name));
        let mut wrong = Vec::new();
        for pool in ["compressed", "window", "request"] {
            let free = sum(&format!("sm120_pool_free_pages{{pool=\"{pool}\"}}"))?;
            let all = sum(&format!("sm120_pool_pages{{pool=\"{pool}\"}}"))?;
            let cached = sum(&format!("sm120_pool_cached_pages{{pool=\"{pool}\"}}"))?;
            if free + cached != all {
                wrong.push(format!("{}: {free} of {all} {pool} pages and {cached} that are cached", self.name));
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

/// What stands in the last line, once there are no more.
fn last_line(log: impl Read) -> String {
    BufReader::new(log).lines().map_while(Result::ok).last().unwrap_or_default()
}

/// Status and body of an answer, or why there is none.
fn in_words(answer: std::io::Result<(u16, String, Duration)>) -> String {
    match answer {
        Ok((status, text, _)) => {
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            format!("{status} {}", body.split_whitespace().collect::<Vec<_>>().join(" "))
        }
        Err(error) => error.to_string(),
    }
}

/// Router, decode, prefill.
#[derive(Debug)]
pub(super) struct Servers {
    /// Control address of the prefill server.
    pub(super) control: String,
    pub(super) router: Server,
    pub(super) decode: Server,
    pub(super) prefill: Server,
}

/// Options beyond those of the deployment.
#[derive(Debug, Clone, Default)]
pub(super) struct Extra {
    /// Of both halves.
    pub(super) both: Vec<String>,
    pub(super) prefill: Vec<String>,
    pub(super) decode: Vec<String>,
    /// Tokens of a text, where these are not as many as usual.
    pub(super) context: Option<u32>,
}

/// Tokens of a text in most experiments.
const CONTEXT: u32 = 1024;

impl Servers {
    /// Starts a deployment.
    pub(super) fn start(args: &DeploymentArgs, extra: Extra) -> Result<Self, ExperimentError> {
        let control = free_address(args.tp)?.to_string();
        // A server that is started again is found under its old address.
        let port = free_address(1)?.port().to_string();
        let verify: &[&str] = if args.verify_transfers { &["--verify-transfers"] } else { &[] };
        let transport = clap_word(args.transport);
        let half = |own: &[&str], more: Vec<String>| -> Vec<String> {
            let words = ["--transport", &transport].into_iter().chain(own.iter().chain(verify).copied());
            let words = words.map(str::to_owned);
            options(args, extra.context.unwrap_or(CONTEXT))
                .into_iter()
                .chain(words)
                .chain(extra.both.iter().cloned())
                .chain(more)
                .collect()
        };
        stage("a prefill server, a decode server, a router: starting");
        let prefill = Server::start("prefill", &half(&["--port", "0", "--control", &control], extra.prefill.clone()))?;
        let decode = Server::start("decode", &half(&["--port", &port, "--prefill", &control], extra.decode.clone()))?;
        let target = decode.address.to_string();
        let router = Server::start("router", &["--port", "0", "--decode", &target].map(str::to_owned))?;
        let servers = Self { control, router, decode, prefill };
        servers.await_answers()?;
        Ok(servers)
    }

    /// Waits for one real token, by the way of all requests.
    pub(super) fn await_answers(&self) -> Result<Duration, ExperimentError> {
        let start = Instant::now();
        while !matches!(self.decode.get("/health_generate"), Ok((200, ..)))
            || !matches!(self.router.get("/health"), Ok((200, ..)))
        {
            if start.elapsed() > SETTLE {
                let ask = |server: &Server, path| format!("{} {path}: {}", server.name, in_words(server.get(path)));
                return Err(ExperimentError::Server(format!(
                    "no answer by way of router, decode and prefill server within {SETTLE:?}; {}; {}; {}",
                    ask(&self.router, "/health"),
                    ask(&self.decode, "/health"),
                    ask(&self.prefill, "/health"),
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(start.elapsed())
    }

    /// Waits until every page and room is back, for at most [`SETTLE`]; what is not, and how long it took.
    pub(super) fn settle(&self) -> Result<(Vec<String>, Duration), ExperimentError> {
        let start = Instant::now();
        loop {
            let wrong = [self.decode.unaccounted()?, self.prefill.unaccounted()?].concat();
            if wrong.is_empty() || start.elapsed() > SETTLE {
                return Ok((wrong, start.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// All of them.
    pub(super) fn all(&mut self) -> [&mut Server; 3] {
        [&mut self.router, &mut self.decode, &mut self.prefill]
    }
}

/// Options of every server with a model.
pub(super) fn options(args: &DeploymentArgs, context: u32) -> Vec<String> {
    let (tp, schedule, context) = (args.tp.to_string(), clap_word(args.schedule), context.to_string());
    let words = ["--preset", &args.preset, "--tp", &tp, "--schedule", &schedule, "--context", &context];
    words.map(str::to_owned).to_vec()
}

/// A choice as the command line has it.
pub(super) fn clap_word(choice: impl clap::ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// An address at which `ports` consecutive ports are free.
fn free_address(ports: u32) -> Result<SocketAddr, ExperimentError> {
    let host = IpAddr::from([127, 0, 0, 1]);
    let port = free_ports(host, ports).map_err(|error| ExperimentError::Server(error.to_string()))?;
    Ok(SocketAddr::new(host, port))
}
