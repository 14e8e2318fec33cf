//! A text whose beginning comes out of host memory is the text that was computed whole.

use crate::rig::{SLOTS, Setup, Text, WIDE, drops, expected, loads, saves};
use engine::host_cache::HostOrders;
use engine::host_tier::HostTierConfig;
use std::sync::Arc;
use transfer::exchange::CopySeen;
use transfer::fault::Faults;

/// Pages of 256 tokens through host memory, the rest of a prompt behind them, then some tokens.
fn through_host(setup: &Setup, config: &HostTierConfig, cached: u32) {
    let text = Text::random(setup.shape(), cached as usize + 30, 0);
    let expected = expected(setup, &text, cached as usize, 8);
    let mut ranks = setup.ranks(setup.tiers(config));
    ranks.run(text.entry(0..cached as usize));
    ranks.exchange(saves(vec![text.save(1, cached)]));
    assert_eq!(ranks.until(1, &CopySeen::Done), CopySeen::Done);
    let other = text.elsewhere(1);
    ranks.exchange(loads(vec![other.load(2, cached)]));
    ranks.until(2, &CopySeen::Checked);
    assert_eq!(ranks.go_on(other, cached as usize, 8, HostOrders::default()), expected);
    assert_eq!(ranks.until(2, &CopySeen::Done), CopySeen::Done);
    assert!(ranks.exchange(drops(&[1, 2])).copies.is_empty());
}

#[test]
fn a_text_comes_back() {
    for (mtp, per_page) in [(false, false), (false, true), (true, false), (true, true)] {
        let setup = Setup { mtp, per_page, ..Setup::new() };
        let verify = per_page;
        through_host(&setup, &HostTierConfig { verify, ..HostTierConfig::new(SLOTS) }, 256);
    }
}

/// The smallest buffers: a page of the largest item each.
#[test]
fn a_text_comes_back_through_small_buffers() {
    let config = HostTierConfig { staging_buffers: 1, staging_bytes: 0, verify: true, ..HostTierConfig::new(SLOTS) };
    through_host(&Setup::new(), &config, 512);
}

/// Ranks whose copies take their own time, and one whose copy fails: what holds is what holds of all.
#[test]
fn ranks_agree_on_their_copies() {
    let setup = Setup { checkpoint: Arc::clone(&WIDE), ranks: 2, ..Setup::new() };
    let text = Text::random(setup.shape(), 270, 0);
    let expected = expected(&setup, &text, 256, 4);
    let tier = |rules: &str| {
        let faults = Arc::new(Faults::parse(rules).expect("rules"));
        let config = HostTierConfig { verify: true, faults, ..HostTierConfig::new(SLOTS) };
        engine::host_tier::HostTier::new(&setup.geometry(), &config).expect("starts").into()
    };
    // Of the second rank, some parts of the first load are late, and the second load fails.
    let first_load = (1..=16).map(|nth| format!("host-load:window KV=delay(30)#{nth}; "));
    let rules: String = first_load.chain(["host-load:HCA KV=fail#2".into()]).collect();
    let mut ranks = setup.ranks(vec![tier(""), tier(&rules)]);
    ranks.run(text.entry(0..256));
    ranks.exchange(saves(vec![text.save(1, 256)]));
    assert_eq!(ranks.until(1, &CopySeen::Done), CopySeen::Done);
    let other = text.elsewhere(1);
    ranks.exchange(loads(vec![other.load(2, 256)]));
    ranks.until(2, &CopySeen::Checked);
    assert_eq!(ranks.go_on(other, 256, 4, HostOrders::default()), expected);
    ranks.exchange(loads(vec![text.elsewhere(2).load(3, 256)]));
    let CopySeen::Failed(reason) = ranks.until(3, &CopySeen::Done) else { panic!("the second rank's copy fails") };
    assert_eq!(reason.text, "HCA KV, unit 2, slot 0: injected fault");
    // The text is computed where it was to land, and nobody stops.
    let again = text.elsewhere(2);
    ranks.step(again.entry(0..256), drops(&[3])).expect("runs");
    assert_eq!(ranks.go_on(again, 256, 4, HostOrders::default()), expected);
}
