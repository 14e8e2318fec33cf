//! A tier over caches without a model.

mod disk;
mod ends;
mod orders;
mod rig;

use crate::config::ModelConfig;
use crate::geometry::{CacheGeometry, CacheShape};
use crate::host_cache::{HostOrders, HostSizes};
use reference::ops::{IndexKFormat, KvFormat};
use rig::{Rig, of, seen_of};
use transfer::exchange::CopySeen;

use super::HostTierConfig;

const SLOTS: HostSizes = HostSizes { compressed_slots: 5, window_slots: 4 };

/// Every format with every shape, with and without the draft layer.
fn geometries() -> Vec<CacheGeometry> {
    let tiny = ModelConfig::tiny();
    let plain = ModelConfig { head_dim: 80, index_head_dim: 48, ..tiny.clone() };
    let mut formats = vec![(KvFormat::F32 { d: 80 }, IndexKFormat::F32 { d: 48 }, plain)];
    for kv in [KvFormat::V4Fp8, KvFormat::Bf16, KvFormat::F32 { d: 512 }] {
        for index_k in [IndexKFormat::Fp8, IndexKFormat::Bf16, IndexKFormat::Fp4, IndexKFormat::F32 { d: 128 }] {
            formats.push((kv, index_k, tiny.clone()));
        }
    }
    let shapes = [
        (CacheShape::ring_per_page(128, false), 0),
        (CacheShape::ring_per_page(128, true), 1),
        (CacheShape::ring_per_request(128, false), 0),
        (CacheShape::ring_per_request(128, true), 1),
    ];
    let geometry = |(kv, index_k, config): &(KvFormat, IndexKFormat, ModelConfig), (shape, drafts)| {
        CacheGeometry::new(config, shape, *kv, *index_k, drafts).expect("formats of the model")
    };
    formats.iter().flat_map(|format| shapes.map(|shape| geometry(format, shape))).collect()
}

/// Random bytes through slots into other pages: the pages named are equal in every row of every pool, the draft layer's
/// included, and no other byte has changed.
#[test]
fn every_pool_and_format_comes_back_bit_for_bit() {
    for (nth, geometry) in geometries().into_iter().enumerate() {
        let config = HostTierConfig { verify: nth % 2 == 0, ..HostTierConfig::new(SLOTS) };
        let mut rig = Rig::new(&geometry, &config);
        let (from, to) = (of(&[4, 0, 3], &[2, 3]), of(&[1, 5, 2], &[0, 4]));
        rig.compute(1, &from);
        let before = rig.contents();
        let slots = of(&[1, 2, 0], &[3, 0]);
        rig.order(&HostOrders { saves: vec![rig.save(1, 1, &from, &slots)], ..HostOrders::default() });
        assert_eq!(rig.until_over(1), CopySeen::Done);
        rig.order(&HostOrders { loads: vec![rig.load(2, 7, &slots, &to)], ..HostOrders::default() });
        assert_eq!(rig.until_over(2), CopySeen::Done);
        let mut expected = before.clone();
        for (from, to) in from.iter().flatten().zip(to.iter().flatten()) {
            rig.copy_page(&before, &mut expected, *from, *to);
        }
        assert!(rig.contents() == expected, "{geometry:?}");
        rig.readable(7, &to).expect("published");
    }
}

#[test]
fn a_tier_takes_the_bytes_of_the_plan() {
    for geometry in geometries() {
        let config = HostTierConfig { staging_buffers: 3, staging_bytes: 70_000, ..HostTierConfig::new(SLOTS) };
        // By hand: every page of every buffer in a multiple of 64 bytes, and six buffers for the largest page.
        let (mut slots, mut largest) = (0, 70_000);
        for spec in geometry.buffers(super::pool_sizes(SLOTS)) {
            let (rows, row) = geometry.rows(spec.buffer);
            let page = u64::from(rows) * row;
            slots += u64::from(spec.pages.num_pages) * page.next_multiple_of(64);
            largest = largest.max(page);
        }
        assert_eq!(config.bytes(&geometry).expect("small"), slots + 6 * largest, "{geometry:?}");
        let tier = super::HostTier::new(&geometry, &config).expect("starts");
        assert_eq!(tier.bytes(), slots + 6 * largest);
    }
}

/// Everything that the scheduler could get wrong is told with its numbers.
#[test]
fn orders_that_make_no_sense_are_refused() {
    let geometry = &geometries()[1];
    let mut rig = Rig::new(geometry, &HostTierConfig::new(SLOTS));
    let pages = of(&[1], &[0]);
    rig.compute(1, &pages);
    let save = |rig: &Rig, slot| rig.save(1, 1, &pages, &of(&[slot], &[0]));
    let orders = HostOrders { saves: vec![save(&rig, 5)], ..HostOrders::default() };
    let error = rig.try_order(&orders).expect_err("no such slot");
    assert!(error.contains("copy 1: slot 5 of class 0, of which the tier has 5"), "{error}");
    let orders = HostOrders { saves: vec![save(&rig, 0); 2], ..HostOrders::default() };
    let error = rig.try_order(&orders).expect_err("twice");
    assert!(error.contains("copy 1 was ordered before"), "{error}");
    assert_eq!(rig.until_over(1), CopySeen::Done);
    let slots = of(&[0], &[0]);
    let orders = HostOrders { loads: vec![rig.load(3, 1, &slots, &pages)], ..HostOrders::default() };
    let error = rig.try_order(&orders).expect_err("pages that are readable");
    assert!(error.contains("copy 3: 0 of 2 cache pages could be claimed"), "{error}");
    // Slots that were never filled are no mistake of this rank: the load fails, and nothing else.
    rig.order(&HostOrders { loads: vec![rig.load(4, 2, &of(&[3], &[0]), &of(&[2], &[1]))], ..HostOrders::default() });
    let failed = seen_of(&mut rig.tier, 4);
    assert!(matches!(&failed, Some(CopySeen::Failed(why)) if why.text == "slot 3 of class compressed holds no page"));
}
