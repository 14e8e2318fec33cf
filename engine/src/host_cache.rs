//! The tier under the prefix cache: texts whose pages were copied to host memory. Pure, like the scheduler: who copies is told
//! what to copy, and tells when it is done.
//!
//! A node stands for one page of tokens and, through its parents, for the text up to its end, as in the
//! [prefix cache](crate::prefix). It has a slot for the compressed page and, if it can be resumed from, one for the window page
//! before its end. Nodes are whole pages, so none is ever split.
//!
//! **A slot is read only when all of it is there.** A node is [`begun`](HostCache::begin_save) when its copies are handed out
//! and counts as absent until [`finish_save`](HostCache::finish_save): a hit is a node whose every item has arrived, on a path of
//! such nodes. **A slot that is read or written is not given away.** A hit pins its path until [`unpin`](HostCache::unpin); a
//! save pins its node until it is finished or given up. Eviction takes the least recently used leaf that nobody pins.

mod orders;

pub use orders::{HostLoad, HostOrders, HostSave};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
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
}

/// A node; ids are not used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostNode(u64);

const ROOT: HostNode = HostNode(0);

/// A slot with what is known of its contents.
#[derive(Debug)]
struct Slot<K> {
    page: PageRef<K>,
    /// Every byte has arrived.
    ready: bool,
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

/// What must be copied to the host: device page -> slot, for every rank and every layer.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a save ends with finish_save or give_up_save"]
pub struct Save {
    /// Node that waits for it.
    pub node: HostNode,
    /// Slot of the text's last compressed page, if that is not there yet.
    pub compressed: Option<PageId>,
    /// Slot of the window page before the text's end, if that is wanted and not there yet.
    pub window: Option<PageId>,
}

/// A text that can be copied back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a hit pins its slots until unpin"]
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
    /// Hits.
    pub hits: u64,
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
    /// An empty tier over pages of `page_tokens` tokens.
    pub fn new(page_tokens: u32, sizes: HostSizes) -> Self {
        Self {
            page_tokens: page_tokens as usize,
            hash: crate::prefix::hash_tokens,
            compressed: Pool::new(sizes.compressed_slots),
            window: Pool::new(sizes.window_slots),
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
            if path.len() >= device_pages && !node.compressed.ready {
                break;
            }
            path.push(id);
            if node.window.as_ref().is_some_and(|slot| slot.ready) {
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
        self.stats.hits += 1;
        Some(HostHit { tokens: (usable * self.page_tokens) as u32, compressed, window, path })
    }

    /// Ends a load, done or not.
    pub fn unpin(&mut self, hit: HostHit) {
        for id in hit.path {
            self.nodes.get_mut(&id).expect("a pinned node stays").pins -= 1;
        }
    }

    /// Takes slots for what is missing of a text of whole pages: its last compressed page, and the window page before its end
    /// if `window`. `None` if nothing is missing, if the same is under way, if the text without its last page is not here, or if
    /// there is no room even after evictions.
    pub fn begin_save(&mut self, tokens: &[TokenId], window: bool) -> Option<Save> {
        let pages: Vec<&[TokenId]> = tokens.chunks_exact(self.page_tokens).collect();
        let (last, above) = pages.split_last()?;
        let mut parent = ROOT;
        for page in above {
            parent = self.child(parent, page).ok()??;
        }
        match self.child(parent, last).ok()? {
            Some(id) => {
                let node = &self.nodes[&id];
                if !window || node.window.is_some() {
                    return None;
                }
                self.nodes.get_mut(&id)?.pins += 1;
                let slot = self.alloc_window();
                let node = self.nodes.get_mut(&id)?;
                let Some(slot) = slot else {
                    node.pins -= 1;
                    self.stats.not_saved += 1;
                    return None;
                };
                let save = Save { node: id, compressed: None, window: Some(slot.id()) };
                self.windows.insert((node.used, id));
                node.window = Some(Slot { page: slot, ready: false });
                Some(save)
            }
            None => {
                // The parent must not be evicted for the sake of its child.
                self.pin(parent, 1);
                let compressed = self.alloc_compressed();
                let slot = if window && compressed.is_some() { self.alloc_window() } else { None };
                self.pin(parent, -1);
                let Some(compressed) = compressed else {
                    self.stats.not_saved += 1;
                    return None;
                };
                let ids = (Some(compressed.id()), slot.as_ref().map(PageRef::id));
                let node = self.add_node(parent, last, compressed, slot);
                Some(Save { node, compressed: ids.0, window: ids.1 })
            }
        }
    }

    /// Every byte of a save has arrived, on every rank.
    pub fn finish_save(&mut self, save: &Save) {
        let node = self.nodes.get_mut(&save.node).expect("a pinned node stays");
        node.pins -= 1;
        node.compressed.ready |= save.compressed.is_some();
        if let (Some(slot), Some(_)) = (&mut node.window, save.window) {
            slot.ready = true;
        }
        self.stats.saved += 1;
    }

    /// A save failed; its slots are free again, and so are those of texts that were begun on top of it and not finished.
    pub fn give_up_save(&mut self, save: &Save) {
        self.stats.not_saved += 1;
        let Some(node) = self.nodes.get_mut(&save.node) else { return };
        node.pins -= 1;
        if save.window.is_some()
            && let Some(slot) = node.window.take()
        {
            self.windows.remove(&(node.used, save.node));
            self.window.release(slot.page);
        }
        self.prune(save.node);
    }

    /// Takes away a node whose compressed page never arrived, once nothing is on top of it.
    fn prune(&mut self, id: HostNode) {
        let Some(node) = self.nodes.get(&id) else { return };
        if !node.compressed.ready && node.children == 0 && node.pins == 0 {
            self.remove(id);
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
        let node = self.nodes.get_mut(&id)?;
        if node.children == 0 {
            self.remove(id);
        } else if let Some(slot) = node.window.take() {
            self.windows.remove(&(node.used, id));
            self.window.release(slot.page);
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
            compressed: Slot { page: compressed, ready: false },
            window: window.map(|page| Slot { page, ready: false }),
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
            self.prune(node.parent);
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
