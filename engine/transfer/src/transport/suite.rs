//! What every transport must hold, run over each of them: `transport_suite!(rig)` makes one test per rule.
//!
//! The rows of a table of what ends a write are here: a terminal post does; tear-down at the target does; an error, a
//! timeout, or silence does not. Deadlines are generous and end a test that hangs; nothing is timed.

mod quarantine;
mod rules;

pub use quarantine::{foreign_bytes, pages_are_reused_only_after_proof};
pub use rules::*;

use super::{End, News, Op, Post, Transport};
use crate::arena::{Arena, POISON};
use crate::checksum::{Place, Report, compare};
use crate::ids::{Class, PeerId, RoomKey, Ticket, Unit};
use crate::layout::{ClassSpec, ItemSpec, Layout, PageCopy, PagesByClass};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// For a one-sided engine to tell of a peer that is gone. UCX over tcp mostly does within half a second; now and then it neither
/// fails nor ends the posts to it, and the endpoint's deadline is what ends them.
pub const NOTICE: Duration = Duration::from_secs(5);

/// How a kind of transport is made and lives.
pub trait Rig {
    /// A new end.
    fn transport(&mut self) -> Box<dyn Transport>;

    /// The blob of a peer that can be connected and never takes a byte.
    fn deaf(&mut self) -> Vec<u8>;

    /// Whether ends made from now on take in pages slowly, so that a long post cannot be over before a test acts.
    fn pace(&mut self, slow: bool);

    /// Lets some time pass.
    fn wait(&mut self);
}

/// All rules, one after another, for transports that must not be tested side by side.
pub fn all(mut rig: impl FnMut() -> Box<dyn Rig>) {
    for (name, rule) in RULES {
        println!("{name}");
        rule(&mut *rig());
    }
}

/// One module of tests, one test per rule. The argument makes a rig.
#[macro_export]
macro_rules! transport_suite {
    ($rig:expr) => {
        $crate::transport_suite!(@each one_test, ($rig));
    };
    (@each $with:ident, $args:tt) => {
        $crate::transport_suite! { @$with $args bytes_land_where_they_belong, reads_fetch, quiet_is_proven_by_the_end,
            a_target_torn_down_is_frozen, a_writer_torn_down_reads_no_more, a_dead_writer_is_noticed_and_frozen,
            a_pair_connects_again, a_dead_target_fails_its_posts_alone, a_deaf_peer_holds_up_nobody, stale_rooms_are_dropped_where_possible,
            bad_calls_are_named, a_bad_target_range_is_refused, pages_are_reused_only_after_proof }
    };
    (@one_test ($rig:expr) $($rule:ident),*) => {
        $(#[test]
        fn $rule() {
            $crate::transport::suite::$rule(&mut $rig);
        })*
    };
    (@table () $($rule:ident),*) => {
        &[$((stringify!($rule), $rule)),*]
    };
}

/// A rule takes what it needs from a rig and panics where it does not hold.
type Rule = fn(&mut dyn Rig);

/// All of them.
const RULES: &[(&str, Rule)] = crate::transport_suite!(@each table, ());

/// One end with its memory.
pub struct Side {
    /// Transport.
    pub transport: Box<dyn Transport>,
    /// Its arena, poisoned at first.
    pub arena: Arc<Arena>,
    /// Layout.
    pub layout: Layout,
    /// News not yet asked for.
    pub news: Vec<News>,
    next: u64,
}

/// Two classes, three items in two units; page bytes that are no multiples of anything.
pub fn layout(num_pages: u32) -> Layout {
    let class = |name: &str, num_pages| ClassSpec { name: name.into(), num_pages };
    let item = |unit, name: &str, class, page_bytes| ItemSpec {
        unit: Unit(unit),
        name: name.into(),
        class: Class(class),
        page_bytes,
    };
    let specs = vec![item(0, "window KV", 1, 4_100), item(1, "window KV", 1, 4_100), item(1, "CSA index K", 0, 8_449)];
    Layout::new(vec![class("compressed", num_pages), class("window", num_pages / 2)], specs).expect("fits")
}

/// The room of most tests.
pub const ROOM: RoomKey = RoomKey { room: 3, epoch: 2 };

impl Side {
    /// A new end with that many pages.
    pub fn new(rig: &mut dyn Rig, num_pages: u32) -> Self {
        let layout = layout(num_pages);
        let arena = Arc::new(Arena::of(&layout).expect("memory"));
        arena.poison();
        let mut transport = rig.transport();
        transport.register(arena.clone(), &layout).expect("registers");
        Self { transport, arena, layout, news: Vec::new(), next: 0 }
    }

    /// Fills pages with bytes that depend on room, item, page and place.
    pub fn compute(&self, room: u64, pages: &PagesByClass) {
        for (i, item) in self.layout.items().iter().enumerate() {
            for &page in &pages[item.spec.class.0 as usize] {
                let (offset, bytes) = self.layout.place(item, page);
                let seed = crate::fault::mix(room ^ ((i as u64) << 40) ^ (u64::from(page) << 20));
                let bytes: Vec<u8> =
                    (0..bytes).map(|at| (crate::fault::mix(seed ^ (at / 8)) >> (at % 8 * 8)) as u8).collect();
                self.arena.write(offset, &bytes).expect("inside");
            }
        }
    }

    /// Posts copies; its ticket.
    pub fn post(&mut self, op: Op, peer: PeerId, tag: RoomKey, copies: Vec<PageCopy>) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        self.transport.post(Post { ticket, op, peer, tag, copies }).expect("posts");
        ticket
    }

    /// Keeps news for later.
    pub fn poll(&mut self) {
        let news = self.transport.poll();
        self.news.extend(news);
    }

    /// The end of a ticket, if it has come.
    pub fn ended(&mut self, ticket: Ticket) -> Option<End> {
        self.poll();
        let ends: Vec<_> = self.news.iter().filter_map(|news| ended(news, ticket)).collect();
        assert!(ends.len() <= 1, "ticket {ticket} ended {} times", ends.len());
        ends.into_iter().next()
    }

    /// Whether a peer was reported as lost.
    pub fn lost(&mut self, peer: PeerId) -> bool {
        self.poll();
        self.news.iter().any(|news| matches!(news, News::Lost { peer: lost, .. } if *lost == peer))
    }

    /// One byte.
    pub fn byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        self.arena.read(at, &mut byte).expect("inside");
        byte[0]
    }

    /// All bytes, word by word.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.arena.bytes() as usize];
        self.arena.read(0, &mut bytes).expect("inside");
        bytes
    }
}

fn ended(news: &News, of: Ticket) -> Option<End> {
    match news {
        News::Ended { ticket, end } if *ticket == of => Some(end.clone()),
        _ => None,
    }
}

/// Makes two ends know each other: each calls the other by the number given.
pub fn connect(a: &mut Side, b: &mut Side, b_is: PeerId, a_is: PeerId) {
    let (of_a, of_b) = (a.transport.blob(b_is), b.transport.blob(a_is));
    a.transport.connect(b_is, &of_b).expect("connects");
    b.transport.connect(a_is, &of_a).expect("connects");
}

/// Copies of both units from pages of one end to pages of another.
pub fn copies(from: &Side, src: &PagesByClass, to: &Side, dst: &PagesByClass) -> Vec<PageCopy> {
    let unit = |unit| from.layout.copies(Unit(unit), src, &to.layout, dst).expect("pages exist");
    [unit(0), unit(1)].concat()
}

/// Compares both units.
pub fn compared(ours: &Side, pages: &PagesByClass, theirs: &Side, their_pages: &PagesByClass) -> Report {
    let place = |side, pages| {
        let Side { arena, layout, .. }: &Side = side;
        Place { arena, layout, pages }
    };
    let mut report = Report::default();
    for unit in 0..2 {
        report.extend(compare(place(ours, pages), place(theirs, their_pages), Unit(unit)).expect("comparable"));
    }
    report
}

/// Asserts that every byte outside these pages is poison still.
pub fn assert_untouched(side: &Side, pages: &PagesByClass) {
    let mut bytes = side.bytes();
    for item in side.layout.items() {
        for &page in &pages[item.spec.class.0 as usize] {
            let (offset, len) = side.layout.place(item, page);
            bytes[offset as usize..(offset + len) as usize].fill(POISON);
        }
    }
    let touched = bytes.iter().position(|&byte| byte != POISON);
    assert_eq!(touched, None, "a byte outside the pages was written");
}

/// Waits for something that need not happen, for at most [`NOTICE`].
pub fn perhaps(rig: &mut dyn Rig, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() && start.elapsed() < NOTICE {
        rig.wait();
    }
}

/// Waits for something.
///
/// # Panics
/// After [`PATIENCE`], with its name.
pub fn until(rig: &mut dyn Rig, what: &str, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        rig.wait();
    }
}
