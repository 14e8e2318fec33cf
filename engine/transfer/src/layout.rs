//! Which bytes travel: classes of pages, the items of every unit, and where they lie in an arena.
//!
//! An arena is one range of bytes. Each item (a buffer of one layer) has a region in it, pages at a fixed stride; page `p` of
//! a class is page `p` of every item of that class. Sender and receiver may have different numbers of pages, so offsets
//! differ; names, page bytes and order must be equal, and [`Layout::hash`] stands for them in the handshake.

use crate::ids::{Class, Unit};
use thiserror::Error;

/// Multiple of every region's offset and stride, bytes: a cache line, so that no word is shared by two pages.
pub const ALIGN: u64 = 64;

/// Pages that share their numbers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClassSpec {
    /// `compressed`, `window`, `request`.
    pub name: String,
    /// Pages of this arena.
    pub num_pages: u32,
}

/// One buffer of one unit, as it is described before it is laid out.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ItemSpec {
    /// Layer.
    pub unit: Unit,
    /// What it holds, e.g. `CSA index K`.
    pub name: String,
    /// Whose page numbers address it.
    pub class: Class,
    /// Bytes of a page that travel.
    pub page_bytes: u64,
}

/// An item with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Description.
    pub spec: ItemSpec,
    /// First byte of its region in the arena.
    pub offset: u64,
    /// Bytes from page to page.
    pub stride: u64,
}

/// A range of bytes to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageCopy {
    /// First byte in the sender's arena.
    pub src: u64,
    /// First byte in the receiver's arena.
    pub dst: u64,
    /// Length.
    pub bytes: u64,
}

/// Page numbers by class, in the order of the text.
pub type PagesByClass = Vec<Vec<u32>>;

/// Why a layout or a set of pages does not work.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// An item of a class that is not there.
    #[error("item {item} of unit {unit}: expected a class below {classes}, got {class}")]
    Class {
        /// Item.
        item: String,
        /// Its unit.
        unit: Unit,
        /// Classes there are.
        classes: usize,
        /// Class named.
        class: Class,
    },
    /// More bytes than an address can name.
    #[error("the arena would exceed 2^63 bytes at item {item} of unit {unit}")]
    TooLarge {
        /// Item.
        item: String,
        /// Its unit.
        unit: Unit,
    },
    /// Page lists of another shape than the classes.
    #[error("pages of {got} classes, expected {expected}")]
    Classes {
        /// Classes of the layout.
        expected: usize,
        /// Lists given.
        got: usize,
    },
    /// A page that the arena does not have.
    #[error("page {page} of class {class}: the arena has {num_pages}")]
    Page {
        /// Class.
        class: String,
        /// Page.
        page: u32,
        /// Pages there are.
        num_pages: u32,
    },
    /// Sender and receiver name different numbers of pages.
    #[error("class {class}: the sender has {src} pages for the receiver's {dst}")]
    Count {
        /// Class.
        class: String,
        /// Sender's.
        src: usize,
        /// Receiver's.
        dst: usize,
    },
}

/// The arena of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    classes: Vec<ClassSpec>,
    items: Vec<Item>,
    bytes: u64,
}

impl Layout {
    /// Lays out items in the given order; items of a unit stand together.
    ///
    /// # Errors
    /// An unknown class; an arena that no address reaches.
    pub fn new(classes: Vec<ClassSpec>, specs: Vec<ItemSpec>) -> Result<Self, LayoutError> {
        let mut bytes = 0u64;
        let mut items = Vec::with_capacity(specs.len());
        for spec in specs {
            let Some(class) = classes.get(spec.class.0 as usize) else {
                let ItemSpec { unit, name, class, .. } = spec;
                return Err(LayoutError::Class { item: name, unit, classes: classes.len(), class });
            };
            let stride = spec.page_bytes.checked_next_multiple_of(ALIGN);
            let end = stride
                .and_then(|stride| stride.checked_mul(u64::from(class.num_pages)))
                .and_then(|region| bytes.checked_add(region))
                .filter(|&end| i64::try_from(end).is_ok());
            let (Some(stride), Some(end)) = (stride, end) else {
                return Err(LayoutError::TooLarge { item: spec.name, unit: spec.unit });
            };
            items.push(Item { spec, offset: bytes, stride });
            bytes = end;
        }
        Ok(Self { classes, items, bytes })
    }

    /// Classes.
    pub fn classes(&self) -> &[ClassSpec] {
        &self.classes
    }

    /// Items, units together.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Items of a unit.
    pub fn unit(&self, unit: Unit) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(move |item| item.spec.unit == unit)
    }

    /// Units: one more than the largest.
    pub fn num_units(&self) -> u32 {
        self.items.iter().map(|item| item.spec.unit.0 + 1).max().unwrap_or(0)
    }

    /// Bytes of the arena.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hash over everything that both sides must have in common: class names, and items with unit, name, class and page
    /// bytes in their order. Page counts are each side's own.
    pub fn hash(&self) -> u64 {
        let mut text = Vec::new();
        for class in &self.classes {
            text.extend_from_slice(class.name.as_bytes());
            text.push(0);
        }
        for Item { spec, .. } in &self.items {
            text.extend_from_slice(spec.name.as_bytes());
            text.push(0);
            text.extend_from_slice(&spec.unit.0.to_le_bytes());
            text.push(spec.class.0);
            text.extend_from_slice(&spec.page_bytes.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_64(&text)
    }

    /// Checks page numbers by class.
    ///
    /// # Errors
    /// Lists of another number than classes; a page that is not there.
    pub fn check_pages(&self, pages: &PagesByClass) -> Result<(), LayoutError> {
        if pages.len() != self.classes.len() {
            return Err(LayoutError::Classes { expected: self.classes.len(), got: pages.len() });
        }
        for (class, pages) in self.classes.iter().zip(pages) {
            if let Some(&page) = pages.iter().find(|&&page| page >= class.num_pages) {
                return Err(LayoutError::Page { class: class.name.clone(), page, num_pages: class.num_pages });
            }
        }
        Ok(())
    }

    /// Place of one page of an item.
    pub fn place(&self, item: &Item, page: u32) -> (u64, u64) {
        (item.offset + u64::from(page) * item.stride, item.spec.page_bytes)
    }

    /// The copies that carry a unit from pages `src` of this arena to pages `dst` of a peer's, item by item.
    ///
    /// # Errors
    /// The lists differ in length, or name pages that are not there.
    pub fn copies(
        &self,
        unit: Unit,
        src: &PagesByClass,
        peer: &Layout,
        dst: &PagesByClass,
    ) -> Result<Vec<PageCopy>, LayoutError> {
        self.check_pages(src)?;
        peer.check_pages(dst)?;
        for (class, (src, dst)) in self.classes.iter().zip(src.iter().zip(dst)) {
            if src.len() != dst.len() {
                return Err(LayoutError::Count { class: class.name.clone(), src: src.len(), dst: dst.len() });
            }
        }
        let mut copies = Vec::new();
        for (item, theirs) in self.unit(unit).zip(peer.unit(unit)) {
            let class = item.spec.class.0 as usize;
            for (&from, &to) in src[class].iter().zip(&dst[class]) {
                let (src, bytes) = self.place(item, from);
                copies.push(PageCopy { src, dst: peer.place(theirs, to).0, bytes });
            }
        }
        Ok(copies)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn layout(pages: [u32; 2], index_bytes: u64) -> Layout {
        let class = |name: &str, num_pages| ClassSpec { name: name.into(), num_pages };
        let item = |unit, name: &str, class, page_bytes| ItemSpec {
            unit: Unit(unit),
            name: name.into(),
            class: Class(class),
            page_bytes,
        };
        Layout::new(
            vec![class("compressed", pages[0]), class("window", pages[1])],
            vec![item(0, "window KV", 1, 100), item(1, "window KV", 1, 100), item(1, "CSA index K", 0, index_bytes)],
        )
        .unwrap()
    }

    #[test]
    fn regions_follow_each_other_aligned() {
        let layout = layout([3, 2], 132);
        let places: Vec<_> = layout.items().iter().map(|item| (item.offset, item.stride)).collect();
        assert_eq!(places, [(0, 128), (256, 128), (512, 192)]);
        assert_eq!((layout.bytes(), layout.num_units()), (512 + 3 * 192, 2));
    }

    #[test]
    fn copies_pair_pages_of_both_arenas() {
        let (ours, theirs) = (layout([3, 2], 132), layout([8, 8], 132));
        let copies = ours.copies(Unit(1), &vec![vec![2, 0], vec![1]], &theirs, &vec![vec![7, 3], vec![5]]).unwrap();
        let copy = |src, dst, bytes| PageCopy { src, dst, bytes };
        // Theirs: window regions of 8 * 128 bytes, so unit 1's window starts at 1,024 and its index keys at 2,048.
        assert_eq!(
            copies,
            [
                copy(256 + 128, 1024 + 5 * 128, 100),
                copy(512 + 2 * 192, 2048 + 7 * 192, 132),
                copy(512, 2048 + 3 * 192, 132)
            ]
        );
    }

    #[test]
    fn wrong_pages_are_named() {
        let layout = layout([3, 2], 132);
        let error = layout.check_pages(&vec![vec![3], vec![]]).unwrap_err();
        assert_eq!(error.to_string(), "page 3 of class compressed: the arena has 3");
        let error = layout.copies(Unit(0), &vec![vec![1], vec![0]], &layout, &vec![vec![1], vec![]]).unwrap_err();
        assert_eq!(error.to_string(), "class window: the sender has 1 pages for the receiver's 0");
    }

    #[test]
    fn the_hash_sees_every_common_fact_and_no_page_count() {
        assert_eq!(layout([3, 2], 132).hash(), layout([9, 9], 132).hash());
        assert_ne!(layout([3, 2], 132).hash(), layout([3, 2], 256).hash());
    }

    #[test]
    fn an_arena_has_an_end() {
        let class = vec![ClassSpec { name: "window".into(), num_pages: u32::MAX }];
        let item = ItemSpec { unit: Unit(0), name: "x".into(), class: Class(0), page_bytes: 1 << 40 };
        assert!(matches!(Layout::new(class, vec![item]), Err(LayoutError::TooLarge { .. })));
    }
}
