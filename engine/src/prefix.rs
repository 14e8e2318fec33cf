//! Texts whose cache rows are still there: a tree of token pages.
//!
//! A node stands for one compressed page and, through its parents, for the whole text up to the page's end. It is found
//! by its parent and a hash of its tokens, and the tokens are compared as well, so equal hashes never stand for unequal
//! texts. To resume at its end a sequence needs the compressed pages of the path and one window page: the last one
//! before the boundary, which holds the window rows and the compressor rings. Window pages are the scarcer kind, so a
//! node may lose its own and stay as a step on the way to longer texts; a leaf without one would be of no use and goes.

use crate::host_cache::HostNode;
use crate::ids::TokenId;
use crate::pools::{Compressed, PageRef, Pools, Window};
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A node; ids are not used twice, so a living id always means the same text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Pages of the text up to this one's end.
    depth: usize,
    hash: u64,
    tokens: Box<[TokenId]>,
    compressed: PageRef<Compressed>,
    window: Option<PageRef<Window>>,
    children: u32,
    /// When the page was last on the path of a hit or an insertion.
    used: u64,
    /// When the window page was last taken or stored.
    window_used: u64,
    /// Texts that were resumed from here.
    hits: u32,
    /// Where the tier below has the text, if it still does.
    host: Option<HostNode>,
    /// Whether the compressed page and the window page were offered to that tier before being dropped.
    offered: (bool, bool),
}

/// A text that need not be computed again.
#[derive(Debug)]
pub struct Hit {
    /// Its tokens, a multiple of the page.
    pub tokens: u32,
    /// Its compressed pages.
    pub compressed: Vec<PageRef<Compressed>>,
    /// The window page before its end.
    pub window: PageRef<Window>,
    /// Where it ends.
    pub node: NodeId,
}

/// A node, to look at.
pub(crate) struct CachedPage<'a> {
    /// The text without its last page.
    pub(crate) above: Option<NodeId>,
    /// The last page.
    pub(crate) tokens: &'a [TokenId],
    pub(crate) compressed: &'a PageRef<Compressed>,
    pub(crate) window: Option<&'a PageRef<Window>>,
    /// Where the tier below has the text, if it still does.
    pub(crate) host: Option<HostNode>,
    /// Whether the compressed page and the window page were offered to that tier.
    pub(crate) offered: (bool, bool),
}

/// The tree. It holds references to pages; who takes a hit gets references of his own.
#[derive(Debug)]
pub struct PrefixCache {
    page_tokens: usize,
    hash: fn(&[TokenId]) -> u64,
    nodes: HashMap<NodeId, Node>,
    by_hash: HashMap<(NodeId, u64), NodeId>,
    /// Nodes without children, least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes with a window page, least recently used window first.
    windows: BTreeSet<(u64, NodeId)>,
    clock: u64,
    next_id: u64,
}

pub(crate) fn hash_tokens(tokens: &[TokenId]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    hasher.finish()
}

impl PrefixCache {
    /// An empty tree over pages of `page_tokens` tokens.
    pub fn new(page_tokens: u32) -> Self {
        Self::with_hash(page_tokens, hash_tokens)
    }

    fn with_hash(page_tokens: u32, hash: fn(&[TokenId]) -> u64) -> Self {
        Self {
            page_tokens: page_tokens as usize,
            hash,
            nodes: HashMap::new(),
            by_hash: HashMap::new(),
            leaves: BTreeSet::new(),
            windows: BTreeSet::new(),
            clock: 0,
            next_id: 1,
        }
    }

    /// Pages in the tree.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The child of `parent` that stands for `tokens`: `Ok(None)` where there is none, `Err` where another text has its
    /// place.
    fn child(&self, parent: NodeId, tokens: &[TokenId]) -> Result<Option<NodeId>, ()> {
        match self.by_hash.get(&(parent, (self.hash)(tokens))) {
            None => Ok(None),
            Some(&id) if *self.nodes[&id].tokens == *tokens => Ok(Some(id)),
            Some(_) => Err(()),
        }
    }

    /// Nodes with a window page.
    pub fn num_windows(&self) -> usize {
        self.windows.len()
    }

    /// The longest text that `tokens` starts with, that is at most `max_tokens` long and that can be resumed.
    pub fn lookup(&mut self, tokens: &[TokenId], max_tokens: u32, pools: &mut Pools) -> Option<Hit> {
        let tokens = &tokens[..tokens.len().min(max_tokens as usize)];
        let mut path = Vec::new();
        let mut usable = 0;
        for page in tokens.chunks_exact(self.page_tokens) {
            let Ok(Some(id)) = self.child(path.last().copied().unwrap_or(ROOT), page) else { break };
            path.push(id);
            if self.nodes[&id].window.is_some() {
                usable = path.len();
            }
        }
        path.truncate(usable);
        let node = *path.last()?;
        path.iter().for_each(|&id| self.touch(id));
        self.touch_window(node);
        let compressed = path.iter().map(|id| pools.compressed.share(&self.nodes[id].compressed)).collect();
        let window = self.nodes[&node].window.as_ref().expect("a usable node has a window page");
        let window = pools.window.share(window);
        Some(Hit { tokens: (usable * self.page_tokens) as u32, compressed, window, node })
    }

    /// Stores a text of whole pages: one compressed page per page of `tokens`, and the window page before its end.
    /// `parent` is where the text without its last page was stored, if it was. Returns where it is stored now: what was
    /// there stays, and a window page is added where one is missing. `None` if another text has the place.
    pub fn insert(
        &mut self,
        parent: Option<NodeId>,
        tokens: &[TokenId],
        compressed: &[PageRef<Compressed>],
        window: &PageRef<Window>,
        pools: &mut Pools,
    ) -> Option<NodeId> {
        debug_assert_eq!(tokens.len(), compressed.len() * self.page_tokens, "whole pages");
        let parent = parent.filter(|id| self.nodes.contains_key(id));
        let above = parent.map_or(compressed.len() - 1, |id| self.nodes[&id].depth);
        debug_assert_eq!(above + 1, compressed.len(), "the parent is the text without its last page");
        let mut node = parent.unwrap_or(ROOT);
        // Without its parent (evicted meanwhile) the whole path is stored again.
        let known = if parent.is_some() { compressed.len() - 1 } else { 0 };
        for (page, held) in tokens.chunks_exact(self.page_tokens).zip(compressed).skip(known) {
            node = match self.child(node, page) {
                Ok(Some(id)) => id,
                Ok(None) => {
                    let held = pools.compressed.share(held);
                    self.add_node(node, page, held)
                }
                // Only below a node that was here before, so nothing useless is left behind.
                Err(()) => return None,
            };
            self.touch(node);
        }
        let stored = self.nodes.get_mut(&node)?;
        if stored.window.is_none() {
            stored.window = Some(pools.window.share(window));
            stored.offered.1 = false;
            self.windows.insert((stored.window_used, node));
        }
        self.touch_window(node);
        Some(node)
    }

    fn add_node(&mut self, parent: NodeId, tokens: &[TokenId], compressed: PageRef<Compressed>) -> NodeId {
        let (id, hash) = (NodeId(self.next_id), (self.hash)(tokens));
        self.next_id += 1;
        let mut depth = 1;
        if let Some(above) = self.nodes.get_mut(&parent) {
            depth += above.depth;
            above.children += 1;
            self.leaves.remove(&(above.used, parent));
        }
        let tokens = tokens.into();
        self.nodes.insert(
            id,
            Node {
                parent,
                depth,
                hash,
                tokens,
                compressed,
                window: None,
                children: 0,
                used: self.clock,
                window_used: 0,
                hits: 0,
                host: None,
                offered: (false, false),
            },
        );
        self.by_hash.insert((parent, hash), id);
        self.leaves.insert((self.clock, id));
        id
    }

    fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if self.leaves.remove(&(node.used, id)) {
            self.leaves.insert((self.clock, id));
        }
        node.used = self.clock;
    }

    fn touch_window(&mut self, id: NodeId) {
        self.clock += 1;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        self.windows.remove(&(node.window_used, id));
        node.window_used = self.clock;
        self.windows.insert((self.clock, id));
    }

    /// A text was resumed from a node; how often that is now.
    pub(crate) fn count_hit(&mut self, id: NodeId) -> u32 {
        let Some(node) = self.nodes.get_mut(&id) else { return 0 };
        node.hits = node.hits.saturating_add(1);
        node.hits
    }

    /// The least recently used leaf whose compressed page nobody else holds.
    pub(crate) fn idle_leaf(&self, pools: &Pools) -> Option<NodeId> {
        let idle = |&&(_, id): &&(u64, NodeId)| pools.compressed.is_unique(&self.nodes[&id].compressed);
        self.leaves.iter().find(idle).map(|&(_, id)| id)
    }

    /// The least recently used leaf. Its page may be a sequence's as well: dropping it frees nothing, but it may stand in the way
    /// of its parents.
    pub(crate) fn oldest_leaf(&self) -> Option<NodeId> {
        self.leaves.first().map(|&(_, id)| id)
    }

    /// The node with the least recently used window page that nobody else holds.
    pub(crate) fn idle_window(&self, pools: &Pools) -> Option<NodeId> {
        let idle =
            |&&(_, id): &&(u64, NodeId)| self.nodes[&id].window.as_ref().is_some_and(|w| pools.window.is_unique(w));
        self.windows.iter().find(idle).map(|&(_, id)| id)
    }

    /// Drops the window page of a node; the node too if it is a leaf, and then its parents as far as they become leaves of no use.
    pub(crate) fn drop_node(&mut self, id: NodeId, pools: &mut Pools) {
        self.drop_window(id, pools);
        self.prune(id, pools);
    }

    /// A node's tokens, its pages, and the node above.
    pub(crate) fn node(&self, id: NodeId) -> Option<CachedPage<'_>> {
        let node = self.nodes.get(&id)?;
        let Node { parent, tokens, compressed, window, host, offered, .. } = node;
        let (above, window) = (Some(*parent).filter(|&above| above != ROOT), window.as_ref());
        Some(CachedPage { above, tokens, compressed, window, host: *host, offered: *offered })
    }

    /// The tier below has the text of a node.
    pub(crate) fn set_host(&mut self, id: NodeId, host: HostNode) {
        self.nodes.entry(id).and_modify(|node| node.host = Some(host));
    }

    /// The pages of a node, without or with its window page, have been offered to the tier below.
    pub(crate) fn set_offered(&mut self, id: NodeId, window: bool) {
        self.nodes.entry(id).and_modify(|node| node.offered = (true, node.offered.1 || window));
    }

    /// Drops everything.
    pub fn clear(&mut self, pools: &mut Pools) {
        while let Some(id) = self.oldest_leaf() {
            self.drop_node(id, pools);
        }
    }

    fn drop_window(&mut self, id: NodeId, pools: &mut Pools) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(window) = node.window.take() {
            self.windows.remove(&(node.window_used, id));
            pools.window.release(window);
        }
    }

    /// Removes a leaf without a window page, and then its parents as far as they become such leaves.
    fn prune(&mut self, mut id: NodeId, pools: &mut Pools) {
        while self.nodes.get(&id).is_some_and(|node| node.children == 0 && node.window.is_none()) {
            let node = self.nodes.remove(&id).expect("just seen");
            self.leaves.remove(&(node.used, id));
            self.by_hash.remove(&(node.parent, node.hash));
            pools.compressed.release(node.compressed);
            id = node.parent;
            if let Some(parent) = self.nodes.get_mut(&id) {
                parent.children -= 1;
                if parent.children == 0 {
                    self.leaves.insert((parent.used, id));
                }
            }
        }
    }

    /// Compressed pages that eviction can free: those that nobody else holds.
    pub fn evictable_compressed(&self, pools: &Pools) -> u32 {
        self.nodes.values().filter(|node| pools.compressed.is_unique(&node.compressed)).count() as u32
    }

    /// Window pages that eviction can free.
    pub fn evictable_windows(&self, pools: &Pools) -> u32 {
        self.nodes.values().filter_map(|node| node.window.as_ref()).filter(|&w| pools.window.is_unique(w)).count()
            as u32
    }

    /// Every compressed page that the tree holds.
    pub fn compressed_pages(&self) -> impl Iterator<Item = &PageRef<Compressed>> {
        self.nodes.values().map(|node| &node.compressed)
    }

    /// Every window page that the tree holds.
    pub fn window_pages(&self) -> impl Iterator<Item = &PageRef<Window>> {
        self.nodes.values().filter_map(|node| node.window.as_ref())
    }
}

#[cfg(test)]
mod tests;
