//! A server of a deployment: a process that is looked after.

use crate::serve::ServeError;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Restarts of one server within [`RESTART_WINDOW`] before the deployment gives up.
const RESTARTS: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_secs(60);
const RESTART_PAUSE: Duration = Duration::from_millis(300);

/// What ties a server to the process that started it.
pub(super) const UNTIL_STDIN_CLOSES: &str = "--until-stdin-closes";

/// Why a process did not become a server.
pub(super) fn failed(name: &str, why: impl std::fmt::Display) -> ServeError {
    ServeError::Deployment(format!("{name}: {why}"))
}

/// A server as a process, started again when it ends.
pub(super) struct Role {
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    process: Process,
    /// Where it listens, or did before it ended.
    pub(super) address: String,
    restarts: VecDeque<Instant>,
    /// When it is started again; none while it is there.
    again: Option<Instant>,
}

impl Role {
    /// Starts this command and waits for the address that it prints. Weights may take minutes; a process that ends is noticed at once.
    pub(super) fn start(name: String, arguments: Vec<OsString>) -> Result<Self, ServeError> {
        Self::start_program(std::env::current_exe()?, name, arguments)
    }

    fn start_program(program: PathBuf, name: String, arguments: Vec<OsString>) -> Result<Self, ServeError> {
        let mut process = Process::start(&program, &name, &arguments)?;
        let Ok(address) = process.listens.recv() else {
            let status = process.child.wait()?;
            // Its last words first.
            let _ = process.log.join();
            return Err(failed(&name, format!("ended before it listened: {status}")));
        };
        Ok(Self { name, program, arguments, process, address, restarts: VecDeque::new(), again: None })
    }

    /// The process as the system numbers it.
    pub(super) fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Lines that it has printed.
    pub(super) fn said(&self) -> Vec<String> {
        self.process.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts the process again a moment after it has ended, whatever it was at; never waits. An error when it ends too often.
    pub(super) fn look_after(&mut self) -> Result<(), ServeError> {
        let now = Instant::now();
        if let Some(at) = self.again {
            if now >= at {
                self.process = Process::start(&self.program, &self.name, &self.arguments)?;
                self.again = None;
            }
            return Ok(());
        }
        if let Ok(address) = self.process.listens.try_recv() {
            self.address = address;
        }
        let Some(status) = self.process.child.try_wait()? else { return Ok(()) };
        while self.restarts.front().is_some_and(|at| at.elapsed() > RESTART_WINDOW) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= RESTARTS {
            let why = format!("ended {} times within {RESTART_WINDOW:?}, last: {status}", RESTARTS + 1);
            return Err(failed(&self.name, why));
        }
        tracing::error!(server = self.name, %status, "ended, and is started again");
        self.restarts.push_back(now);
        self.again = Some(now + RESTART_PAUSE);
        Ok(())
    }

    /// Tells the process to stop, if it is there.
    pub(super) fn tell(&mut self) {
        if !matches!(self.process.child.try_wait(), Ok(None)) {
            return;
        }
        // Our child, and not waited for yet, so the number is nobody else's.
        if let Some(process) = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
    }

    /// Waits for the process to end, and kills it at the deadline.
    pub(super) fn end(mut self, deadline: Instant) {
        loop {
            if !matches!(self.process.child.try_wait(), Ok(None)) {
                return;
            }
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        tracing::error!(server = self.name, "does not end and is killed");
        // It may have ended in this moment.
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }
}

/// A process and what it prints.
struct Process {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    /// The address at which it listens, once it does.
    listens: Receiver<String>,
    /// Ends with its standard error.
    log: JoinHandle<()>,
}

impl Process {
    fn start(program: &std::path::Path, name: &str, arguments: &[OsString]) -> Result<Self, ServeError> {
        let mut command = Command::new(program);
        // Its end of the pipe closes with this process, however that ends.
        command
            .args(arguments)
            .arg(UNTIL_STDIN_CLOSES)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A terminal's Ctrl-C is for this process, which tells the others in turn: a second signal would end them at once.
        command.process_group(0);
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| failed(name, "no output"))?;
        let errors = child.stderr.take().ok_or_else(|| failed(name, "no standard error"))?;
        let label = name.to_owned();
        // Its lines have their own time and level.
        let log = std::thread::Builder::new().name(format!("{name} log")).spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                // Nobody may be there to read it.
                let _ = writeln!(std::io::stderr(), "{label}: {line}");
            }
        })?;
        let (found, listens) = channel();
        let label = name.to_owned();
        let said = Arc::new(Mutex::new(Vec::new()));
        let says = Arc::clone(&said);
        // Lives as long as the process writes.
        std::thread::Builder::new().name(format!("{name} output")).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("listening on http://") {
                    // Whoever waited may be gone.
                    let _ = found.send(address.to_owned());
                }
                tracing::info!("{label}: {line}");
                says.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        })?;
        Ok(Self { child, said, listens, log })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that keeps its runs in a file and does something else in each.
    fn shell(folder: &std::path::Path, later: &str) -> Result<Role, ServeError> {
        let runs = folder.join("runs");
        let script = format!(
            "echo run >> {0}; case $(wc -l < {0}) in 1) echo 'listening on http://127.0.0.1:1'; exit 3;; {later} esac",
            runs.display()
        );
        Role::start_program("/bin/sh".into(), "shell".into(), ["-c", &script].map(OsString::from).to_vec())
    }

    fn runs(folder: &std::path::Path) -> usize {
        std::fs::read_to_string(folder.join("runs")).map_or(0, |text| text.lines().count())
    }

    /// Looks after it until then, which must not take long at any time.
    fn look_until(role: &mut Role, mut then: impl FnMut(&Role) -> bool) -> Result<(), ServeError> {
        let begin = Instant::now();
        while !then(role) {
            let look = Instant::now();
            role.look_after()?;
            assert!(look.elapsed() < Duration::from_secs(5), "waited for a process");
            assert!(begin.elapsed() < Duration::from_secs(60), "never");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    #[test]
    fn a_death_before_it_listens_is_one_more_restart() {
        let folder = tempfile::tempdir().unwrap();
        let third = "2) exit 4;; *) echo 'listening on http://127.0.0.1:3'; cat > /dev/null;;";
        let mut role = shell(folder.path(), third).unwrap();
        assert_eq!(role.address, "127.0.0.1:1");
        look_until(&mut role, |role| role.address == "127.0.0.1:3").unwrap();
        assert_eq!((runs(folder.path()), role.restarts.len()), (3, 2));
        role.tell();
        role.end(Instant::now() + Duration::from_secs(30));
    }

    #[test]
    fn nobody_waits_for_a_process_that_does_not_come_to_listen() {
        let folder = tempfile::tempdir().unwrap();
        let mut role = shell(folder.path(), "*) exec cat > /dev/null;;").unwrap();
        look_until(&mut role, |_| runs(folder.path()) == 2).unwrap();
        role.look_after().unwrap();
        role.tell();
        role.end(Instant::now() + Duration::from_secs(30));
    }

    #[test]
    fn what_ends_again_and_again_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut role = shell(folder.path(), "*) exit 5;;").unwrap();
        let error = look_until(&mut role, |_| false).unwrap_err().to_string();
        assert!(error.contains("shell: ended 6 times within 60s, last: exit status: 5"), "{error}");
        assert_eq!(runs(folder.path()), 1 + RESTARTS);
    }

    #[test]
    fn a_process_that_ends_before_it_listens_at_first_is_an_error() {
        let program = "/bin/sh".into();
        let outcome = Role::start_program(program, "shell".into(), ["-c", "exit 7"].map(OsString::from).to_vec());
        let Err(error) = outcome else { panic!("no error") };
        assert!(error.to_string().contains("ended before it listened: exit status: 7"), "{error}");
    }
}
