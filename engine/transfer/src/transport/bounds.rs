//! Whether a range of an arena is inside one page.

use crate::layout::Layout;

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Region {
    name: String,
    start: u64,
    end: u64,
    stride: u64,
    page_bytes: u64,
}

/// Regions of a layout, by address: what a transport must know of it to see that a range lies inside one page.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Bounds(Vec<Region>);

impl Bounds {
    /// Of a layout.
    pub fn new(layout: &Layout) -> Self {
        let region = |item: &crate::layout::Item| {
            let pages = layout.classes()[item.spec.class.0 as usize].num_pages;
            let (start, end) = (item.offset, item.offset + item.stride * u64::from(pages));
            Region { name: item.spec.name.clone(), start, end, stride: item.stride, page_bytes: item.spec.page_bytes }
        };
        // Items stand in the order of their addresses; those without bytes hold no range.
        Self(layout.items().iter().map(region).filter(|region| region.end > region.start).collect())
    }

    /// The item that the bytes belong to, if they lie inside one page of it.
    pub fn item(&self, offset: u64, bytes: u64) -> Option<&str> {
        let region = &self.0[..self.0.partition_point(|region| region.start <= offset)].last()?;
        // A blob may hold any numbers.
        let end_in_page = offset.checked_sub(region.start)?.checked_rem(region.stride)?.checked_add(bytes)?;
        (offset < region.end && end_in_page <= region.page_bytes).then_some(&region.name)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ids::{Class, Unit};
    use crate::layout::{ClassSpec, ItemSpec};
    use proptest::prelude::*;

    proptest! {
        /// Against a search through every page.
        #[test]
        fn inside_one_page(offset in 0u64..1400, bytes in prop_oneof![0u64..200, Just(u64::MAX)]) {
            let class = |num_pages| ClassSpec { name: "c".into(), num_pages };
            let item = |name: &str, class, page_bytes| {
                ItemSpec { unit: Unit(0), name: name.into(), class: Class(class), page_bytes }
            };
            let specs = vec![item("a", 0, 100), item("none", 1, 70), item("empty", 0, 0), item("b", 0, 132)];
            let layout = Layout::new(vec![class(3), class(0)], specs).unwrap();
            let mut expected = None;
            for item in layout.items() {
                for page in 0..layout.classes()[item.spec.class.0 as usize].num_pages {
                    let (first, page_bytes) = layout.place(item, page);
                    let end = offset.saturating_add(bytes);
                    if item.stride > 0 && offset >= first && offset < first + item.stride && end <= first + page_bytes {
                        expected = Some(item.spec.name.as_str());
                    }
                }
            }
            let bounds = Bounds::new(&layout);
            prop_assert_eq!(bounds.item(offset, bytes), expected);
        }
    }

    /// The last byte of a page, of a region, and one more.
    #[test]
    fn the_ends_of_pages_and_regions() {
        let item = ItemSpec { unit: Unit(0), name: "a".into(), class: Class(0), page_bytes: 100 };
        let layout = Layout::new(vec![ClassSpec { name: "c".into(), num_pages: 2 }], vec![item]).unwrap();
        let bounds = Bounds::new(&layout);
        let inside = |offset, bytes| bounds.item(offset, bytes).is_some();
        assert!(inside(0, 100) && inside(99, 1) && inside(100, 0) && inside(128, 100));
        assert!(!inside(0, 101) && !inside(99, 2) && !inside(101, 0) && !inside(128, 101));
        assert!(!inside(256, 0) && !inside(256, 1) && !inside(u64::MAX, 1) && !inside(0, u64::MAX));
    }
}
