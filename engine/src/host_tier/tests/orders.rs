//! Any sequence of orders.

use super::rig::{Places, Rig, of, seen_of};
use super::{SLOTS, geometries};
use crate::host_cache::{HostOrders, HostSizes};
use crate::host_tier::{DiskConfig, HostTierConfig};
use kernel_bindings::host::HostOps;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer::exchange::{CopyId, CopySeen};
use transfer::fault::Faults;
use transfer::ids::Unit;

#[derive(Debug, Clone)]
enum Act {
    /// A text in one place is computed anew and saved in a slot.
    Save(u32, u32),
    /// A slot is loaded into a place.
    Load(u32, u32),
    /// A copy is dropped, over or not.
    Drop(usize),
    /// A step waits for a unit of a load.
    Await(usize, u32),
    Exchange,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u32..4, 0u32..4).prop_map(|(place, slot)| Act::Save(place, slot)),
        4 => (0u32..4, 0u32..4).prop_map(|(slot, place)| Act::Load(slot, place)),
        2 => any::<usize>().prop_map(Act::Drop),
        2 => (any::<usize>(), 0u32..8).prop_map(|(nth, unit)| Act::Await(nth, unit)),
        3 => Just(Act::Exchange),
    ]
}

/// Page `i` of both classes.
fn at(i: u32) -> Places {
    of(&[i], &[i])
}

type Rows = Vec<Vec<Vec<u8>>>;

/// What the orders mean: what every slot holds, and every copy under way.
#[derive(Default)]
struct Books {
    slots: BTreeMap<u32, Rows>,
    saves: BTreeMap<u64, (u32, u32, Rows)>,
    /// Slot, place, generation, rows.
    loads: BTreeMap<u64, (u32, u32, u64, Rows)>,
}

impl Books {
    fn uses_slot(&self, slot: u32) -> bool {
        self.saves.values().any(|save| save.1 == slot) || self.loads.values().any(|load| load.0 == slot)
    }

    fn uses_place(&self, place: u32) -> bool {
        self.saves.values().any(|save| save.0 == place) || self.loads.values().any(|load| load.1 == place)
    }

    /// Books what is over.
    fn settle(&mut self, rig: &mut Rig) {
        let ids: Vec<u64> = self.saves.keys().chain(self.loads.keys()).copied().collect();
        for id in ids {
            let seen = seen_of(&mut rig.tier, id).expect("not dropped");
            let over = matches!(seen, CopySeen::Done | CopySeen::Failed(_));
            if let CopySeen::Failed(reason) = &seen {
                assert!(reason.text.ends_with("injected fault"), "copy {id}: {reason}");
            }
            if let Some((_, slot, rows)) = self.saves.get(&id).filter(|_| over).cloned() {
                self.saves.remove(&id);
                if seen == CopySeen::Done {
                    self.slots.insert(slot, rows);
                }
            }
            if let Some((_, place, generation, rows)) = self.loads.get(&id).cloned() {
                let readable = rig.readable(generation, &at(place));
                assert_eq!(readable.is_ok(), seen == CopySeen::Done, "copy {id} is {seen:?}: {readable:?}");
                if over {
                    self.loads.remove(&id);
                    match seen {
                        CopySeen::Done => assert!(rows_at(rig, place) == rows, "copy {id} brought other bytes"),
                        // Until then the pages are the load's.
                        _ => rig.order(&HostOrders { drops: vec![CopyId(id)], ..HostOrders::default() }),
                    }
                }
            }
        }
    }
}

fn rows_at(rig: &Rig, place: u32) -> Rows {
    let contents = rig.contents();
    at(place).iter().flatten().map(|page| rig.page(&contents, *page)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is ordered, in whatever order it comes, with pools that come late and parts that fail: a load that is done has
    /// brought what was saved, its pages are readable then and not before, and pages and slots of what was dropped serve again.
    #[test]
    fn loads_bring_what_was_saved(acts in prop::collection::vec(act(), 1..40), verify: bool, disk: bool, buffers in 1u32..4, seed: u64) {
        let rules = format!("seed={seed}; host-load=delay(2)@0.1; host-load=fail@0.01; host-save=fail@0.01");
        let faults = Arc::new(Faults::parse(&rules).expect("rules"));
        let config = HostTierConfig { verify, staging_buffers: buffers, staging_bytes: 0, faults, ..HostTierConfig::new(SLOTS) };
        let (sizes, rest) = (HostSizes { compressed_slots: 2, window_slots: 1 }, HostSizes { compressed_slots: 2, window_slots: 3 });
        let on_disk = DiskConfig { dir: std::env::temp_dir(), sizes: rest };
        let config = if disk { HostTierConfig { sizes, disk: Some(on_disk), ..config } } else { config };
        let mut rig = Rig::new(&geometries()[1], &config);
        let (mut books, mut next) = (Books::default(), 0);
        for act in acts {
            next += 1;
            let mut orders = HostOrders::default();
            match act {
                Act::Save(place, slot) if !books.uses_slot(slot) && !books.uses_place(place) => {
                    rig.compute(next, &at(place));
                    orders.saves.push(rig.save(next, next, &at(place), &at(slot)));
                    books.slots.remove(&slot);
                    books.saves.insert(next, (place, slot, rows_at(&rig, place)));
                }
                Act::Load(slot, place) if !books.uses_place(place) && !books.saves.values().any(|save| save.1 == slot) => {
                    let Some(rows) = books.slots.get(&slot).cloned() else { continue };
                    orders.loads.push(rig.load(next, next, &at(slot), &at(place)));
                    books.loads.insert(next, (slot, place, next, rows));
                }
                Act::Drop(nth) => {
                    let ids: Vec<u64> = books.saves.keys().chain(books.loads.keys()).copied().collect();
                    let Some(&id) = ids.get(nth % ids.len().max(1)) else { continue };
                    orders.drops.push(CopyId(id));
                    books.saves.remove(&id);
                    books.loads.remove(&id);
                }
                Act::Await(nth, unit) => {
                    let ids: Vec<u64> = books.loads.keys().copied().collect();
                    let Some(&id) = ids.get(nth % ids.len().max(1)) else { continue };
                    let unit = Unit(unit % rig.caches.gate().num_units());
                    let Rig { tier, caches, .. } = &mut rig;
                    let end = tier.await_unit(&HostOps, caches, unit, &[CopyId(id)]);
                    let failed = matches!(seen_of(&mut rig.tier, id), Some(CopySeen::Failed(_)));
                    prop_assert!(end.is_ok() || failed, "{end:?}");
                    if end.is_ok() {
                        let (_, place, generation, _) = &books.loads[&id];
                        rig.unit_readable(unit, *generation, &at(*place)).expect("waited for");
                    }
                }
                _ => {}
            }
            rig.order(&orders);
            books.settle(&mut rig);
        }
        let ids: Vec<u64> = books.saves.keys().chain(books.loads.keys()).copied().collect();
        ids.into_iter().for_each(|id| drop(rig.until_over(id)));
        books.settle(&mut rig);
        prop_assert!(books.saves.is_empty() && books.loads.is_empty());
    }
}
