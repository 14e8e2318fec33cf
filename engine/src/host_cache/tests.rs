use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGE: u32 = 4;

fn text(pages: &[u32]) -> Vec<TokenId> {
    pages.iter().flat_map(|&page| (0..PAGE).map(move |i| TokenId(10 * page + i))).collect()
}

fn tier(compressed_slots: u32, window_slots: u32) -> HostCache {
    HostCache::new(PAGE, HostSizes { compressed_slots, window_slots }, HostSizes::default())
}

/// Saves every page of a text, the last one with its window.
fn save(tier: &mut HostCache, pages: &[u32]) -> Vec<Save> {
    let saves = (1..=pages.len()).filter_map(|n| tier.begin_save(&text(&pages[..n]), n == pages.len()));
    let saves: Vec<Save> = saves.collect();
    saves.iter().for_each(|save| tier.finish_save(save));
    saves
}

#[test]
fn a_text_is_found_when_all_of_it_has_arrived() {
    let mut tier = tier(8, 8);
    let first = tier.begin_save(&text(&[1]), false).unwrap();
    let second = tier.begin_save(&text(&[1, 2]), true).unwrap();
    assert_eq!((first.window, second.window), (None, Some(PageId(0))));
    let find = |tier: &mut HostCache| tier.lookup(&text(&[1, 2, 3]), 100, 0, 0);
    assert!(find(&mut tier).is_none(), "nothing has arrived");
    tier.finish_save(&second);
    assert!(find(&mut tier).is_none(), "the first page is still under way");
    tier.finish_save(&first);
    let hit = find(&mut tier).unwrap();
    assert_eq!((hit.tokens, &hit.compressed[..], hit.window), (8, &[PageId(0), PageId(1)][..], PageId(0)));
    tier.unpin(hit);
    assert_eq!(tier.pins(), 0);
}

#[test]
fn a_node_without_its_window_is_no_place_to_resume_from() {
    let mut tier = tier(8, 8);
    save(&mut tier, &[1]);
    for n in [2, 3] {
        let save = tier.begin_save(&text(&[1, 2, 3][..n]), false).unwrap();
        tier.finish_save(&save);
    }
    let hit = tier.lookup(&text(&[1, 2, 3]), 100, 0, 0).unwrap();
    assert_eq!(hit.tokens, PAGE, "the longest text with a window");
    tier.unpin(hit);
    let window = tier.begin_save(&text(&[1, 2, 3]), true).unwrap();
    assert_eq!(window.compressed, None, "only the window was missing");
    tier.finish_save(&window);
    let hit = tier.lookup(&text(&[1, 2, 3]), 100, 0, 0).unwrap();
    assert_eq!(hit.tokens, 3 * PAGE);
    tier.unpin(hit);
}

#[test]
fn what_the_device_has_is_not_loaded_again() {
    let mut tier = tier(8, 8);
    save(&mut tier, &[1, 2, 3]);
    let hit = tier.lookup(&text(&[1, 2, 3]), 100, PAGE, 2).unwrap();
    assert_eq!(hit.compressed, [PageId(2)]);
    tier.unpin(hit);
    assert!(tier.lookup(&text(&[1, 2, 3]), 100, 3 * PAGE, 3).is_none(), "no longer than the device's own");
    assert!(tier.lookup(&text(&[1, 2, 3]), 3 * PAGE - 1, 0, 0).is_none(), "longer than allowed");
}

#[test]
fn a_page_under_way_is_neither_saved_twice_nor_evicted() {
    let mut tier = tier(1, 1);
    let under_way = tier.begin_save(&text(&[1]), true).unwrap();
    assert!(tier.begin_save(&text(&[1]), true).is_none(), "the same text again");
    assert!(tier.begin_save(&text(&[2]), true).is_none(), "no room: the only slot is being written");
    tier.finish_save(&under_way);
    let hit = tier.lookup(&text(&[1]), 100, 0, 0).unwrap();
    assert!(tier.begin_save(&text(&[2]), true).is_none(), "no room: the only slot is being read");
    tier.unpin(hit);
    assert!(tier.begin_save(&text(&[2]), true).is_some(), "the idle text makes room");
    assert!(tier.lookup(&text(&[1]), 100, 0, 0).is_none());
}

#[test]
fn the_least_recently_used_leaf_goes_first() {
    let mut tier = tier(3, 3);
    save(&mut tier, &[1, 2]);
    save(&mut tier, &[3]);
    let hit = tier.lookup(&text(&[1, 2]), 100, 0, 0).unwrap();
    tier.unpin(hit);
    save(&mut tier, &[4]);
    assert!(tier.lookup(&text(&[3]), 100, 0, 0).is_none());
    let hit = tier.lookup(&text(&[1, 2]), 100, 0, 0).unwrap();
    tier.unpin(hit);
}

#[test]
fn a_child_is_not_saved_at_the_cost_of_its_parent() {
    let mut tier = tier(1, 1);
    save(&mut tier, &[1]);
    assert!(tier.begin_save(&text(&[1, 2]), true).is_none());
    let hit = tier.lookup(&text(&[1, 2]), 100, 0, 0).unwrap();
    assert_eq!(hit.tokens, PAGE);
    tier.unpin(hit);
}

#[test]
fn a_failed_save_gives_its_slots_back_and_takes_what_stood_on_it() {
    let mut tier = tier(4, 4);
    let first = tier.begin_save(&text(&[1]), true).unwrap();
    let second = tier.begin_save(&text(&[1, 2]), true).unwrap();
    tier.give_up_save(&first);
    tier.audit().unwrap();
    assert_eq!(tier.len(), 2, "the child is still being written");
    tier.finish_save(&second);
    assert!(tier.lookup(&text(&[1, 2]), 100, 0, 0).is_none(), "its first page is not there");
    tier.clear();
    assert!(tier.is_empty());
    tier.audit().unwrap();
}

#[derive(Debug, Clone)]
enum Act {
    Begin(Vec<u32>, bool),
    Finish(usize),
    GiveUp(usize),
    Lookup(Vec<u32>, usize),
    Unpin(usize),
    Clear,
}

fn act() -> impl Strategy<Value = Act> {
    let pages = || proptest::collection::vec(0u32..3, 1..4);
    prop_oneof![
        4 => (pages(), any::<bool>()).prop_map(|(pages, window)| Act::Begin(pages, window)),
        3 => any::<usize>().prop_map(Act::Finish),
        1 => any::<usize>().prop_map(Act::GiveUp),
        3 => (pages(), 0usize..3).prop_map(|(pages, device)| Act::Lookup(pages, device)),
        3 => any::<usize>().prop_map(Act::Unpin),
        1 => Just(Act::Clear),
    ]
}

/// What a slot holds according to the copies that were ordered and finished.
#[derive(Debug, Default)]
struct Memory {
    compressed: BTreeMap<PageId, Vec<u32>>,
    window: BTreeMap<PageId, Vec<u32>>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever the order of saves, failures, hits and evictions: a hit names slots that hold its very text, slots under a
    /// copy are not handed out again, and every slot is accounted for.
    #[test]
    fn hits_name_slots_with_their_text(acts in proptest::collection::vec(act(), 1..80), slots in 1u32..6, windows in 1u32..4) {
        let mut tier = tier(slots, windows);
        let mut memory = Memory::default();
        let mut saves: Vec<(Save, Vec<u32>)> = Vec::new();
        let mut hits: Vec<(HostHit, Vec<u32>, usize)> = Vec::new();
        let check = |memory: &Memory, hit: &HostHit, pages: &[u32], device: usize| {
            let depth = (hit.tokens / PAGE) as usize;
            assert!(depth <= pages.len() && hit.compressed.len() == depth.saturating_sub(device));
            for (slot, n) in hit.compressed.iter().zip(device + 1..) {
                assert_eq!(memory.compressed.get(slot).map(Vec::as_slice), Some(&pages[..n]));
            }
            assert_eq!(memory.window.get(&hit.window).map(Vec::as_slice), Some(&pages[..depth]));
        };
        for act in acts {
            match act {
                Act::Begin(pages, window) => {
                    if let Some(save) = tier.begin_save(&text(&pages), window) {
                        for (other, _) in &saves {
                            prop_assert!(save.compressed.is_none() || save.compressed != other.compressed);
                            prop_assert!(save.window.is_none() || save.window != other.window);
                        }
                        // From now on the slot holds half of something.
                        if let Some(slot) = save.compressed { memory.compressed.remove(&slot); }
                        if let Some(slot) = save.window { memory.window.remove(&slot); }
                        saves.push((save, pages));
                    }
                }
                Act::Finish(at) if !saves.is_empty() => {
                    let (save, pages) = saves.swap_remove(at % saves.len());
                    if let Some(slot) = save.compressed { memory.compressed.insert(slot, pages.clone()); }
                    if let Some(slot) = save.window { memory.window.insert(slot, pages); }
                    tier.finish_save(&save);
                }
                Act::GiveUp(at) if !saves.is_empty() => {
                    let (save, _) = saves.swap_remove(at % saves.len());
                    tier.give_up_save(&save);
                }
                Act::Lookup(pages, device) => {
                    if let Some(hit) = tier.lookup(&text(&pages), 100, 0, device) {
                        check(&memory, &hit, &pages, device);
                        hits.push((hit, pages, device));
                    }
                }
                Act::Unpin(at) if !hits.is_empty() => {
                    let (hit, ..) = hits.swap_remove(at % hits.len());
                    tier.unpin(hit);
                }
                Act::Clear => tier.clear(),
                _ => {}
            }
            tier.audit().unwrap();
            hits.iter().for_each(|(hit, pages, device)| check(&memory, hit, pages, *device));
        }
        hits.into_iter().for_each(|(hit, ..)| tier.unpin(hit));
        saves.iter().for_each(|(save, _)| tier.finish_save(save));
        prop_assert_eq!(tier.pins(), 0);
        tier.clear();
        prop_assert!(tier.is_empty());
    }
}
