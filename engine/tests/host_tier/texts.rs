//! A text whose beginning comes out of host memory is the text that was computed whole.

use crate::rig::{SLOTS, Setup, Text, drops, expected, loads, saves};
use engine::host_tier::HostTierConfig;
use transfer::exchange::CopySeen;

/// Pages of 256 tokens through host memory, the rest of a prompt behind them, then some tokens.
fn through_host(setup: &Setup, config: &HostTierConfig, cached: u32) {
    let text = Text::random(setup.shape(), cached as usize + 30, 0);
    let expected = expected(setup, &text, cached as usize, 8);
    let mut ranks = setup.ranks(setup.tiers(config));
    ranks.run(text.entry(0..cached as usize));
    ranks.exchange(saves(vec![text.save(1, cached)]));
    assert_eq!(ranks.until(1, &CopySeen::Done), CopySeen::Done);
    let mut other = text.elsewhere(1);
    ranks.exchange(loads(vec![other.load(2, cached)]));
    ranks.until(2, &CopySeen::Checked);
    assert_eq!(ranks.go_on(&mut other, cached as usize, 8), expected);
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
