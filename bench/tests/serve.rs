//! `sm120 serve` as a process: it says where it listens, finishes what it has when it is told to stop, and says why it cannot.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

/// Where the random checkpoint lies; removed with the operating system's temporary files.
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));

fn command(options: &[&str]) -> Command {
    // Only one process makes the checkpoint.
    static MADE: LazyLock<()> = LazyLock::new(|| {
        let mut make = Command::new(env!("CARGO_BIN_EXE_sm120"));
        make.current_dir(FOLDER.path()).args(["make-checkpoint", "tiny", "--preset", "tiny", "--store", "fp32"]);
        assert!(make.output().expect("the command starts").status.success());
    });
    LazyLock::force(&MADE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sm120"));
    command.current_dir(FOLDER.path()).args(["serve", "--model", "tiny", "--device", "host"]).args(options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that is killed with its test.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(options: &[&str]) -> Self {
        let mut child = command(&[&["--port", "0"], options].concat()).spawn().expect("the command starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("listening on http://")?.parse().ok());
        Self { child, address: address.expect("it says where it listens") }
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        assert!(kill.expect("a shell").success());
    }

    /// Status and what was logged.
    fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut log).expect("text");
        (self.child.wait().expect("it ends").code(), log)
    }

    /// A long text, of which the first event has been read.
    fn story(&self) -> BufReader<TcpStream> {
        let body = r#"{"prompt": "a story", "max_tokens": 1500, "ignore_eos": true, "stream": true}"#;
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).expect("it reads");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).expect("an answer") > 0, "an event");
        }
        reader
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.child.kill();
    }
}

#[test]
fn a_signal_drains() {
    let server = Process::start(&[]);
    let mut story = server.story();
    server.signal("TERM");
    let mut rest = String::new();
    story.read_to_string(&mut rest).expect("the whole answer");
    assert!(rest.contains("data: [DONE]\n\n"), "{}", &rest[rest.len().saturating_sub(300)..]);
    let events = rest.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    assert_eq!(events.filter(|event| event["choices"][0]["finish_reason"] == "length").count(), 1);
    assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("every answer was finished"), "{log}");
}

#[test]
fn a_deadline_cuts_off() {
    let server = Process::start(&["--drain-seconds", "0"]);
    let mut story = server.story();
    server.signal("INT");
    let mut rest = String::new();
    // A reset is an end too.
    let _ = story.read_to_string(&mut rest);
    assert!(!rest.contains("[DONE]"));
    let (code, log) = server.end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("cut off"), "{log}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let server = Process::start(&["--drain-seconds", "86400"]);
    let story = server.story();
    server.signal("TERM");
    while TcpStream::connect(server.address).is_ok() {
        std::thread::yield_now();
    }
    server.signal("TERM");
    let (code, log) = server.end();
    assert_eq!(code, Some(128 + 15), "{log}");
    drop(story);
}

#[test]
fn what_does_not_work_is_said() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let said = |options: &[&str]| {
        let out = command(options).output().expect("the command starts");
        assert_eq!(out.status.code(), Some(2));
        String::from_utf8(out.stderr).expect("text")
    };
    let text = said(&["--port", &port]);
    assert!(text.contains(&format!("cannot listen at 127.0.0.1:{port}: Address already in use")), "{text}");
    assert!(text.contains("see --host and --port") && !text.contains('\x1b'), "{text}");
    let text = said(&["--port", "0", "--cache-bytes", "1KiB"]);
    assert!(text.contains("--cache-bytes: expected at least ") && text.contains("got 1024 B"), "{text}");
    let text = said(&["--port", "0", "--host-cache", "64MiB", "--no-prefix-cache"]);
    assert!(text.contains("--host-cache: expected the prefix cache on top of it, got --no-prefix-cache"), "{text}");
    let text = said(&["--port", "0", "--log", "a=b=c"]);
    assert!(text.contains("--log: expected a filter"), "{text}");
    let text = said(&["--port", "0", "--context", "5000"]);
    assert!(text.contains("expected at most 4096 tokens"), "{text}");
}

/// Neither half is started for an address that is taken.
#[test]
fn a_deployment_takes_its_address_first() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let mut pd = Command::new(env!("CARGO_BIN_EXE_sm120"));
    let out =
        pd.current_dir(FOLDER.path()).args(["pd", "--model", "nowhere", "--port", &port]).output().expect("starts");
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(log.contains(&format!("cannot listen at 127.0.0.1:{port}")), "{log}");
    // A half that does start says under its own name why it does not go on.
    let mut pd = Command::new(env!("CARGO_BIN_EXE_sm120"));
    let out = pd.current_dir(FOLDER.path()).args(["pd", "--model", "nowhere", "--port", "0"]).output().expect("starts");
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(log.lines().any(|line| line.starts_with("prefill 0: sm120: ") && line.contains("nowhere")), "{log}");
    assert!(log.contains("prefill 0: ended before it listened"), "{log}");
}

/// Clients over HTTP get the tokens that clients inside the process get.
#[test]
fn the_same_tokens_inside_and_over_http() {
    let server = Process::start(&["--no-prefix-cache"]);
    let checksums = |name: &str, options: &[&str]| {
        let json = FOLDER.path().join(format!("{name}.json"));
        let mut e2e = Command::new(env!("CARGO_BIN_EXE_sm120"));
        e2e.current_dir(FOLDER.path()).args(["e2e", "--model", "tiny", "--device", "host", "--concurrency", "1,6"]);
        e2e.args(["--new-tokens", "7", "--temperature", "0.7", "--ignore-eos", "--report", name, "--json"]).arg(&json);
        let out = e2e.args(options).output().expect("the command starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let report: Value = serde_json::from_slice(&std::fs::read(json).expect("a report")).expect("JSON");
        let runs = report["runs"].as_array().expect("runs").clone();
        assert!(runs.iter().all(|run| run["errors"] == 0 && run["output_tokens"] == 7 * 8), "{report}");
        runs.iter().map(|run| run["checksum"].as_str().expect("a checksum").to_owned()).collect::<Vec<_>>()
    };
    let inside = checksums("inside", &[]);
    assert_eq!(inside[0], inside[1], "prompts do not depend on the clients");
    assert_eq!(checksums("http", &["--url", &format!("http://{}", server.address)]), inside);
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}
