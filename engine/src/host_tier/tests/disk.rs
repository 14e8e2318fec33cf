//! Slots in a file.

use super::geometries;
use super::rig::{Rig, of, seen_of};
use crate::handover::layout;
use crate::host_cache::{HostOrders, HostSizes};
use crate::host_tier::disk::{FileSlots, TieredSlots};
use crate::host_tier::{DiskConfig, HostTier, HostTierConfig, MemorySlots, pool_sizes};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use transfer::exchange::CopySeen;
use transfer::fault::Faults;
use transfer::reason::Code;

/// Of five and four slots, two and one in memory.
const IN_MEMORY: HostSizes = HostSizes { compressed_slots: 2, window_slots: 1 };
const ON_DISK: HostSizes = HostSizes { compressed_slots: 3, window_slots: 3 };

fn config(dir: &Path, faults: &str) -> HostTierConfig {
    HostTierConfig {
        disk: Some(DiskConfig { dir: dir.into(), sizes: ON_DISK }),
        faults: Arc::new(Faults::parse(faults).expect("rules")),
        ..HostTierConfig::new(IN_MEMORY)
    }
}

/// Saves pages in slots of both kinds and loads them into others.
fn round_trip(rig: &mut Rig) -> CopySeen {
    let (from, slots, to) = (of(&[0, 1, 2], &[0, 1]), of(&[1, 2, 4], &[0, 3]), of(&[3, 4, 5], &[2, 3]));
    rig.compute(1, &from);
    rig.order(&HostOrders { saves: vec![rig.save(1, 1, &from, &slots)], ..HostOrders::default() });
    let saved = rig.until_over(1);
    if saved != CopySeen::Done {
        return saved;
    }
    let before = rig.contents();
    rig.order(&HostOrders { loads: vec![rig.load(2, 7, &slots, &to)], ..HostOrders::default() });
    assert_ne!(seen_of(&mut rig.tier, 2), Some(CopySeen::Done));
    let loaded = rig.until_over(2);
    let after = rig.contents();
    if loaded == CopySeen::Done {
        for (from, to) in from.iter().flatten().zip(to.iter().flatten()) {
            assert_eq!(rig.page(&after, *to), rig.page(&before, *from), "{from:?} to {to:?}");
        }
    }
    loaded
}

#[test]
fn pages_come_back_from_memory_and_disk_and_nothing_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    for geometry in geometries().into_iter().step_by(5) {
        let config = config(folder.path(), "");
        assert_eq!(config.slots(), HostSizes { compressed_slots: 5, window_slots: 4 });
        let in_memory = HostTierConfig::new(IN_MEMORY).bytes(&geometry).expect("small");
        let mut rig = Rig::new(&geometry, &config);
        assert_eq!(rig.tier.bytes(), in_memory, "what is on disk takes no memory");
        assert_eq!(round_trip(&mut rig), CopySeen::Done, "{geometry:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "the file has no name");
    }
}

/// What a disk gives back is compared, whether or not memory is.
#[test]
fn a_changed_page_on_disk_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    // Two saves of a page with one window per layer: the first layer's of the first, in memory, and of the second, on disk.
    for (nth, found) in [(1, false), (5, true)] {
        let config = config(folder.path(), &format!("host-save:window KV=corrupt#{nth}"));
        let mut rig = Rig::new(&geometries()[0], &config);
        assert_eq!(rig.caches.gate().num_units(), 4);
        rig.compute(1, &of(&[], &[0, 1]));
        for (id, page, slot) in [(1, 0, 0), (2, 1, 2)] {
            let save = rig.save(id, 1, &of(&[], &[page]), &of(&[], &[slot]));
            rig.order(&HostOrders { saves: vec![save], ..HostOrders::default() });
            assert_eq!(rig.until_over(id), CopySeen::Done);
        }
        let load = rig.load(3, 7, &of(&[], &[0, 2]), &of(&[], &[2, 3]));
        rig.order(&HostOrders { loads: vec![load], ..HostOrders::default() });
        match rig.until_over(3) {
            CopySeen::Failed(reason) => {
                assert!(found && reason.text.starts_with("window KV, unit 0, slot 2: expected the sum"), "{reason}");
                assert_eq!(reason.code, Code::Checksum);
            }
            // In memory only `verify` would have found it.
            end => assert_eq!((end, found), (CopySeen::Done, false)),
        }
    }
}

/// A disk may fail at the last page, so that no request goes on before that: such a load is Done or nothing. One out of memory
/// may be used as it comes.
#[test]
fn what_is_on_disk_is_used_once_all_of_it_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::new(&geometries()[1], &config(folder.path(), ""));
    let from = of(&[0, 1], &[0, 1]);
    rig.compute(1, &from);
    let slots = of(&[1, 2], &[0, 1]);
    rig.order(&HostOrders { saves: vec![rig.save(1, 1, &from, &slots)], ..HostOrders::default() });
    assert_eq!(rig.until_over(1), CopySeen::Done);
    for (id, slot, window, first) in
        [(2, 1, 0, CopySeen::Checked), (3, 2, 0, CopySeen::Done), (4, 1, 1, CopySeen::Done)]
    {
        let to = of(&[id as u32], &[id as u32]);
        let load = rig.load(id, id, &of(&[slot], &[window]), &to);
        rig.order(&HostOrders { loads: vec![load], ..HostOrders::default() });
        let mut seen = seen_of(&mut rig.tier, id).expect("ordered");
        while seen == CopySeen::Moving {
            rig.order(&HostOrders::default());
            seen = seen_of(&mut rig.tier, id).expect("not dropped");
        }
        assert_eq!(seen, first, "slots {slot} and {window}");
        assert_eq!(rig.until_over(id), CopySeen::Done);
    }
}

/// A tier over a file of our choice.
fn over(file: File) -> Rig {
    let geometry = &geometries()[1];
    let layout = |sizes| layout(geometry, pool_sizes(sizes)).expect("small");
    let store = TieredSlots {
        memory: MemorySlots::new(layout(IN_MEMORY)).expect("small"),
        file: FileSlots::over(file, layout(ON_DISK), "/cache".into()),
        in_memory: IN_MEMORY,
    };
    let config = config(Path::new("/cache"), "");
    Rig::with(geometry, HostTier::on(geometry, &config, Box::new(store)).expect("starts"))
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_ends_the_save() {
    let full = OpenOptions::new().read(true).write(true).open("/dev/full").expect("every Linux has it");
    let CopySeen::Failed(reason) = round_trip(&mut over(full)) else { panic!("nobody noticed") };
    assert_eq!(reason.code, Code::HostMemory);
    assert!(reason.text.contains("slot 3: writing slots in /cache: No space left on device"), "{reason}");
}

#[test]
fn a_file_that_was_cut_ends_the_load() {
    let file = tempfile::tempfile().expect("a file");
    let cut = file.try_clone().expect("the same file");
    let mut rig = over(file);
    let (from, slots) = (of(&[0], &[0]), of(&[4], &[3]));
    rig.compute(1, &from);
    rig.order(&HostOrders { saves: vec![rig.save(1, 1, &from, &slots)], ..HostOrders::default() });
    assert_eq!(rig.until_over(1), CopySeen::Done);
    cut.set_len(100).expect("shorter");
    rig.order(&HostOrders { loads: vec![rig.load(2, 7, &slots, &of(&[4], &[4]))], ..HostOrders::default() });
    let CopySeen::Failed(reason) = rig.until_over(2) else { panic!("nobody noticed") };
    assert!(reason.text.contains("reading slots in /cache: "), "{reason}");
    rig.readable(7, &of(&[4], &[4])).expect_err("not published");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = HostTier::new(&geometries()[0], &config(Path::new("/no/such/folder"), "")).expect_err("no file");
    assert!(error.to_string().starts_with("host slots in /no/such/folder/host-cache-"), "{error}");
}
