//! Every fault of a post and a landing: it happens, and what is told of it is what a caller has to cope with.

use super::*;
use crate::transport::End;
use crate::transport::suite::{connect, copies};

const WRITER: PeerId = PeerId(1);
const TARGET: PeerId = PeerId(2);

/// A writer and a target with faults each, connected; the target expects [`ROOM`].
fn pair(writer: &'static str, target: &'static str) -> (Side, Side) {
    let side = |rules| Side::new(&mut Loopback(Vec::new(), rules), 16);
    let (mut writer, mut target) = (side(writer), side(target));
    connect(&mut writer, &mut target, TARGET, WRITER);
    target.transport.admit(ROOM);
    (writer, target)
}

/// Posts one room's pages.
fn post(writer: &mut Side, target: &Side) -> Ticket {
    let pages = vec![vec![1, 2], vec![1]];
    writer.compute(9, &pages);
    let copies = copies(writer, &pages, target, &pages);
    writer.post(Op::Write, TARGET, ROOM, copies)
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn end(writer: &mut Side, ticket: Ticket) -> End {
    until("end", || writer.ended(ticket))
}

fn landed(target: &Side) -> u64 {
    target.transport.counters().landed_bytes
}

/// Bytes of the post above: two pages of index keys, one of the window in either unit.
const BYTES: u64 = 2 * 8_449 + 2 * 4_100;

#[test]
fn a_post_is_refused_stale_or_late() {
    let (mut writer, target) = pair("post=fail#1; post=stale#2; post=delay(300)#3", "");
    let pages = vec![vec![1, 2], vec![1]];
    let refused = Post { ticket: Ticket(1), op: Op::Write, peer: TARGET, tag: ROOM, copies: Vec::new() };
    assert!(writer.transport.post(refused).unwrap_err().to_string().contains("a fault refuses the post"));
    let stale = post(&mut writer, &target);
    assert!(matches!(end(&mut writer, stale), End::Failed(why) if why.contains("another incarnation")));
    assert_eq!(writer.transport.prove_quiet(TARGET, stale), None, "a failed post proves nothing");
    let (start, late) = (Instant::now(), post(&mut writer, &target));
    assert_eq!(end(&mut writer, late), End::Done);
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(suite::compared(&target, &pages, &writer, &pages).matches());
}

#[test]
fn ends_are_false_early_or_missing() {
    let (mut writer, target) = pair("completion=fail", "");
    let ticket = post(&mut writer, &target);
    assert!(matches!(end(&mut writer, ticket), End::Failed(_)));
    assert_eq!(landed(&target), BYTES, "the error says nothing about the bytes");
    assert_eq!(writer.transport.prove_quiet(TARGET, ticket), None);

    // An end before the bytes, with an error and without.
    for (rules, done) in [("completion=end-early(400)", true), ("completion=error-then-write(400)", false)] {
        let (mut writer, target) = pair(rules, "");
        let ticket = post(&mut writer, &target);
        assert_eq!(end(&mut writer, ticket) == End::Done, done, "{rules}");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(landed(&target), 0, "{rules}: bytes come 400 ms behind the end");
        until("bytes", || (landed(&target) == BYTES).then_some(()));
        assert_eq!(writer.transport.prove_quiet(TARGET, ticket).is_some(), done, "{rules}");
    }

    let (mut writer, target) = pair("completion=never-end", "");
    let ticket = post(&mut writer, &target);
    until("bytes", || (landed(&target) == BYTES).then_some(()));
    // The acknowledgement has come long before that of the next post.
    assert_eq!(writer.ended(ticket), None);
    writer.transport.tear_down(TARGET);
    assert!(matches!(end(&mut writer, ticket), End::Failed(why) if why == "torn down"));
}

#[test]
fn bytes_come_once_more_after_a_good_end() {
    for (writer, target) in [("completion=late-write(1)", ""), ("", "landing=late-write(1)")] {
        let (mut writer, target) = pair(writer, target);
        let ticket = post(&mut writer, &target);
        assert_eq!(end(&mut writer, ticket), End::Done);
        until("second writing", || (landed(&target) == 2 * BYTES).then_some(()));
    }
}

#[test]
fn polls_and_tear_downs_stand_still() {
    let (mut writer, _target) = pair("poll=delay(200)#1; tear-down=delay(200)", "");
    let acts: [fn(&mut Side); 2] = [Side::poll, |side| _ = side.transport.tear_down(TARGET)];
    for act in acts {
        let start = Instant::now();
        act(&mut writer);
        assert!(start.elapsed() >= Duration::from_millis(200));
    }
    let start = Instant::now();
    writer.poll();
    assert!(start.elapsed() < Duration::from_millis(200), "the first poll alone");
}

#[test]
fn a_fault_that_it_does_not_have_is_refused() {
    let bind = |rules| Tcp::bind((Ipv4Addr::LOCALHOST, 0).into(), Arc::new(Faults::parse(rules).unwrap()));
    let why = bind("landing=late-write(1); page-copy:CSA KV=late-write(9)").unwrap_err().to_string();
    assert!(why.starts_with("transport tcp: fault page-copy=late-write: expected delay or corrupt"), "{why}");
    bind("landing=late-write(1); page-copy=delay(1)").unwrap();
}

/// A page that leaves late holds up its post, and arrives whole.
#[test]
fn a_page_leaves_late() {
    let (mut writer, target) = pair("page-copy:window KV=delay(200)", "");
    let (start, ticket) = (Instant::now(), post(&mut writer, &target));
    assert_eq!(end(&mut writer, ticket), End::Done);
    assert!(start.elapsed() >= Duration::from_millis(400), "one page in either unit");
    let pages = vec![vec![1, 2], vec![1]];
    assert!(suite::compared(&target, &pages, &writer, &pages).matches());
}

/// Late bytes of a room that is over land all the same: that is the fault, and quarantine is for it.
#[test]
fn a_late_write_asks_nobody() {
    let (mut writer, target) = pair("", "landing:window KV=late-write(300)");
    let ticket = post(&mut writer, &target);
    assert_eq!(end(&mut writer, ticket), End::Done);
    let mut target = target;
    target.transport.expire(ROOM);
    until("second writing", || (landed(&target) == BYTES + 2 * 4_100).then_some(()));
}

#[test]
fn a_page_is_changed_on_its_way_out() {
    let (mut writer, target) = pair("page-copy:CSA index K=corrupt#2", "");
    let ticket = post(&mut writer, &target);
    assert_eq!(end(&mut writer, ticket), End::Done);
    let pages = vec![vec![1, 2], vec![1]];
    let report = suite::compared(&target, &pages, &writer, &pages).to_string();
    assert!(report.contains("pages 3 of 4 match\nCSA index K, unit 1, page 2"), "{report}");
}

/// Index keys that land late: with the wait the post ends behind them, without it before. A room that ends meanwhile
/// gets nothing any more.
#[test]
fn the_wait_for_a_late_pool_can_be_switched_off() {
    let keys = 2 * 8_449;
    let (mut writer, target) = pair("", "landing:CSA index K=delay(200)");
    let (start, ticket) = (Instant::now(), post(&mut writer, &target));
    assert_eq!(end(&mut writer, ticket), End::Done);
    assert!(start.elapsed() >= Duration::from_millis(400), "two pages");
    assert_eq!(landed(&target), BYTES);

    let rules = "landing:CSA index K=delay(400); gate:CSA index K=skip-wait";
    let (mut writer, mut target) = pair("", rules);
    let ticket = post(&mut writer, &target);
    assert_eq!(end(&mut writer, ticket), End::Done);
    assert_eq!(landed(&target), BYTES - keys, "done without them");
    until("index keys", || (landed(&target) == BYTES).then_some(()));
    let pages = vec![vec![1, 2], vec![1]];
    assert!(suite::compared(&target, &pages, &writer, &pages).matches());

    let ticket = post(&mut writer, &target);
    assert_eq!(end(&mut writer, ticket), End::Done);
    target.transport.expire(ROOM);
    until("dropped keys", || (target.transport.counters().stale_bytes == keys).then_some(()));

    // Another item's wait is no wait for this one.
    let (mut writer, target) = pair("", "landing:CSA index K=delay(1); gate:window KV=skip-wait");
    let ticket = post(&mut writer, &target);
    assert_eq!((end(&mut writer, ticket), landed(&target)), (End::Done, BYTES));
}
