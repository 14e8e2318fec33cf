use super::*;
use crate::ids::Class;
use crate::layout::{ClassSpec, ItemSpec};

/// Unit 1: index keys of 132 bytes in class 0, window rows of 100 in class 1. Page `p` of item `i` starts as bytes `16 i + p`.
fn filled(num_pages: u32, pages: &[Vec<u32>]) -> (Arena, Layout) {
    let class = |name: &str| ClassSpec { name: name.into(), num_pages };
    let item = |unit, name: &str, class, page_bytes| ItemSpec {
        unit: Unit(unit),
        name: name.into(),
        class: Class(class),
        page_bytes,
    };
    let specs = vec![item(0, "window KV", 1, 64), item(1, "CSA index K", 0, 132), item(1, "window KV", 1, 100)];
    let layout = Layout::new(vec![class("compressed"), class("window")], specs).unwrap();
    let arena = Arena::of(&layout).unwrap();
    for (i, item) in layout.items().iter().enumerate() {
        for (nth, &page) in pages[item.spec.class.0 as usize].iter().enumerate() {
            let (offset, bytes) = layout.place(item, page);
            arena.fill(offset, bytes, 16 * i as u8 + nth as u8).unwrap();
        }
    }
    (arena, layout)
}

#[test]
fn a_changed_byte_is_found_by_sum_and_named_by_comparison() {
    let (from, to) = (vec![vec![2, 0], vec![1]], vec![vec![5, 4], vec![3]]);
    let (sent, sender) = filled(3, &from);
    let (landed, receiver) = filled(6, &to);
    let theirs = Place { arena: &sent, layout: &sender, pages: &from };
    let ours = Place { arena: &landed, layout: &receiver, pages: &to };
    let expected = sums(theirs, Unit(1)).unwrap();
    assert_eq!(expected[0], xxhash_rust::xxh3::xxh3_64(&[16; 132]), "first page listed of the unit's first item");
    assert_eq!(verify(ours, Unit(1), &expected).unwrap().to_string(), "pages 3 of 3 match");

    // Page 4 of the index keys: byte 130, so the last line of 4 bytes.
    let (offset, bytes) = receiver.place(&receiver.items()[1], 4);
    landed.write(offset + 130, &[0xaa]).unwrap();
    // Padding is nobody's: it changes nothing.
    landed.write(offset + bytes, &[0xbb]).unwrap();
    let report = verify(ours, Unit(1), &expected).unwrap();
    assert_eq!(report.to_string(), "pages 2 of 3 match\nCSA index K, unit 1, page 4");
    let mut report = compare(ours, theirs, Unit(1)).unwrap();
    let text = "\nCSA index K, unit 1, page 4: bytes 128..132\n  ours   1111aa11\n  theirs 11111111";
    assert_eq!(report.to_string(), format!("pages 2 of 3 match{text}"));

    let mut rooms = Rooms::default();
    rooms.add(&report);
    report.extend(compare(ours, theirs, Unit(0)).unwrap());
    assert_eq!(report.to_string(), format!("pages 3 of 4 match{text}"));
    rooms.add(&Report::default());
    assert_eq!(rooms.to_string(), "1 of 2 rooms match");
}

#[test]
fn what_does_not_go_together_is_named() {
    let pages = vec![vec![2, 0], vec![1]];
    let (arena, layout) = filled(3, &pages);
    let place = Place { arena: &arena, layout: &layout, pages: &pages };
    assert_eq!(verify(place, Unit(1), &[1]).unwrap_err().to_string(), "unit 1: 1 checksums for 3 pages");
    let beyond = vec![vec![], vec![3]];
    let error = sums(Place { pages: &beyond, ..place }, Unit(1)).unwrap_err().to_string();
    assert_eq!(error, "page 3 of class window: the arena has 3");
}
