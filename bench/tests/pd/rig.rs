//! Servers as processes, and a client that tells an answer from half an answer.

use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Beyond this something hangs. Much more than the 2 s of silence or the 5 s of a handshake after which requests fail.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Where the random checkpoint lies; removed with the operating system's temporary files.
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let mut make = Command::new(program());
    make.current_dir(folder.path()).args(["make-checkpoint", "tiny", "--preset", "tiny", "--store", "fp32"]);
    assert!(make.output().expect("the command starts").status.success());
    folder
});

/// The command: this build's, or one that has more transports, named by an absolute path.
fn program() -> OsString {
    std::env::var_os("SM120_TEST_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_sm120").into())
}

/// One deployment at a time: peers are lost after 2 s of silence, which many processes on few cores would not keep.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A free port, which the next to listen there has to itself for all practical purposes.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A server that is killed with its test.
pub(crate) struct Process {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::run(Command::new(program()), options)
    }

    /// As a shell starts it: the leader of a process group, to which Ctrl-C goes.
    pub(crate) fn lead(options: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.process_group(0);
        Self::run(command, options)
    }

    fn run(mut command: Command, options: &[&str]) -> Self {
        // What a server logs appears when its test fails; nobody has to read it while it runs.
        command.current_dir(FOLDER.path()).args(options).env("SM120_LOG", "warn").stdout(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let output = child.stdout.take().expect("a pipe");
        let (found, address) = channel();
        let said = Arc::new(Mutex::new(Vec::new()));
        let says = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                says.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
                if let Some(Ok(address)) = line.strip_prefix("listening on http://").map(str::parse) {
                    // Only the first is waited for.
                    let _ = found.send(address);
                }
            }
        });
        let address = address.recv_timeout(PATIENCE);
        if address.is_err() {
            let _ = child.kill();
        }
        Self {
            child,
            said,
            address: address.unwrap_or_else(|_| panic!("{options:?}: it does not say where it listens")),
        }
    }

    /// A server of one process or a half; every text is computed anew.
    pub(crate) fn half(role: &str, options: &[&str]) -> Self {
        Self::start(&Self::words(role, options).iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Options of such a server, whose pools are full when nothing runs.
    pub(crate) fn words(role: &str, options: &[&str]) -> Vec<String> {
        Self::words_of(role, &[&["--no-prefix-cache"], options].concat())
    }

    /// A server that keeps the beginnings of texts.
    pub(crate) fn caching(role: &str, options: &[&str]) -> Self {
        Self::start(&Self::words_of(role, options).iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn words_of(role: &str, options: &[&str]) -> Vec<String> {
        let model = ["--model", "tiny", "--device", "host", "--context", "900"];
        let transport = std::env::var("SM120_TEST_TRANSPORT");
        let transport = match &transport {
            Ok(transport) if role != "serve" => &["--transport", transport.as_str()][..],
            Ok(_) | Err(_) => &[],
        };
        [&[role], &model[..], transport, options].concat().into_iter().map(str::to_owned).collect()
    }

    /// What it has printed so far.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Until `/health` is 503 with a reason that contains all of these.
    pub(crate) fn await_unwell(&self, reasons: &[&str]) {
        until("it is not well", || match get(self.address, "/health") {
            Ok((503, body)) if reasons.iter().all(|reason| body.contains(reason)) => Ok(()),
            other => Err(other),
        });
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        assert!(kill.expect("a shell").success());
    }

    /// To its whole process group.
    pub(crate) fn signal_group(&self, signal: rustix::process::Signal) {
        let group = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process");
        rustix::process::kill_process_group(group, signal).expect("a group of ours");
    }

    /// Waits for its end; its status.
    pub(crate) fn end(&mut self) -> Option<i32> {
        until("it ends", || self.child.try_wait().expect("a child of ours").map(drop).ok_or(()));
        self.child.wait().expect("a child of ours").code()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// Sum of the samples of a metric whose labels contain `label`.
    pub(crate) fn metric(&self, name: &str, label: &str) -> u64 {
        let (status, text) = get(self.address, "/metrics").expect("metrics");
        assert_eq!(status, 200, "{text}");
        let named = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let samples = text.lines().filter(named).filter(|line| line.contains(label));
        let values: Vec<f64> = samples.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
        assert!(!values.is_empty(), "{name} with {label} is missing in\n{text}");
        values.iter().sum::<f64>() as u64
    }

    pub(crate) fn open_rooms(&self) -> u64 {
        self.metric("sm120_transfer_open_rooms", "")
    }

    /// Pools of which a page is neither free nor kept in the prefix cache.
    pub(crate) fn busy_pools(&self) -> Vec<String> {
        let pages = |name: &str, pool: &str| self.metric(&format!("sm120_pool_{name}pages"), pool);
        ["compressed", "window", "request"]
            .iter()
            .map(|pool| (pool, pages("free_", pool) + pages("cached_", pool), pages("", pool)))
            .filter(|(_, back, all)| back != all)
            .map(|(pool, back, all)| format!("{pool}: {back} of {all} pages are back"))
            .collect()
    }

    /// Until nothing runs, no room is open or held, and every page of every pool is back.
    pub(crate) fn await_idle(&self, what: &str) {
        let busy = || {
            let mut busy = self.busy_pools();
            for name in ["sm120_transfer_open_rooms", "sm120_transfer_quarantined_rooms"] {
                match self.metric(name, "") {
                    0 => {}
                    rooms => busy.push(format!("{name} {rooms}")),
                }
            }
            if busy.is_empty() { Ok(()) } else { Err(busy) }
        };
        until(what, busy);
    }

    pub(crate) fn await_well(&self, what: &str) {
        until(what, || match get(self.address, "/health") {
            Ok((200, _)) => Ok(()),
            other => Err(other),
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already where the test ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Servers that a deployment has started, as it names them; killed in the end if that is not theirs.
pub(crate) struct Children(pub(crate) Vec<Server>);

pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    process: u32,
}

impl Children {
    pub(crate) fn of(deployment: &Process) -> Self {
        let server = |line: &String| {
            let (name, rest) = line.split_once(" at http://")?;
            let (address, process) = rest.split_once(", process ")?;
            Some(Server { name: name.into(), address: address.parse().ok()?, process: process.parse().ok()? })
        };
        Self(deployment.said().iter().filter_map(server).collect())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for server in self.0.iter().filter(|server| TcpStream::connect(server.address).is_ok()) {
            let _ = Command::new("sh").args(["-c", &format!("kill -KILL {}", server.process)]).status();
        }
    }
}

/// A router in front of a decode server that asks a prefill server.
pub(crate) struct Deployment {
    pub(crate) prefill: Process,
    pub(crate) decode: Process,
    pub(crate) router: Process,
    pub(crate) control: SocketAddr,
}

impl Deployment {
    pub(crate) fn start() -> Self {
        let control = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let prefill = Self::prefill(control);
        let decode = Self::decode(control, 0);
        let router = Process::start(&["router", "--port", "0", "--decode", &decode.address.to_string()]);
        router.await_well("the router sees the decode server");
        let deployment = Self { prefill, decode, router, control };
        deployment.await_answers("the halves find each other");
        deployment
    }

    pub(crate) fn prefill(control: SocketAddr) -> Process {
        Process::half("prefill", &["--port", "0", "--verify-transfers", "--control", &control.to_string()])
    }

    pub(crate) fn decode(control: SocketAddr, port: u16) -> Process {
        Self::decode_of(&[control], port)
    }

    pub(crate) fn decode_of(controls: &[SocketAddr], port: u16) -> Process {
        let port = port.to_string();
        let controls = controls.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Process::half("decode", &["--port", &port, "--verify-transfers", "--prefill", &controls])
    }

    /// Asks, in a thread of its own.
    pub(crate) fn ask(&self, request: &Text) -> Asked {
        let (address, request) = (self.router.address, request.clone());
        std::thread::spawn(move || ask(address, &request))
    }

    /// Until a text is answered again.
    pub(crate) fn await_answers(&self, what: &str) {
        until(what, || ask(self.router.address, &Text::new(77, 3, 2)).map(drop));
    }

    /// Until a decode server has found its prefill server.
    pub(crate) fn await_answer(decode: SocketAddr) {
        until("the halves find each other", || ask(decode, &Text::new(77, 3, 2)).map(drop));
    }

    /// Nothing is left of what ran, and the next request is answered.
    pub(crate) fn await_calm(&self) {
        self.decode.await_idle("decode is idle");
        self.prefill.await_idle("prefill is idle");
        for process in [&self.router, &self.decode, &self.prefill] {
            process.await_well("health is good");
            assert_eq!(get(process.address, "/live").expect("it lives").0, 200);
        }
        self.await_answers("an answer afterwards");
    }
}

pub(crate) type Asked = std::thread::JoinHandle<Result<Vec<u64>, String>>;

/// A request of random tokens.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    pub(crate) prompt: Vec<u64>,
    pub(crate) new_tokens: usize,
    pub(crate) temperature: f64,
    pub(crate) stream: bool,
}

impl Text {
    pub(crate) fn new(seed: u64, length: usize, new_tokens: usize) -> Self {
        let mut random = Random(seed);
        let prompt = (0..length).map(|_| 3 + random.below(200)).collect();
        Self { prompt, new_tokens, temperature: 0.0, stream: false }
    }

    pub(crate) fn streamed(self) -> Self {
        Self { stream: true, ..self }
    }

    pub(crate) fn body(&self) -> Value {
        json!({
            "prompt": self.prompt, "max_tokens": self.new_tokens, "temperature": self.temperature, "seed": 11,
            "ignore_eos": true, "return_token_ids": true, "stream": self.stream,
        })
    }
}

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Repeats until it succeeds; what it said last when that takes too long.
pub(crate) fn until<E: Debug>(what: &str, mut attempt: impl FnMut() -> Result<(), E>) {
    let start = Instant::now();
    while let Err(why) = attempt() {
        assert!(start.elapsed() < PATIENCE, "{what}: {why:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A connection to which a request has been written.
pub(crate) fn open(address: SocketAddr, request: &Text) -> std::io::Result<TcpStream> {
    let body = request.body().to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: ";
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes())?;
    Ok(stream)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())?;
    read(stream)
}

/// Status and body, which must be as long as its headers or its chunks say.
fn read(mut stream: impl Read) -> std::io::Result<(u16, String)> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let cut = || std::io::Error::other("the answer breaks off");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(cut)?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(cut)?;
    let mut rest = &bytes[end + 4..];
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        loop {
            let line = rest.windows(2).position(|two| two == b"\r\n").ok_or_else(cut)?;
            let size = std::str::from_utf8(&rest[..line]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
            let (from, size) = (line + 2, size.ok_or_else(cut)?);
            body.extend_from_slice(rest.get(from..from + size).ok_or_else(cut)?);
            rest = rest.get(from + size + 2..).ok_or_else(cut)?;
            if size == 0 {
                break;
            }
        }
    } else {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        body.extend_from_slice(rest.get(..length.ok_or_else(cut)?).ok_or_else(cut)?);
    }
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Tokens of an answer, or the reason that its client is given.
///
/// # Panics
/// Nothing comes for [`PATIENCE`]; an answer of 200 that is too short or has no end; a failure without a reason.
pub(crate) fn ask(address: SocketAddr, request: &Text) -> Result<Vec<u64>, String> {
    // A port at which nobody listens is a reason too.
    let stream = open(address, request).map_err(|error| error.to_string())?;
    let (status, text) = read(stream).unwrap_or_else(|error| panic!("no whole answer: {error}"));
    let reason = |value: &Value| {
        let message = value["error"]["message"].as_str()?;
        assert!(!message.is_empty(), "a failure without a reason: {text}");
        Some(message.to_owned())
    };
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    if status != 200 {
        let message = reason(&parse(&text)).unwrap_or_else(|| panic!("{status} without a reason: {text}"));
        return Err(format!("{status}: {message}"));
    }
    let events: Vec<Value> = match request.stream {
        true => text.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|l| *l != "[DONE]").map(parse).collect(),
        false => vec![parse(&text)],
    };
    if let Some(message) = events.iter().find_map(reason) {
        return Err(message);
    }
    let ids = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array()).flatten();
    let tokens: Vec<u64> = ids.map(|id| id.as_u64().expect("a token")).collect();
    assert_eq!(tokens.len(), request.new_tokens, "200 with a short answer and no reason: {text}");
    assert!(!request.stream || text.contains("data: [DONE]"), "a stream without an end: {text}");
    Ok(tokens)
}

/// Texts and what a server of one process makes of them.
pub(crate) fn expected(texts: &[Text]) -> Vec<Vec<u64>> {
    let server = Process::half("serve", &["--port", "0"]);
    texts.iter().map(|text| ask(server.address, text).expect("a server of one process answers")).collect()
}
