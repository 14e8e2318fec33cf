//! A copy in parts that fit a staging buffer: pages of one item each.

use crate::handover::PageMove;
use std::ops::Range;
use transfer::ids::{Class, Unit};
use transfer::layout::{Item, Layout};

/// Pages of one item that travel in one buffer, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Place of the item in the layout.
    pub(super) item: usize,
    /// Its unit.
    pub(super) unit: Unit,
    /// Which of [`Parts::moves`].
    pub(super) moves: Range<usize>,
    /// Bytes of all pages.
    pub(super) bytes: usize,
}

/// A copy, unit by unit and item by item: the order in which a unit is exported.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Pages, those of a class together.
    pub(super) moves: Vec<PageMove>,
    pub(super) list: Vec<Part>,
}

impl Parts {
    /// Parts of at most `most` bytes, which holds a page of every item.
    pub(super) fn new(layout: &Layout, moves: &[PageMove], most: usize) -> Self {
        let mut moves = moves.to_vec();
        moves.sort_by_key(|pages| pages.class);
        let of_class = |class: Class| {
            let first = moves.partition_point(|pages| pages.class < class);
            first..moves.partition_point(|pages| pages.class <= class)
        };
        let mut list = Vec::new();
        for (item, Item { spec, .. }) in layout.items().iter().enumerate() {
            let page = spec.page_bytes as usize;
            let range = of_class(spec.class);
            let step = (most / page.max(1)).max(1);
            for first in range.clone().step_by(step) {
                let moves = first..range.end.min(first + step);
                list.push(Part { item, unit: spec.unit, bytes: moves.len() * page, moves });
            }
        }
        Self { moves, list }
    }

    /// The pages of a part.
    pub(super) fn pages(&self, part: &Part) -> &[PageMove] {
        &self.moves[part.moves.clone()]
    }

    /// How many parts an item has.
    pub(super) fn of_item(&self, item: usize) -> usize {
        self.list.iter().filter(|part| part.item == item).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer::layout::{ClassSpec, ItemSpec};

    fn layout() -> Layout {
        let class = |name: &str| ClassSpec { name: name.into(), num_pages: 9 };
        let item = |unit, name: &str, class, page_bytes| ItemSpec {
            unit: Unit(unit),
            name: name.into(),
            class: Class(class),
            page_bytes,
        };
        let items = vec![item(0, "window", 1, 100), item(1, "window", 1, 100), item(1, "keys", 0, 30)];
        Layout::new(vec![class("compressed"), class("window")], items).expect("small")
    }

    #[test]
    fn parts_fill_a_buffer_and_no_more() {
        let page = |class, cache, arena| PageMove { class: Class(class), cache, arena };
        let moves = [page(1, 7, 0), page(0, 3, 1), page(1, 8, 2), page(0, 4, 3), page(1, 9, 4), page(0, 5, 8)];
        let parts = Parts::new(&layout(), &moves, 200);
        let pages: Vec<Vec<u32>> =
            parts.list.iter().map(|part| parts.pages(part).iter().map(|pages| pages.cache).collect()).collect();
        // Two window pages of 100 bytes to a buffer of 200, and six keys of 30.
        assert_eq!(pages, [vec![7, 8], vec![9], vec![7, 8], vec![9], vec![3, 4, 5]]);
        let facts: Vec<_> = parts.list.iter().map(|part| (part.item, part.unit.0, part.bytes)).collect();
        assert_eq!(facts, [(0, 0, 200), (0, 0, 100), (1, 1, 200), (1, 1, 100), (2, 1, 90)]);
        assert_eq!([parts.of_item(0), parts.of_item(2)], [2, 1]);
        assert!(Parts::new(&layout(), &[], 200).list.is_empty());
    }
}
