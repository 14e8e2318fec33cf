//! Peers that are processes of their own, killed and stopped: F11 and F19 as they happen. A child is this test binary again,
//! told by its environment to be one.

use super::*;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

const ROLE: &str = "TRANSFER_TEST_TARGET_PORT";
const NUM_PAGES: u32 = 128;

/// A target in another process: takes pages of [`ROOM`] until it is killed or its input ends.
struct Process {
    child: Child,
    input: ChildStdin,
    blob: Vec<u8>,
}

/// Not a test by itself: what the child runs.
#[test]
fn child() {
    let Ok(port) = std::env::var(ROLE) else { return };
    let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into();
    let mut transport = Tcp::bind(address, Arc::new(Faults::none())).unwrap();
    let layout = suite::layout(NUM_PAGES);
    transport.register(Arc::new(Arena::of(&layout).unwrap()), &layout).unwrap();
    transport.admit(ROOM);
    println!("\nBLOB {}", String::from_utf8(transport.blob(PeerId(1))).unwrap());
    for (nth, line) in std::io::stdin().lines().enumerate() {
        transport.connect(PeerId(nth as u32), line.unwrap().as_bytes()).unwrap();
    }
}

impl Process {
    fn start(port: u16) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "transport::tcp::tests::processes::child"])
            .env(ROLE, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let blob = lines.find_map(|line| Some(line.ok()?.strip_prefix("BLOB ")?.as_bytes().to_vec()));
        let input = child.stdin.take().unwrap();
        // What it says from now on goes nowhere; a closed pipe would end it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, input, blob: blob.expect("the child says its blob") }
    }

    fn port(&self) -> u16 {
        serde_json::from_slice::<Blob>(&self.blob).unwrap().address.port()
    }

    fn connect(&mut self, writer: &mut Side, peer: PeerId) {
        writer.transport.connect(peer, &self.blob).unwrap();
        let ours = writer.transport.blob(peer);
        self.input.write_all(&[&ours[..], b"\n"].concat()).unwrap();
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A writer and copies of 600 KB to pages of any target.
fn writer() -> (Loopback, Side, Vec<PageCopy>) {
    let mut rig = Loopback::default();
    let writer = Side::new(&mut rig, NUM_PAGES);
    let pages: Vec<Vec<u32>> = vec![(0..NUM_PAGES / 2).collect(), (0..NUM_PAGES / 2).collect()];
    let copies = suite::copies(&writer, &pages, &writer, &pages);
    (rig, writer, copies)
}

fn ends(rig: &mut Loopback, writer: &mut Side, peer: PeerId, copies: &[PageCopy]) -> End {
    let ticket = writer.post(Op::Write, peer, ROOM, copies.to_vec());
    suite::until(rig, "the post ends", || writer.ended(ticket).is_some());
    writer.ended(ticket).unwrap()
}

#[test]
fn a_killed_target_fails_its_posts_and_its_next_incarnation_is_another_peer() {
    let (mut rig, mut writer, copies) = writer();
    let (mut first, mut other) = (Process::start(0), Process::start(0));
    first.connect(&mut writer, PeerId(1));
    other.connect(&mut writer, PeerId(2));
    assert_eq!(ends(&mut rig, &mut writer, PeerId(1), &copies), End::Done);
    // Stopped first, so that posts are under way when it dies.
    first.signal("STOP");
    let open: Vec<_> = (0..50).map(|_| writer.post(Op::Write, PeerId(1), ROOM, copies.clone())).collect();
    let (port, stale_blob) = (first.port(), first.blob.clone());
    first.signal("KILL");
    drop(first);
    suite::until(&mut rig, "the writer hears of it", || writer.lost(PeerId(1)));
    assert!(open.iter().all(|&ticket| matches!(writer.ended(ticket), Some(End::Failed(_)))));
    assert_eq!(writer.transport.prove_quiet(PeerId(1), open[49]), None, "failed is not quiet");
    assert!(matches!(ends(&mut rig, &mut writer, PeerId(1), &copies), End::Refused(_)), "later posts fail at once");
    assert_eq!(ends(&mut rig, &mut writer, PeerId(2), &copies), End::Done, "the other peer");
    writer.transport.tear_down(PeerId(1));

    // The same port, another incarnation: the old blob does not reach it, the new one does.
    let mut second = Process::start(port);
    writer.transport.connect(PeerId(3), &stale_blob).unwrap();
    assert!(matches!(ends(&mut rig, &mut writer, PeerId(3), &copies), End::Failed(_)), "a stale incarnation");
    second.connect(&mut writer, PeerId(4));
    assert_eq!(ends(&mut rig, &mut writer, PeerId(4), &copies), End::Done);
}

#[test]
fn a_stopped_target_holds_up_nobody_and_goes_on_when_it_may() {
    let (mut rig, mut writer, copies) = writer();
    let (mut stopped, mut other) = (Process::start(0), Process::start(0));
    stopped.connect(&mut writer, PeerId(1));
    other.connect(&mut writer, PeerId(2));
    assert_eq!(ends(&mut rig, &mut writer, PeerId(1), &copies), End::Done);
    stopped.signal("STOP");
    // More than the buffers of a connection hold.
    let open: Vec<_> = (0..50).map(|_| writer.post(Op::Write, PeerId(1), ROOM, copies.clone())).collect();
    for _ in 0..10 {
        assert_eq!(ends(&mut rig, &mut writer, PeerId(2), &copies), End::Done);
    }
    let last = open[49];
    assert_eq!((writer.ended(last), writer.transport.prove_quiet(PeerId(1), last)), (None, None), "no end without one");
    stopped.signal("CONT");
    suite::until(&mut rig, "it goes on", || writer.ended(last).is_some());
    assert_eq!(writer.ended(last), Some(End::Done));

    stopped.signal("STOP");
    let stuck = writer.post(Op::Write, PeerId(1), ROOM, copies.clone());
    let more: Vec<_> = (0..50).map(|_| writer.post(Op::Write, PeerId(1), ROOM, copies.clone())).collect();
    assert_eq!(writer.transport.tear_down(PeerId(1)), Proof::TornDown);
    let ended = [stuck, more[49]].map(|ticket| writer.ended(ticket));
    assert!(matches!(&ended[1], Some(End::Failed(reason)) if reason == "torn down"), "{ended:?}");
    assert_eq!(writer.transport.prove_quiet(PeerId(1), more[49]), Some(Proof::TornDown));
    assert_eq!(ends(&mut rig, &mut writer, PeerId(2), &copies), End::Done);
}
