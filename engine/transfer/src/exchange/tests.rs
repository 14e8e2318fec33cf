use super::*;
use crate::hello::MAX_UNITS;
use crate::ids::Unit;
use proptest::prelude::*;

const KEYS: [RoomKey; 3] =
    [RoomKey { room: 1, epoch: 1 }, RoomKey { room: 1, epoch: 2 }, RoomKey { room: 2, epoch: 1 }];

fn record() -> impl Strategy<Value = Option<Arc<[u8]>>> {
    prop_oneof![4 => Just(None), 8 => Just(Some(Arc::from(&b"same"[..]))), 1 => Just(Some(Arc::from(&b"other"[..])))]
}

fn reason() -> impl Strategy<Value = Option<Reason>> {
    let one = (0..4_usize, "[ab]{0,2}").prop_map(|(code, text)| Some(Reason::new(Code::ALL[code], text)));
    prop_oneof![3 => Just(None), 1 => one]
}

fn room() -> impl Strategy<Value = RoomSeen> {
    (record(), prop::collection::vec(0..MAX_UNITS, 0..12), record(), reason(), any::<bool>()).prop_map(
        |(arrived, landed, done, failed, quiet)| {
            let landed = landed.into_iter().map(Unit).collect();
            RoomSeen { arrived, landed, done, failed, quiet }
        },
    )
}

fn rooms() -> impl Strategy<Value = BTreeMap<RoomKey, RoomSeen>> {
    prop::collection::btree_map(prop::sample::select(&KEYS[..]), room(), 0..3)
}

fn copy() -> impl Strategy<Value = CopySeen> {
    let failed = "[ab]{0,2}".prop_map(|text| CopySeen::Failed(Reason::new(Code::Aborted, text)));
    prop_oneof![2 => Just(CopySeen::Moving), 2 => Just(CopySeen::Checked), 4 => Just(CopySeen::Done), 1 => failed]
}

fn copies() -> impl Strategy<Value = BTreeMap<CopyId, CopySeen>> {
    prop::collection::btree_map((0..4_u64).prop_map(CopyId), copy(), 0..4)
}

fn reports() -> impl Strategy<Value = Vec<Report>> {
    prop::collection::vec((rooms(), copies()), 1..5).prop_map(|all| {
        let applied = Applied { number: 3, hash: 9 };
        let report = |(rank, (rooms, copies))| Report { rank, applied, rooms, copies, ..Report::default() };
        (0..).zip(all).map(report).collect()
    })
}

/// Whether `after` has seen all that `before` has, and perhaps more. A failure stays; which of several is named may change.
fn grew(before: &RoomSeen, after: &RoomSeen) -> bool {
    let kept = |before: &Option<Arc<[u8]>>, after: &Option<Arc<[u8]>>| before.is_none() || before == after;
    kept(&before.arrived, &after.arrived)
        && kept(&before.done, &after.done)
        && before.landed.without(after.landed).is_empty()
        && (before.failed.is_none() || after.failed.is_some())
        && (!before.quiet || after.quiet)
}

fn grow(seen: &mut RoomSeen, more: RoomSeen) {
    seen.arrived = seen.arrived.take().or(more.arrived);
    seen.done = seen.done.take().or(more.done);
    more.landed.iter().for_each(|unit| _ = seen.landed.insert(unit));
    seen.failed = seen.failed.take().or(more.failed);
    seen.quiet |= more.quiet;
}

proptest! {
    #[test]
    fn the_order_of_ranks_does_not_matter(reports in reports(), swaps in prop::collection::vec(any::<prop::sample::Index>(), 8)) {
        let expected = merge(&reports);
        let mut shuffled = reports;
        for (i, swap) in swaps.iter().enumerate() {
            let (a, b) = (i % shuffled.len(), swap.index(shuffled.len()));
            shuffled.swap(a, b);
        }
        prop_assert_eq!(merge(&shuffled), expected);
    }

    #[test]
    fn what_all_agreed_on_they_agree_on_again(reports in reports()) {
        let agreed = merge(&reports).unwrap();
        let Agreed { applied, rooms, copies, peers } = agreed.clone();
        let again =
            |rank| Report { rank, applied, rooms: rooms.clone(), copies: copies.clone(), peers: peers.clone() };
        prop_assert_eq!(merge(&[again(0), again(1), again(2)]).unwrap(), agreed);
    }

    /// A rank that has seen more never makes the ranks agree on less. (Different records of one room are no growth but a
    /// failure, so they are left out.)
    #[test]
    fn more_seen_is_never_less_agreed(reports in reports(), which in any::<prop::sample::Index>(), more in rooms()) {
        let before = merge(&reports).unwrap();
        let mut reports = reports;
        let rank = which.index(reports.len());
        for (key, seen) in more {
            grow(reports[rank].rooms.entry(key).or_default(), seen);
        }
        let after = merge(&reports).unwrap();
        for (key, before) in &before.rooms {
            let after = &after.rooms[key];
            prop_assert!(grew(before, after) || after.failed.is_some(), "{:?} then {:?}", before, after);
        }
    }

    /// A copy counts for as much as the rank that is furthest behind has seen, and a failure anywhere is one everywhere.
    #[test]
    fn copies_are_as_far_as_the_last_rank(reports in reports()) {
        for (id, agreed) in &merge(&reports).unwrap().copies {
            let each: Vec<u8> = reports.iter().map(|r| r.copies.get(id).map_or(0, CopySeen::level)).collect();
            let expected = if each.contains(&3) { 3 } else { *each.iter().min().unwrap() };
            prop_assert_eq!(agreed.level(), expected);
        }
    }

    #[test]
    fn sets_are_sets(a in prop::collection::btree_set(0..MAX_UNITS, 0..20), b in prop::collection::btree_set(0..MAX_UNITS, 0..20)) {
        let set = |units: &std::collections::BTreeSet<u32>| units.iter().copied().map(Unit).collect::<UnitSet>();
        let both = set(&a).both(set(&b));
        prop_assert_eq!(both, a.intersection(&b).copied().map(Unit).collect::<UnitSet>());
        prop_assert_eq!(both.len() as usize, both.iter().count());
        prop_assert_eq!(set(&a).iter().map(|unit| unit.0).collect::<Vec<_>>(), a.iter().copied().collect::<Vec<_>>());
    }
}

fn seen(units: &[u32]) -> RoomSeen {
    RoomSeen { landed: units.iter().copied().map(Unit).collect(), ..RoomSeen::default() }
}

fn report(rank: u32, rooms: &[(RoomKey, RoomSeen)]) -> Report {
    Report { rank, applied: Applied::default(), rooms: rooms.iter().cloned().collect(), ..Report::default() }
}

#[test]
fn all_for_what_has_landed_any_for_what_has_failed() {
    let lost = Reason::new(Code::PeerLost, "reset");
    let (a, b) = (KEYS[0], KEYS[2]);
    let first = report(0, &[(a, RoomSeen { quiet: true, ..seen(&[0, 1, 2]) }), (b, seen(&[0]))]);
    let second = report(1, &[(a, RoomSeen { failed: Some(lost.clone()), quiet: true, ..seen(&[1, 2, 3]) })]);
    let agreed = merge(&[first, second]).unwrap();
    assert_eq!(agreed.rooms[&a], RoomSeen { failed: Some(lost), quiet: true, ..seen(&[1, 2]) });
    assert_eq!(agreed.rooms[&b], RoomSeen::default(), "rank 1 has seen nothing of it");
}

#[test]
fn different_records_are_a_failure_however_many_ranks_lack_theirs() {
    let done = |text: &[u8]| RoomSeen { done: Some(Arc::from(text)), ..RoomSeen::default() };
    let reports = [report(0, &[(KEYS[0], done(b"5"))]), report(1, &[]), report(2, &[(KEYS[0], done(b"6"))])];
    let room = &merge(&reports).unwrap().rooms[&KEYS[0]];
    assert_eq!((room.done.as_ref(), room.failed.as_ref().map(|reason| reason.code)), (None, Some(Code::Protocol)));
}

#[test]
fn ranks_after_different_decisions_are_printed_both() {
    let mut ours = Chain::default();
    let mut theirs = Chain::default();
    ours.decide(Vec::new());
    theirs.decide(vec![Command::Taken { key: KEYS[0] }]);
    assert_eq!(ours.last().number, theirs.last().number, "only the hash tells them apart");
    let first = Report { applied: ours.last(), ..report(0, &[(KEYS[0], seen(&[4, 5]))]) };
    let second = Report { applied: theirs.last(), ..report(1, &[]) };
    let text = merge(&[second, first]).unwrap_err().to_string();
    let expected = format!(
        "ranks stand after different decisions:\n  rank 0 after {}; room 1 epoch 1: 2 units\n  rank 1 after {}",
        ours.last(),
        theirs.last()
    );
    assert_eq!(text, expected);
    assert_eq!(merge(&[]), Err(ExchangeError::Nobody));
}

#[test]
fn decisions_are_carried_out_in_turn_or_not_at_all() {
    let (mut coordinator, mut rank) = (Chain::default(), Chain::default());
    let first = coordinator.decide(vec![Command::Forget { key: KEYS[0] }]);
    let second = coordinator.decide(Vec::new());
    assert!(matches!(rank.follow(&second), Err(ExchangeError::Chain { number: 2, .. })), "the first was left out");
    rank.follow(&first).unwrap();
    assert!(rank.follow(&first).is_err(), "twice");
    let changed = Decision { follows: second.follows ^ 1, ..second.clone() };
    assert!(rank.follow(&changed).is_err(), "another history");
    rank.follow(&second).unwrap();
    assert_eq!(rank.last(), coordinator.last());
}

/// Whatever differs between two commands differs in the hash.
#[test]
fn the_hash_covers_every_field() {
    let (key, other) = (KEYS[0], KEYS[1]);
    let bytes = |text: &[u8]| Arc::<[u8]>::from(text);
    let open = |request, pages| Command::Open { key, server: 0, request: bytes(request), pages };
    let abort = |code, text: &str| Command::Abort { key, reason: Reason::new(code, text) };
    let one_each = [
        vec![],
        vec![open(b"ab", vec![vec![1], vec![]])],
        vec![open(b"ab", vec![vec![], vec![1]])],
        vec![open(b"a", vec![vec![1], vec![]])],
        vec![Command::Open { key, server: 1, request: bytes(b"ab"), pages: vec![vec![1], vec![]] }],
        vec![Command::Accept { key, pages: vec![vec![1], vec![]] }],
        vec![Command::Accept { key, pages: vec![vec![1, 2]] }],
        vec![Command::Done { key, handover: bytes(b"ab") }],
        vec![Command::Taken { key }],
        vec![Command::Taken { key: other }],
        vec![Command::Forget { key }],
        vec![Command::Forget { key }, Command::Forget { key }],
        vec![abort(Code::Aborted, "x")],
        vec![abort(Code::Refused, "x")],
        vec![abort(Code::Aborted, "")],
    ];
    let hash = |commands: &Vec<Command>| Chain::default().decide(commands.clone()).hash();
    let mut hashes: Vec<u64> = one_each.iter().map(hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), one_each.len());
}
