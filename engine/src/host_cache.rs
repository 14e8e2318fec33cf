//! The tier under the prefix cache: texts whose pages were copied to host memory. Pure, like the scheduler: who copies is told
//! what to copy, and tells when it is done.
//!
//! A node stands for one page of tokens and, through its parents, for the text up to its end, as in the
//! [prefix cache](crate::prefix). It has a slot for the compressed page and, if it can be resumed from, one for the window page
//! before its end. Nodes are whole pages, so none is ever split.
//!
//! **A slot is read only when all of it is there.** A node is [`begun`](HostCache::begin_save) when its copies are handed out
//! and counts as absent until [`finish_save`](HostCache::finish_save): a hit is a node whose every item has arrived, on a path of
//! such nodes. **A slot that is read or written is not given away.** A hit pins its path until its load has ended
//! ([`finish_load`](HostCache::finish_load), [`forget`](HostCache::forget), [`unpin`](HostCache::unpin)); a save pins its node until
//! it is finished or given up. Eviction takes the least recently used leaf that nobody pins.

mod orders;
mod save;

pub use orders::{HostLoad, HostOrders, HostSave};
pub use save::{Placed, Save};

use crate::ids::{PageId, TokenId};
use crate::pools::{AuditError, PageRef, Pool, PoolKind};
use std::collections::{BTreeSet, HashMap};
use transfer::ids::Class;

/// Host slots of compressed pages.
#[derive(Debug)]
pub enum HostCompressed {}
/// Host slots of window pages.
#[derive(Debug)]
pub enum HostWindow {}

impl PoolKind for HostCompressed {
    const NAME: &'static str = "host compressed";
}
impl PoolKind for HostWindow {
    const NAME: &'static str = "host window";
}

/// Slots of the host tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct HostSizes {
    /// For compressed pages.
    pub compressed_slots: u32,
    /// For window pages.
    pub window_slots: u32,
}

impl HostSizes {
    /// Slots for a class of pages; rings of requests have none.
    pub fn of(&self, class: Class) -> u32 {
        match class {
            Class(0) => self.compressed_slots,
            Class(1) => self.window_slots,
            _ => 0,
        }
    }

    /// Compressed slots for every window slot: texts are saved page by page, and window pages only where one may be resumed.
    pub const COMPRESSED_PER_WINDOW: u32 = 8;

    /// So many compressed slots, with the window slots that go with them.
    pub fn of_pages(compressed_slots: u32) -> Self {
        Self { compressed_slots, window_slots: compressed_slots.div_ceil(Self::COMPRESSED_PER_WINDOW) }
    }
}

/// Bytes of a slot, all layers, on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SlotBytes {
    /// Of a compressed page.
    pub compressed: u64,
    /// Of a window page.
    pub window: u64,
}

/// A node; ids are not used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostNode(u64);

const ROOT: HostNode = HostNode(0);

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// A save writes it.
    Coming,
    /// Every byte has arrived.
    Ready,
    /// Nothing that may be read, and nobody writes it.
    Lost,
}

/// A slot with what is known of its contents.
#[derive(Debug)]
struct Slot<K> {
    page: PageRef<K>,
    contents: Contents,
}

impl<K> Slot<K> {
    fn coming(page: PageRef<K>) -> Self {
        Self { page, contents: Contents::Coming }
    }

    fn is_ready(&self) -> bool {
        self.contents == Contents::Ready
    }
}

#[derive(Debug)]
struct Node {
    parent: HostNode,
    hash: u64,
    tokens: Box<[TokenId]>,
    compressed: Slot<HostCompressed>,
    window: Option<Slot<HostWindow>>,
    children: u32,
    /// Loads and saves under way.
    pins: u32,
    used: u64,
}

/// A text that can be copied back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a hit pins its slots until its load has ended"]
pub struct HostHit {
    /// Its tokens, a multiple of the page.
    pub tokens: u32,
    /// Slots of its compressed pages, from the first that the device lacks.
    pub compressed: Vec<PageId>,
    /// Slot of the window page before its end.
    pub window: PageId,
    path: Vec<HostNode>,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct HostStats {
    /// Pages whose copies were finished.
    pub saved: u64,
    /// Saves that failed or had no room.
    pub not_saved: u64,
    /// Texts that were copied back.
    pub hits: u64,
    /// Tokens of those texts.
    pub hit_tokens: u64,
    /// Those texts of which a page was on disk.
    pub disk_hits: u64,
    /// Texts whose copy back failed.
    pub loads_failed: u64,
    /// Nodes evicted.
    pub evicted: u64,
}

/// The tree of texts in host memory.
#[derive(Debug)]
pub struct HostCache {
    page_tokens: usize,
    hash: fn(&[TokenId]) -> u64,
    compressed: Pool<HostCompressed>,
    window: Pool<HostWindow>,
    /// First slots on disk.
    on_disk: HostSizes,
    nodes: HashMap<HostNode, Node>,
    by_hash: HashMap<(HostNode, u64), HostNode>,
    /// Nodes without children, least recently used first.
    leaves: BTreeSet<(u64, HostNode)>,
    /// Nodes with a window slot, least recently used first.
    windows: BTreeSet<(u64, HostNode)>,
    clock: u64,
    next_id: u64,
    stats: HostStats,
}

impl HostCache {
    /// An empty tier over pages of `page_tokens` tokens; of its slots the last `on_disk` are not in memory.
    pub fn new(page_tokens: u32, sizes: HostSizes, on_disk: HostSizes) -> Self {
        Self {
            page_tokens: page_tokens as usize,
            hash: crate::prefix::hash_tokens,
            compressed: Pool::new(sizes.compressed_slots),
            window: Pool::new(sizes.window_slots),
            on_disk: HostSizes {
                compressed_slots: sizes.compressed_slots - on_disk.compressed_slots,
                window_slots: sizes.window_slots - on_disk.window_slots,
            },
            nodes: HashMap::new(),
            by_hash: HashMap::new(),
            leaves: BTreeSet::new(),
            windows: BTreeSet::new(),
            clock: 0,
            next_id: 1,
            stats: HostStats::default(),
        }
    }

    /// Pages in the tree, those under way included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Counts since the start.
    pub fn stats(&self) -> HostStats {
        self.stats
    }

    /// The slots, to look at.
    pub fn pools(&self) -> (&Pool<HostCompressed>, &Pool<HostWindow>) {
        (&self.compressed, &self.window)
    }

    /// Whether a node is still in the tree.
    pub fn contains(&self, node: HostNode) -> bool {
        self.nodes.contains_key(&node)
    }

    /// The child of `parent` that stands for `tokens`; `Err` where another text has its place.
    fn child(&self, parent: HostNode, tokens: &[TokenId]) -> Result<Option<HostNode>, ()> {
        match self.by_hash.get(&(parent, (self.hash)(tokens))) {
            None => Ok(None),
            Some(&id) if *self.nodes[&id].tokens == *tokens => Ok(Some(id)),
            Some(_) => Err(()),
        }
    }

    /// The longest text that `tokens` starts with, at most `max_tokens` long and longer than `device_tokens`, that can be resumed
    /// with what is here; of its compressed pages the first `device_pages` are on the device already. Pins the path.
    pub fn lookup(
        &mut self,
        tokens: &[TokenId],
        max_tokens: u32,
        device_tokens: u32,
        device_pages: usize,
    ) -> Option<HostHit> {
        let tokens = &tokens[..tokens.len().min(max_tokens as usize)];
        let mut path = Vec::new();
        let mut usable = 0;
        for page in tokens.chunks_exact(self.page_tokens) {
            let Ok(Some(id)) = self.child(path.last().copied().unwrap_or(ROOT), page) else { break };
            let node = &self.nodes[&id];
            if path.len() >= device_pages && !node.compressed.is_ready() {
                break;
            }
            path.push(id);
            if node.window.as_ref().is_some_and(Slot::is_ready) {
                usable = path.len();
            }
        }
        if usable * self.page_tokens <= device_tokens as usize {
            return None;
        }
        path.truncate(usable);
        let last = path.last()?;
        let window = self.nodes[last].window.as_ref()?.page.id();
        let compressed = path.iter().skip(device_pages).map(|id| self.nodes[id].compressed.page.id()).collect();
        for &id in &path {
            self.touch(id);
            self.nodes.get_mut(&id).expect("on the path").pins += 1;
        }
        Some(HostHit { tokens: (usable * self.page_tokens) as u32, compressed, window, path })
    }

    /// Ends a load that was not made, or not to its end.
    pub fn unpin(&mut self, hit: HostHit) {
        // From the end of the text: what nobody needs goes, and then what it stood on.
        for &id in hit.path.iter().rev() {
            self.pin(id, -1);
            self.settle(id);
        }
    }

    /// Ends a load that was done.
    pub fn finish_load(&mut self, hit: HostHit) {
        self.stats.hits += 1;
        self.stats.hit_tokens += u64::from(hit.tokens);
        let HostSizes { compressed_slots, window_slots } = self.on_disk;
        let on_disk = hit.window.0 >= window_slots || hit.compressed.iter().any(|slot| slot.0 >= compressed_slots);
        self.stats.disk_hits += u64::from(on_disk);
        self.unpin(hit);
    }

    /// Ends a load that failed: none of the slots that it named is read again before it has been written again.
    pub fn forget(&mut self, hit: HostHit) {
        self.stats.loads_failed += 1;
        let on_device = hit.path.len() - hit.compressed.len();
        for id in &hit.path[on_device..] {
            self.nodes.get_mut(id).expect("a pinned node stays").compressed.contents = Contents::Lost;
        }
        let last = hit.path.last().and_then(|last| self.nodes.get_mut(last));
        if let Some(slot) = last.and_then(|node| node.window.as_mut()) {
            slot.contents = Contents::Lost;
        }
        self.unpin(hit);
    }

    /// Once nobody reads or writes a node: its lost window page is free, and so is the node if its compressed page is lost and
    /// nothing is on top of it.
    fn settle(&mut self, id: HostNode) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.pins == 0) else { return };
        if node.window.as_ref().is_some_and(|slot| slot.contents == Contents::Lost) {
            self.drop_window(id);
        }
        let node = &self.nodes[&id];
        if node.compressed.contents == Contents::Lost && node.children == 0 {
            self.remove(id);
        }
    }

    fn drop_window(&mut self, id: HostNode) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(slot) = node.window.take() {
            self.windows.remove(&(node.used, id));
            self.window.release(slot.page);
        }
    }

    fn pin(&mut self, id: HostNode, by: i32) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.pins = node.pins.checked_add_signed(by).expect("pins and unpins are paired");
        }
    }

    fn alloc_compressed(&mut self) -> Option<PageRef<HostCompressed>> {
        while self.compressed.num_free() == 0 {
            self.evict()?;
        }
        self.compressed.alloc()
    }

    fn alloc_window(&mut self) -> Option<PageRef<HostWindow>> {
        while self.window.num_free() == 0 {
            // A window page further up serves only texts that end there: it goes before a whole leaf does, if it is older.
            self.evict_with_window()?;
        }
        self.window.alloc()
    }

    /// Drops the least recently used leaf that nobody pins.
    fn evict(&mut self) -> Option<()> {
        let id = self.leaves.iter().find(|(_, id)| self.nodes[id].pins == 0)?.1;
        self.remove(id);
        self.stats.evicted += 1;
        Some(())
    }

    /// Frees the window slot of the least recently used node that has one and that nobody pins; a leaf goes altogether.
    fn evict_with_window(&mut self) -> Option<()> {
        let id = self.windows.iter().find(|(_, id)| self.nodes[id].pins == 0)?.1;
        if self.nodes[&id].children == 0 {
            self.remove(id);
        } else {
            self.drop_window(id);
        }
        self.stats.evicted += 1;
        Some(())
    }

    fn add_node(
        &mut self,
        parent: HostNode,
        tokens: &[TokenId],
        compressed: PageRef<HostCompressed>,
        window: Option<PageRef<HostWindow>>,
    ) -> HostNode {
        let (id, hash) = (HostNode(self.next_id), (self.hash)(tokens));
        self.next_id += 1;
        self.clock += 1;
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.children += 1;
            self.leaves.remove(&(above.used, parent));
        }
        if window.is_some() {
            self.windows.insert((self.clock, id));
        }
        let node = Node {
            parent,
            hash,
            tokens: tokens.into(),
            compressed: Slot::coming(compressed),
            window: window.map(Slot::coming),
            children: 0,
            pins: 1,
            used: self.clock,
        };
        self.nodes.insert(id, node);
        self.by_hash.insert((parent, hash), id);
        self.leaves.insert((self.clock, id));
        id
    }

    fn touch(&mut self, id: HostNode) {
        self.clock += 1;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if self.leaves.remove(&(node.used, id)) {
            self.leaves.insert((self.clock, id));
        }
        if self.windows.remove(&(node.used, id)) {
            self.windows.insert((self.clock, id));
        }
        node.used = self.clock;
    }

    /// Takes a leaf out of the tree; a parent that never arrived goes with its last child.
    fn remove(&mut self, id: HostNode) {
        let Some(node) = self.nodes.remove(&id) else { return };
        debug_assert!(node.children == 0 && node.pins == 0, "only idle leaves go");
        self.by_hash.remove(&(node.parent, node.hash));
        self.leaves.remove(&(node.used, id));
        self.windows.remove(&(node.used, id));
        self.compressed.release(node.compressed.page);
        if let Some(slot) = node.window {
            self.window.release(slot.page);
        }
        if let Some(above) = self.nodes.get_mut(&node.parent) {
            above.children -= 1;
            if above.children == 0 {
                self.leaves.insert((above.used, node.parent));
            }
            self.settle(node.parent);
        }
    }

    /// Forgets everything that nobody pins.
    pub fn clear(&mut self) {
        while self.evict().is_some() {}
    }

    /// Checks that every slot is free or held by exactly one node.
    ///
    /// # Errors
    /// The first slot for which this is not so.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.compressed.audit(self.nodes.values().map(|node| &node.compressed.page))?;
        self.window.audit(self.nodes.values().filter_map(|node| node.window.as_ref()).map(|slot| &slot.page))
    }

    /// Loads and saves under way, counted by node.
    pub fn pins(&self) -> u32 {
        self.nodes.values().map(|node| node.pins).sum()
    }
}

#[cfg(test)]
mod tests;
