use super::*;
use crate::ids::RoomKey;
use crate::transport::suite::{self, Rig, Side};

struct Net(Fabric, u64);

impl Rig for Net {
    fn transport(&mut self) -> Box<dyn Transport> {
        Box::new(self.0.transport())
    }

    /// An end that nobody lets in again after it is gone cannot be had here: one that admits nobody would fail its posts. So
    /// time is stopped for it: copies to it take for ever.
    fn deaf(&mut self) -> Vec<u8> {
        let mut transport = self.0.transport();
        let layout = suite::layout(128);
        transport.register(Arc::new(Arena::of(&layout).unwrap()), &layout).unwrap();
        let blob = transport.blob(PeerId(0));
        lock(&self.0.0).deaf = Some(transport.id);
        std::mem::forget(transport);
        blob
    }

    /// Time passes only when a test lets it.
    fn pace(&mut self, _slow: bool) {}

    fn wait(&mut self) {
        self.0.advance(self.1);
    }
}

fn net_with(seed: u64, delay: RangeInclusive<u64>, faults: &str) -> Net {
    Net(Fabric::new(seed, delay, Arc::new(Faults::parse(faults).unwrap())), 1)
}

fn net() -> Net {
    net_with(11, 0..=300, "")
}

crate::transport_suite!(net());

/// F2 and F17: an engine that reports an error, or nothing, and writes later all the same. With quarantine no room has
/// foreign bytes; without it, some have.
#[test]
fn late_writes_hit_nobody_behind_quarantine() {
    for faults in ["completion=error-then-write(200)@0.2", "completion=fail@0.2", "page-copy:CSA index K=delay(90)@0.3"]
    {
        let mut net = net_with(5, 0..=20, &format!("seed=9; {faults}"));
        assert_eq!(suite::foreign_bytes(&mut net, true), Vec::<String>::new(), "{faults}");
    }
    let mut net = net_with(5, 0..=20, "seed=9; completion=error-then-write(200)@0.2");
    let foreign = suite::foreign_bytes(&mut net, false);
    assert!(!foreign.is_empty(), "late writes are seen when pages are released early");
}

/// An engine that lies about its ends is beyond proof; checksums see it.
#[test]
fn lies_are_seen_by_checksums() {
    for faults in ["completion=end-early(500)", "page-copy=corrupt#3", "landing:CSA index K=corrupt@0.5"] {
        let mut net = net_with(2, 0..=3, faults);
        let foreign = suite::foreign_bytes(&mut net, true);
        assert!(!foreign.is_empty(), "{faults}");
        assert!(foreign[0].contains("match\n"), "{}", foreign[0]);
    }
}

fn pair(net: &mut Net) -> (Side, Side, Vec<PageCopy>) {
    let (mut a, mut b) = (Side::new(net, 8), Side::new(net, 8));
    suite::connect(&mut a, &mut b, PeerId(2), PeerId(1));
    let pages = vec![vec![0, 1, 2], vec![0, 1]];
    a.compute(1, &pages);
    let copies = suite::copies(&a, &pages, &b, &pages);
    (a, b, copies)
}

#[test]
fn a_post_that_never_ends_is_never_proven() {
    let mut net = net_with(1, 0..=5, "completion=never-end");
    let (mut a, b, copies) = pair(&mut net);
    let ticket = a.post(Op::Write, PeerId(2), RoomKey { room: 1, epoch: 1 }, copies);
    net.0.advance(10_000);
    assert_eq!((a.ended(ticket), a.transport.prove_quiet(PeerId(2), ticket)), (None, None));
    assert!(b.transport.counters().landed_bytes > 0);
    a.transport.tear_down(PeerId(2));
    assert_eq!(a.transport.prove_quiet(PeerId(2), ticket), Some(Proof::TornDown));
}

#[test]
fn faults_of_posts_polls_and_incarnations() {
    let tag = RoomKey { room: 1, epoch: 1 };
    let mut net = net_with(1, 0..=0, "post=fail#1; post=stale#2; poll=delay#1");
    let (mut a, _b, copies) = pair(&mut net);
    let post = |ticket| Post { ticket: Ticket(ticket), op: Op::Write, peer: PeerId(2), tag, copies: copies.clone() };
    assert!(matches!(a.transport.post(post(1)), Err(TransportError::System { .. })));
    assert_eq!(a.transport.prove_quiet(PeerId(2), Ticket(1)), Some(Proof::Terminal), "never made");
    a.transport.post(post(2)).unwrap();
    net.0.advance(5);
    assert_eq!(a.transport.poll(), [], "a poll without news");
    assert!(matches!(&a.transport.poll()[..], [News::Ended { ticket: Ticket(2), end: End::Failed(_) }]));
    assert_eq!(a.transport.prove_quiet(PeerId(2), Ticket(2)), None);
}

/// Same seed, same history; copies of one post land in no particular order.
#[test]
fn the_seed_decides() {
    let history = |seed| {
        let mut net = net_with(seed, 0..=50, "");
        let (mut a, b, copies) = pair(&mut net);
        a.post(Op::Write, PeerId(2), RoomKey { room: 1, epoch: 1 }, copies);
        let landed = |_| {
            net.0.advance(1);
            b.transport.counters().landed_bytes
        };
        (0..60).map(landed).collect::<Vec<_>>()
    };
    assert_eq!(history(4), history(4));
    assert_ne!(history(4), history(5));
}
