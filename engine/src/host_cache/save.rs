//! Texts on their way into host memory.

use super::{Contents, HostCache, HostNode, ROOT, Slot};
use crate::ids::{PageId, TokenId};
use crate::pools::PageRef;

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

/// Where a text stands in the tree, and what must be copied so that all of it is there.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its node.
    pub node: HostNode,
    /// What is missing and had room.
    pub save: Option<Save>,
}

impl HostCache {
    /// Takes slots for what is missing of a text of whole pages, as [`HostCache::save_below`] does for its last page. `None` also if
    /// nothing is missing, if the same is under way, or if the text without its last page is not here.
    pub fn begin_save(&mut self, tokens: &[TokenId], window: bool) -> Option<Save> {
        let pages: Vec<&[TokenId]> = tokens.chunks_exact(self.page_tokens).collect();
        let (last, above) = pages.split_last()?;
        let mut parent = None;
        for page in above {
            parent = Some(self.child(parent.unwrap_or(ROOT), page).ok()??);
        }
        self.save_below(parent, last, window)?.save
    }

    /// Takes slots for what is missing of the text that goes on with `page` behind the text of `parent`, or starts with it: the
    /// compressed page of `page`, and the window page before its end if `window`. `None` if the parent is gone, if another text has
    /// the place, or if there is no room even after evictions.
    pub fn save_below(&mut self, parent: Option<HostNode>, page: &[TokenId], window: bool) -> Option<Placed> {
        let parent = parent.unwrap_or(ROOT);
        if parent != ROOT && !self.contains(parent) {
            return None;
        }
        match self.child(parent, page).ok()? {
            Some(node) => Some(Placed { node, save: self.complete(node, window) }),
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
                let (compressed_id, window) = (compressed.id(), slot.as_ref().map(PageRef::id));
                let node = self.add_node(parent, page, compressed, slot);
                Some(Placed { node, save: Some(Save { node, compressed: Some(compressed_id), window }) })
            }
        }
    }

    /// What is missing of a node and is not under way. A slot that was lost is written again once nobody reads it any more.
    fn complete(&mut self, id: HostNode, window: bool) -> Option<Save> {
        let node = &self.nodes[&id];
        let idle = node.pins == 0;
        let compressed = node.compressed.contents == Contents::Lost && idle;
        let (no_window, lost_window) = match &node.window {
            None => (window, false),
            Some(slot) => (false, window && slot.contents == Contents::Lost && idle),
        };
        let slot = if no_window {
            self.pin(id, 1);
            let slot = self.alloc_window();
            self.pin(id, -1);
            self.stats.not_saved += u64::from(slot.is_none());
            slot
        } else {
            None
        };
        if !compressed && !lost_window && slot.is_none() {
            return None;
        }
        let node = self.nodes.get_mut(&id)?;
        node.pins += 1;
        if compressed {
            node.compressed.contents = Contents::Coming;
        }
        if let Some(slot) = slot {
            node.window = Some(Slot::coming(slot));
            self.windows.insert((node.used, id));
        }
        let written = node.window.as_mut().filter(|_| no_window || lost_window);
        let window = written.map(|slot| {
            slot.contents = Contents::Coming;
            slot.page.id()
        });
        Some(Save { node: id, compressed: compressed.then(|| node.compressed.page.id()), window })
    }

    /// Every byte of a save has arrived, on every rank.
    pub fn finish_save(&mut self, save: &Save) {
        let node = self.nodes.get_mut(&save.node).expect("a pinned node stays");
        node.pins -= 1;
        if save.compressed.is_some() {
            node.compressed.contents = Contents::Ready;
        }
        if let (Some(slot), Some(_)) = (&mut node.window, save.window) {
            slot.contents = Contents::Ready;
        }
        self.stats.saved += 1;
    }

    /// A save failed, and nobody writes its slots any more. They are free again, and so are those of texts that were begun on top
    /// of it and not finished.
    pub fn give_up_save(&mut self, save: &Save) {
        self.stats.not_saved += 1;
        let Some(node) = self.nodes.get_mut(&save.node) else { return };
        node.pins -= 1;
        if save.compressed.is_some() {
            node.compressed.contents = Contents::Lost;
        }
        if let (Some(slot), Some(_)) = (&mut node.window, save.window) {
            slot.contents = Contents::Lost;
        }
        self.settle(save.node);
    }
}
