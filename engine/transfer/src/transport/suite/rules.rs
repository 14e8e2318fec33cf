//! The rules, one function each.

use super::super::{End, MAX_COPIES, News, Op, Post, TransportError};
use super::*;
use crate::room::Proof;

const A: PeerId = PeerId(10);
const B: PeerId = PeerId(20);
const C: PeerId = PeerId(30);
const D: PeerId = PeerId(40);

/// Page lists in no order: 48 compressed and 24 window pages of arenas with 64 and 128.
fn maps() -> (PagesByClass, PagesByClass) {
    let list = |count: u32, of: u32, step: u32| (0..count).map(|i| (i * step + 5) % of).collect();
    (vec![list(48, 64, 27), list(24, 32, 11)], vec![list(48, 128, 45), list(24, 64, 19)])
}

fn total(copies: &[PageCopy]) -> u64 {
    copies.iter().map(|copy| copy.bytes).sum()
}

/// A writer and a target that know each other, with a computed room, and the copies that carry it.
fn pair(rig: &mut dyn Rig) -> (Side, Side, PagesByClass, PagesByClass, Vec<PageCopy>) {
    let (mut writer, mut target) = (Side::new(rig, 64), Side::new(rig, 128));
    connect(&mut writer, &mut target, B, A);
    let (src, dst) = maps();
    writer.compute(3, &src);
    let copies = copies(&writer, &src, &target, &dst);
    target.transport.admit(ROOM);
    (writer, target, src, dst, copies)
}

/// Bytes land where they should, nowhere else, and are counted.
pub fn bytes_land_where_they_belong(rig: &mut dyn Rig) {
    let (mut writer, mut target, src, dst, copies) = pair(rig);
    let ticket = writer.post(Op::Write, B, ROOM, copies.clone());
    until(rig, "the post ends", || writer.ended(ticket).is_some());
    // Seen at once, without waiting: done means that all bytes are there.
    assert_eq!(writer.ended(ticket), Some(End::Done));
    let report = compared(&target, &dst, &writer, &src);
    assert!(report.matches() && report.pages == 96, "{report}");
    assert_untouched(&target, &dst);
    assert_eq!(writer.transport.counters().sent_bytes, total(&copies));
    let landed = target.transport.counters().landed_bytes;
    assert_eq!(landed, if target.transport.one_sided() { 0 } else { total(&copies) });
    target.poll();
    assert_eq!(target.news, []);
}

/// The other direction: the side that will use the pages asks for them.
pub fn reads_fetch(rig: &mut dyn Rig) {
    let (mut source, mut reader, src, dst, copies) = pair(rig);
    source.transport.admit(ROOM);
    let ticket = reader.post(Op::Read, A, ROOM, copies.clone());
    until(rig, "the read ends", || reader.ended(ticket).is_some());
    assert_eq!(reader.ended(ticket), Some(End::Done));
    let report = compared(&reader, &dst, &source, &src);
    assert!(report.matches(), "{report}");
    assert_untouched(&reader, &dst);
    assert!(reader.transport.one_sided() || reader.transport.counters().landed_bytes == total(&copies));
    assert_eq!(reader.transport.prove_quiet(A, ticket), Some(Proof::Terminal));
}

/// An open ticket, known or forgotten by the caller, leaves no proof; its end does, for all numbers up to it.
pub fn quiet_is_proven_by_the_end(rig: &mut dyn Rig) {
    let (mut writer, target, src, dst, copies) = pair(rig);
    let _ = &target;
    let first = writer.post(Op::Write, B, ROOM, copies.clone());
    assert_eq!(writer.transport.prove_quiet(B, first), None, "just posted, and not polled");
    let second = writer.post(Op::Write, B, ROOM, copies);
    until(rig, "fence", || {
        writer.poll();
        writer.transport.prove_quiet(B, second) == Some(Proof::Terminal)
    });
    assert!(compared(&target, &dst, &writer, &src).matches());
    let ends = [first, second].map(|ticket| writer.ended(ticket));
    assert_eq!(ends, [Some(End::Done), Some(End::Done)]);
    // What was fenced will never be made.
    assert_eq!(writer.transport.prove_quiet(B, Ticket(50)), Some(Proof::Terminal));
    let post = Post { ticket: Ticket(50), op: Op::Write, peer: B, tag: ROOM, copies: vec![] };
    let error = writer.transport.post(post).unwrap_err();
    assert_eq!(error, TransportError::Ticket { last: Ticket(50), got: Ticket(50) });
}

/// A pair whose target takes in pages slowly.
fn slow_pair(rig: &mut dyn Rig) -> (Side, Side, PagesByClass, PagesByClass, Vec<PageCopy>) {
    rig.pace(true);
    let pair = pair(rig);
    rig.pace(false);
    pair
}

/// Posts so much that it cannot all have landed when the first bytes have.
fn flood(rig: &mut dyn Rig, writer: &mut Side, target: &mut Side, copies: &[PageCopy]) -> Vec<Ticket> {
    let tickets = (0..400).map(|_| writer.post(Op::Write, B, ROOM, copies.to_vec())).collect();
    until(rig, "first bytes land", || {
        writer.poll();
        target.poll();
        copies.iter().any(|copy| target.byte(copy.dst) != POISON)
    });
    tickets
}

/// Overwrites all of a quiet arena and checks that it stays so while the peer goes on.
fn assert_frozen(rig: &mut dyn Rig, side: &Side, mut others: impl FnMut()) {
    let before = side.transport.counters().landed_bytes;
    side.arena.fill(0, side.arena.bytes(), 0x5a).expect("inside");
    for _ in 0..100 {
        others();
        rig.wait();
    }
    assert!(side.bytes().iter().all(|&byte| byte == 0x5a), "a byte landed after the proof");
    assert_eq!(side.transport.counters().landed_bytes, before);
}

/// Tear-down at the target is a proof; the writer fails, and is in doubt until it tears down too.
pub fn a_target_torn_down_is_frozen(rig: &mut dyn Rig) {
    let (mut writer, mut target, _, _, copies) = slow_pair(rig);
    let tickets = flood(rig, &mut writer, &mut target, &copies);
    assert_eq!(target.transport.tear_down(A), Proof::TornDown);
    assert_frozen(rig, &target, || writer.poll());
    let last = tickets[tickets.len() - 1];
    until(rig, "the writer hears of it", || writer.lost(B) && writer.ended(last).is_some());
    assert!(matches!(writer.ended(last), Some(End::Failed(_))));
    assert_eq!(writer.transport.prove_quiet(B, last), None, "failed is not quiet");
    writer.transport.tear_down(B);
    assert_eq!(writer.transport.prove_quiet(B, last), Some(Proof::TornDown));
    // The number is spent.
    let blob = target.transport.blob(C);
    assert_eq!(writer.transport.connect(B, &blob), Err(TransportError::PeerAgain(B)));
}

/// Tear-down at the writer ends its own part: open tickets fail, once; the target hears of it and tears down in turn.
pub fn a_writer_torn_down_reads_no_more(rig: &mut dyn Rig) {
    let (mut writer, mut target, src, dst, copies) = slow_pair(rig);
    let tickets = flood(rig, &mut writer, &mut target, &copies);
    assert_eq!(writer.transport.tear_down(B), Proof::TornDown);
    // The writer's memory is its own again: what is computed into it now must not travel.
    writer.compute(99, &src);
    let last = tickets[tickets.len() - 1];
    assert!(matches!(writer.ended(last), Some(End::Failed(_))));
    assert_eq!(writer.transport.prove_quiet(B, last), Some(Proof::TornDown));
    if !target.transport.one_sided() {
        until(rig, "the target hears of it", || target.lost(A));
    }
    target.transport.tear_down(A);
    let report = compared(&target, &dst, &writer, &src);
    assert_eq!(report.misses.len(), report.pages, "bytes computed after the tear-down have travelled");
    assert_frozen(rig, &target, || writer.poll());
    let post = Post { ticket: Ticket(9999), op: Op::Write, peer: B, tag: ROOM, copies };
    assert_eq!(writer.transport.post(post), Err(TransportError::Peer(B)));
}

/// F11: the writer's process ends; the target is told, tears down, and serves the writer's next incarnation.
pub fn a_dead_writer_is_noticed_and_frozen(rig: &mut dyn Rig) {
    let (mut writer, mut target, src, dst, copies) = slow_pair(rig);
    flood(rig, &mut writer, &mut target, &copies);
    drop(writer);
    if !target.transport.one_sided() {
        until(rig, "the target hears of it", || target.lost(A));
    }
    target.transport.tear_down(A);
    assert_frozen(rig, &target, || {});
    let mut again = Side::new(rig, 64);
    connect(&mut again, &mut target, B, C);
    again.compute(4, &src);
    let ticket = again.post(Op::Write, B, ROOM, copies);
    until(rig, "the next incarnation's post ends", || again.ended(ticket).is_some());
    assert_eq!(again.ended(ticket), Some(End::Done));
    assert!(compared(&target, &dst, &again, &src).matches());
}

/// F11: a connection ends and the same two processes have another one. What was torn down stays so.
pub fn a_pair_connects_again(rig: &mut dyn Rig) {
    let (mut writer, mut target, src, dst, copies) = pair(rig);
    target.transport.tear_down(A);
    writer.transport.tear_down(B);
    connect(&mut writer, &mut target, C, D);
    let ticket = writer.post(Op::Write, C, ROOM, copies.clone());
    until(rig, "the post over the second connection ends", || writer.ended(ticket).is_some());
    assert_eq!(writer.ended(ticket), Some(End::Done));
    assert!(compared(&target, &dst, &writer, &src).matches());
    let post = Post { ticket: Ticket(9999), op: Op::Write, peer: B, tag: ROOM, copies };
    assert_eq!(writer.transport.post(post), Err(TransportError::Peer(B)));
}

/// F11, F19: a target's process ends; its posts fail, at the latest with the tear-down, and another peer's do not notice.
pub fn a_dead_target_fails_its_posts_alone(rig: &mut dyn Rig) {
    let (mut writer, mut target, src, dst, copies) = slow_pair(rig);
    let mut other = Side::new(rig, 128);
    connect(&mut writer, &mut other, C, A);
    other.transport.admit(ROOM);
    let open = flood(rig, &mut writer, &mut target, &copies);
    let good: Vec<_> = (0..20).map(|_| writer.post(Op::Write, C, ROOM, copies.clone())).collect();
    drop(target);
    let last = open[open.len() - 1];
    match writer.transport.one_sided() {
        true => perhaps(rig, || writer.lost(B) && writer.ended(last).is_some()),
        false => until(rig, "the writer hears of it", || writer.lost(B) && writer.ended(last).is_some()),
    }
    until(rig, "the other peer's posts end", || good.iter().all(|&ticket| writer.ended(ticket).is_some()));
    assert!(good.iter().all(|&ticket| writer.ended(ticket) == Some(End::Done)));
    writer.transport.tear_down(B);
    assert!(open.iter().all(|&ticket| writer.ended(ticket).is_some()), "posts to a peer that is torn down have ended");
    let more = writer.post(Op::Write, C, ROOM, copies);
    until(rig, "a post after the tear-down ends", || writer.ended(more).is_some());
    assert_eq!(writer.ended(more), Some(End::Done));
    assert!(compared(&other, &dst, &writer, &src).matches());
    assert_eq!(writer.transport.prove_quiet(C, more), Some(Proof::Terminal));
}

/// F19: a peer that takes connections and no bytes. Posts to it stay open, others are served, tear-down is a proof.
pub fn a_deaf_peer_holds_up_nobody(rig: &mut dyn Rig) {
    let (mut writer, target, src, dst, copies) = pair(rig);
    writer.transport.connect(C, &rig.deaf()).expect("connects");
    let stuck: Vec<_> = (0..100).map(|_| writer.post(Op::Write, C, ROOM, copies.clone())).collect();
    for _ in 0..20 {
        let ticket = writer.post(Op::Write, B, ROOM, copies.clone());
        until(rig, "a post to the good peer ends", || writer.ended(ticket).is_some());
        assert_eq!(writer.ended(ticket), Some(End::Done));
    }
    assert!(compared(&target, &dst, &writer, &src).matches());
    assert!(stuck.iter().all(|&ticket| writer.ended(ticket).is_none()));
    assert_eq!(writer.transport.prove_quiet(C, stuck[0]), None);
    assert_eq!(writer.transport.tear_down(C), Proof::TornDown);
    assert!(stuck.iter().all(|&ticket| matches!(writer.ended(ticket), Some(End::Failed(_)))));
    assert_eq!(writer.transport.prove_quiet(C, stuck[99]), Some(Proof::TornDown));
}

/// F4 at this level: bytes of an older epoch, or of a room that is over, do not land.
pub fn stale_rooms_are_dropped_where_possible(rig: &mut dyn Rig) {
    let (mut writer, mut target, src, dst, copies) = pair(rig);
    if !target.transport.drops_stale() {
        return;
    }
    let none = vec![vec![], vec![]];
    let stale = RoomKey { epoch: ROOM.epoch - 1, ..ROOM };
    let ticket = writer.post(Op::Write, B, stale, copies.clone());
    until(rig, "the stale post ends", || writer.ended(ticket).is_some());
    assert!(matches!(writer.ended(ticket), Some(End::Refused(reason)) if reason.contains("room 3 epoch 1")));
    target.transport.expire(ROOM);
    let ticket = writer.post(Op::Write, B, ROOM, copies.clone());
    until(rig, "the late post ends", || writer.ended(ticket).is_some());
    assert!(matches!(writer.ended(ticket), Some(End::Refused(_))));
    assert_eq!(writer.transport.prove_quiet(B, ticket), Some(Proof::Terminal), "refused is quiet");
    assert_untouched(&target, &none);
    let counters = target.transport.counters();
    assert_eq!((counters.stale_bytes, counters.landed_bytes), (2 * total(&copies), 0));
    // A read for a room that the source does not expect.
    let ticket = target.post(Op::Read, A, ROOM, copies.clone());
    until(rig, "the stale read ends", || target.ended(ticket).is_some());
    assert!(matches!(target.ended(ticket), Some(End::Refused(_))));
    assert_untouched(&target, &none);
    // The connection is none the worse.
    target.transport.admit(ROOM);
    let ticket = writer.post(Op::Write, B, ROOM, copies);
    until(rig, "the next post ends", || writer.ended(ticket).is_some());
    assert!(compared(&target, &dst, &writer, &src).matches());
}

/// Errors that can be seen at once.
pub fn bad_calls_are_named(rig: &mut dyn Rig) {
    let (mut writer, mut target, _, _, copies) = pair(rig);
    let post = |ticket, peer, copies| Post { ticket: Ticket(ticket), op: Op::Write, peer, tag: ROOM, copies };
    let mut refused = |post| writer.transport.post(post).unwrap_err().to_string();
    assert_eq!(refused(post(1, C, vec![])), "peer 30 is not connected");
    let over = vec![copies[0], PageCopy { src: 4_096, dst: 0, bytes: 8 }];
    assert_eq!(refused(post(1, B, over)), "copy 1 of ticket 1: bytes 4096..4096+8 are not inside one page");
    let endless = vec![PageCopy { src: 0, dst: 0, bytes: u64::MAX }];
    assert!(refused(post(1, B, endless)).contains("are not inside one page"));
    let many = vec![PageCopy { src: 0, dst: 0, bytes: 1 }; MAX_COPIES + 1];
    assert_eq!(refused(post(1, B, many)), "ticket 1 has 65537 copies, at most 65536 are possible");
    assert!(matches!(writer.transport.connect(C, b"\xffsomething"), Err(TransportError::Blob { peer: C, .. })));
    let again = writer.transport.register(writer.arena.clone(), &writer.layout);
    assert_eq!(again, Err(TransportError::SecondArena));
    let mut fresh = rig.transport();
    let small = Arc::new(Arena::new(64).expect("memory"));
    assert!(matches!(fresh.register(small, &writer.layout), Err(TransportError::Arena { arena: 64, .. })));
    // A tear-down of nobody is quiet, and none of this was a post.
    assert_eq!(writer.transport.tear_down(C), Proof::TornDown);
    target.poll();
    assert_eq!((target.transport.counters().landed_bytes, &target.news), (0, &Vec::<News>::new()));
}

/// A target range across two pages, or outside the arena: nothing of the post lands, its end says why, and it is quiet.
pub fn a_bad_target_range_is_refused(rig: &mut dyn Rig) {
    let (mut writer, target, _, _, copies) = pair(rig);
    for dst in [copies[0].dst + 1, target.arena.bytes(), u64::MAX - 8] {
        let bad = vec![copies[1], PageCopy { dst, ..copies[0] }];
        let ticket = writer.post(Op::Write, B, ROOM, bad);
        until(rig, "the post ends", || writer.ended(ticket).is_some());
        let end = writer.ended(ticket);
        assert!(matches!(&end, Some(End::Refused(reason)) if reason.contains("not inside one page")), "{end:?}");
        assert_eq!(writer.transport.prove_quiet(B, ticket), Some(Proof::Terminal));
    }
    assert_untouched(&target, &vec![vec![], vec![]]);
}
