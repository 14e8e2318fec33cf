//! How copies end other than well, and what is left then.

use super::rig::{Rig, of, seen_of};
use super::{SLOTS, geometries};
use crate::geometry::PoolName;
use crate::host_cache::HostOrders;
use crate::host_tier::HostTierConfig;
use std::sync::Arc;
use std::time::Duration;
use transfer::exchange::{CopyId, CopySeen};
use transfer::fault::Faults;
use transfer::ids::Unit;
use transfer::reason::Code;

fn drop_of(id: u64) -> HostOrders {
    HostOrders { drops: vec![CopyId(id)], ..HostOrders::default() }
}

fn faulty(faults: &str) -> HostTierConfig {
    HostTierConfig { faults: Arc::new(Faults::parse(faults).expect("rules")), ..HostTierConfig::new(SLOTS) }
}

/// A rig with a text of two pages in slots 0 and 1 under copy 1.
fn saved(mut rig: Rig) -> Rig {
    rig.compute(1, &of(&[0, 1], &[0]));
    let save = rig.save(1, 1, &of(&[0, 1], &[0]), &of(&[0, 1], &[0]));
    rig.order(&HostOrders { saves: vec![save], ..HostOrders::default() });
    assert_eq!(rig.until_over(1), CopySeen::Done);
    rig
}

fn begin_load(rig: &mut Rig) {
    let load = rig.load(2, 7, &of(&[0, 1], &[0]), &of(&[4, 5], &[3]));
    rig.order(&HostOrders { loads: vec![load], ..HostOrders::default() });
}

fn is_moving(seen: &CopySeen) -> bool {
    matches!(seen, CopySeen::Moving | CopySeen::Checked)
}

/// A page that was changed in its slot is found, named, and never published; its text can be computed in the same pages.
#[test]
fn a_changed_page_is_found_before_anybody_reads() {
    for faults in ["host-save:CSA index K=corrupt#1", "host-load:CSA index K=corrupt#1"] {
        let config = HostTierConfig { verify: true, ..faulty(faults) };
        let mut rig = saved(Rig::new(&geometries()[1], &config));
        begin_load(&mut rig);
        let CopySeen::Failed(reason) = rig.until_over(2) else { panic!("{faults} was not seen") };
        assert_eq!(reason.code, Code::Checksum);
        let (place, sums) = reason.text.split_once(": ").expect("a place");
        // Layer 1 of the tiny model is the first with index keys.
        assert_eq!(place, "CSA index K, unit 1, slot 0");
        assert!(sums.starts_with("expected the sum ") && sums.contains(", got "), "{sums}");
        let refused = rig.readable(7, &of(&[4, 5], &[3])).expect_err("not published");
        assert!(refused.contains("is not published (room 7 epoch 1)"), "{refused}");
        rig.order(&drop_of(2));
        rig.compute(7, &of(&[4, 5], &[3]));
        rig.readable(7, &of(&[4, 5], &[3])).expect("computed here");
    }
}

#[test]
fn a_store_that_fails_ends_the_copy_and_nothing_else() {
    let (rig, valve) = Rig::behind(&geometries()[1], &HostTierConfig::new(SLOTS));
    let mut rig = saved(rig);
    valve.fail();
    begin_load(&mut rig);
    let failed = |seen| matches!(seen, CopySeen::Failed(reason) if reason.text.ends_with("the store is broken"));
    assert!(failed(rig.until_over(2)));
    let save = rig.save(3, 1, &of(&[0, 1], &[0]), &of(&[1, 0], &[0]));
    rig.order(&HostOrders { saves: vec![save], ..HostOrders::default() });
    assert!(failed(rig.until_over(3)));
    // What a failed save was to fill holds nothing any more.
    let load = rig.load(4, 8, &of(&[0, 1], &[0]), &of(&[2, 3], &[2]));
    rig.order(&HostOrders { loads: vec![load], ..HostOrders::default() });
    assert!(matches!(seen_of(&mut rig.tier, 4), Some(CopySeen::Failed(why)) if why.text.contains("holds no page")));
}

#[test]
fn injected_failures_end_the_copy() {
    let mut rig = Rig::new(&geometries()[1], &faulty("host-save:HCA KV=fail#1; host-load:window KV=fail#1"));
    rig.compute(1, &of(&[0, 1], &[0]));
    for (id, expected) in [(1, "HCA KV, unit 2, slot 1: injected fault"), (2, "")] {
        let save = rig.save(id, 1, &of(&[0, 1], &[0]), &of(&[1, 0], &[0]));
        rig.order(&HostOrders { saves: vec![save], ..HostOrders::default() });
        match rig.until_over(id) {
            CopySeen::Failed(reason) => assert_eq!(reason.text, expected),
            end => assert_eq!((end, expected), (CopySeen::Done, "")),
        }
    }
    let load = rig.load(3, 7, &of(&[1], &[0]), &of(&[4], &[3]));
    rig.order(&HostOrders { loads: vec![load], ..HostOrders::default() });
    assert!(
        matches!(rig.until_over(3), CopySeen::Failed(why) if why.text == "window KV, unit 0, slot 0: injected fault")
    );
}

/// Dropped before it is checked, before it is staged, half in the cache, done, failed: the report forgets it, nobody reads its
/// pages, and they can be given to the same generation again.
#[test]
fn loads_can_be_dropped_in_every_state() {
    let pages = of(&[4, 5], &[3]);
    for (verify, buffers) in [(true, 1), (false, 1), (false, 4)] {
        let config =
            HostTierConfig { verify, staging_buffers: buffers, staging_bytes: 0, ..HostTierConfig::new(SLOTS) };
        let (rig, valve) = Rig::behind(&geometries()[1], &config);
        let mut rig = saved(rig);
        valve.close();
        begin_load(&mut rig);
        valve.reached();
        let seen = seen_of(&mut rig.tier, 2).expect("ordered");
        assert_eq!(seen, if verify { CopySeen::Moving } else { CopySeen::Checked });
        rig.order(&drop_of(2));
        assert_eq!(seen_of(&mut rig.tier, 2), None);
        rig.readable(7, &pages).expect_err("nobody's");
        valve.open();
        rig.compute(7, &pages);
        let computed = rig.contents();
        // Whatever of the dropped load is still staged goes nowhere, the rest is not even read; a load behind it comes.
        let before = valve.passed();
        let load = rig.load(3, 8, &of(&[0, 1], &[0]), &of(&[2, 3], &[2]));
        rig.order(&HostOrders { loads: vec![load], ..HostOrders::default() });
        assert_eq!(rig.until_over(3), CopySeen::Done);
        let reads = valve.passed() - before;
        // Two compressed pages and a window page of every buffer, and the page that was held.
        let compressed = rig.num_buffers(PoolName::Compressed);
        let load = 2 * compressed + rig.num_buffers(PoolName::Window);
        assert!(reads <= load * if verify { 2 } else { 1 } + 1, "{reads} reads for {load} pages");
        let after = rig.contents();
        for page in pages.iter().flatten() {
            assert_eq!(rig.page(&after, *page), rig.page(&computed, *page));
        }
    }
}

#[test]
fn a_load_that_is_half_in_the_cache_can_be_dropped() {
    let (verify, pages) = (false, of(&[4, 5], &[3]));
    let config = HostTierConfig { verify, staging_buffers: 1, staging_bytes: 0, ..HostTierConfig::new(SLOTS) };
    let mut rig = saved(Rig::new(&geometries()[1], &config));
    begin_load(&mut rig);
    // One buffer of one page: unit 0 is one page, and far more follow.
    let Rig { tier, caches, .. } = &mut rig;
    tier.await_unit(&kernel_bindings::host::HostOps, caches, Unit(0), &[CopyId(2)]).expect("comes");
    assert!(is_moving(&seen_of(&mut rig.tier, 2).expect("ordered")));
    let refused = rig.readable(7, &pages).expect_err("one unit of many");
    assert!(refused.contains("is not published"), "{refused}");
    rig.order(&drop_of(2));
    rig.compute(7, &pages);
    rig.readable(7, &pages).expect("computed here");
}

/// The pages of a dropped save stand in the queue ahead of what is ordered next, and do not end up behind it.
#[test]
fn a_dropped_save_does_not_come_after_the_next_one() {
    // As many buffers as parts: the answer does not wait for the store.
    let config = HostTierConfig { staging_buffers: 16, ..HostTierConfig::new(SLOTS) };
    let (mut rig, valve) = Rig::behind(&geometries()[1], &config);
    let (old, new, slots) = (of(&[0], &[0]), of(&[1], &[1]), of(&[2], &[2]));
    rig.compute(1, &old);
    rig.compute(2, &new);
    valve.close();
    rig.order(&HostOrders { saves: vec![rig.save(1, 1, &old, &slots)], ..HostOrders::default() });
    valve.reached();
    assert_eq!(seen_of(&mut rig.tier, 1), Some(CopySeen::Moving));
    rig.order(&drop_of(1));
    valve.open();
    rig.order(&HostOrders { saves: vec![rig.save(2, 2, &new, &slots)], ..HostOrders::default() });
    assert_eq!(rig.until_over(2), CopySeen::Done);
    let load = rig.load(3, 7, &slots, &of(&[4], &[4]));
    rig.order(&HostOrders { loads: vec![load], ..HostOrders::default() });
    assert_eq!(rig.until_over(3), CopySeen::Done);
    let contents = rig.contents();
    assert_eq!(rig.page(&contents, of(&[4], &[])[0][0]), rig.page(&contents, of(&[1], &[])[0][0]));
}

#[test]
fn a_wait_has_an_end_that_names_copy_and_unit() {
    let deadline = Duration::from_millis(150);
    let late = HostTierConfig { deadline, ..faulty("host-load:HCA KV=delay(600000)") };
    let mut rig = saved(Rig::new(&geometries()[1], &late));
    begin_load(&mut rig);
    // Layer 2 of the tiny model is the first with HCA rows, and the only one.
    let others = [0, 1, 3, 4].map(Unit);
    rig.exchange_until(|rig| others.iter().all(|&unit| rig.unit_readable(unit, 7, &of(&[4, 5], &[3])).is_ok()));
    let Rig { tier, caches, .. } = &mut rig;
    let wait = tier.await_unit(&kernel_bindings::host::HostOps, caches, Unit(2), &[CopyId(2)]);
    let error = wait.expect_err("held up").to_string();
    assert!(error.contains("copy 2: unit 2 was not loaded within 150ms"), "{error}");

    let config = HostTierConfig { deadline, staging_buffers: 1, ..HostTierConfig::new(SLOTS) };
    let (mut rig, valve) = Rig::behind(&geometries()[1], &config);
    rig.compute(1, &of(&[0], &[0]));
    valve.close();
    let save = rig.save(9, 1, &of(&[0], &[0]), &of(&[0], &[0]));
    let error = rig.try_order(&HostOrders { saves: vec![save], ..HostOrders::default() }).expect_err("held up");
    assert!(error.contains("copy 9: unit 1 was not stored within 150ms"), "{error}");
    valve.open();
}

/// A copy engine that is stuck takes jobs until its queue is full, and then ends the order.
#[test]
fn a_queue_that_does_not_move_ends_the_order() {
    // More buffers than a save of one page has parts, so that it waits for none.
    let deadline = Duration::from_millis(150);
    let config = HostTierConfig { deadline, staging_buffers: 16, ..HostTierConfig::new(SLOTS) };
    let (mut rig, valve) = Rig::behind(&geometries()[1], &config);
    rig.compute(1, &of(&[0], &[]));
    let slots = of(&[0], &[]);
    let save = rig.save(100, 1, &of(&[0], &[]), &slots);
    rig.order(&HostOrders { saves: vec![save], ..HostOrders::default() });
    assert_eq!(rig.until_over(100), CopySeen::Done);
    valve.close();
    let mut orders = (0..100).map(|id| {
        let load = rig.load(id, id, &slots, &of(&[4], &[]));
        let drops = id.checked_sub(1).map(CopyId).into_iter().collect();
        let end = rig.try_order(&HostOrders { loads: vec![load], drops, ..HostOrders::default() });
        if id == 0 {
            // Before that it is quick enough to drop what it has not begun.
            valve.reached();
        }
        end
    });
    let error = orders.find_map(Result::err).expect("the queue is full at some time");
    assert!(error.contains("the copy engine took no job within 150ms"), "{error}");
    valve.open();
}
