//! Copies into host memory.

use super::{HostPolicy, Saving, Stage};
use crate::geometry::PoolName;
use crate::handover::{PageMove, PageRun, class};
use crate::host_cache::{HostSave, Placed, Save};
use crate::prefix::NodeId;
use crate::scheduler::Scheduler;
use transfer::exchange::{CopyId, CopySeen};

/// What became of the wish to save a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// All of it is in host memory, on its way there, or has no room there. Whether a copy was begun.
    Whole(bool),
    /// As many copies are under way as may be; what is missing can be begun later.
    Part,
}

impl Scheduler {
    /// A text has got a full page more, which stands at `node`. Window pages are kept where a text may be resumed: at the last
    /// boundary of a prompt and at every one behind it.
    pub(in crate::scheduler) fn published(&mut self, node: NodeId, end: u32, prompt_tokens: u32) {
        let window = end + self.shape.page_tokens >= prompt_tokens;
        self.want(HostPolicy::WriteThrough, node, window);
    }

    /// A request was resumed from a text, and others may be.
    pub(in crate::scheduler) fn resumed_from(&mut self, node: NodeId) {
        let hits = self.prefix.count_hit(node);
        self.want(HostPolicy::WriteThrough, node, true);
        if hits >= 2 {
            self.want(HostPolicy::WriteThroughSelective, node, true);
        }
    }

    /// Under this policy, the text at `node` is to be saved.
    fn want(&mut self, policy: HostPolicy, node: NodeId, window: bool) {
        let Some(host) = self.host.as_mut().filter(|host| host.config.policy == policy) else { return };
        // More cannot be on the device.
        if host.wanted.len() < self.pools.compressed.num_pages() as usize {
            host.wanted.push_back((node, window));
        }
    }

    /// Begins to save what is wanted, as far as copies may be under way.
    pub(super) fn save_wanted(&mut self) {
        while let Some((node, window)) = self.host.as_mut().and_then(|host| host.wanted.pop_front()) {
            if self.save_text(node, window) == Begun::Part {
                self.host.iter_mut().for_each(|host| host.wanted.push_front((node, window)));
                return;
            }
        }
    }

    /// Under write-back, saves what the prefix cache is about to drop. True if its pages are free only later: then it is not to be
    /// dropped yet. Everything is offered once, so that whoever needs the pages waits for one copy at most.
    pub(in crate::scheduler) fn save_before_drop(&mut self, id: NodeId) -> bool {
        if self.host.as_ref().is_none_or(|host| host.config.policy != HostPolicy::WriteBack) {
            return false;
        }
        let Some(node) = self.prefix.node(id) else { return false };
        let window = node.window.is_some();
        if node.offered.0 && (node.offered.1 || !window) {
            return false;
        }
        match self.save_text(id, window) {
            Begun::Whole(begun) => begun,
            // Copies end, and then there is room for this one.
            Begun::Part => true,
        }
    }

    /// Saves what host memory lacks of the text at a node: compressed pages, and the window page before its end if `window`.
    fn save_text(&mut self, id: NodeId, window: bool) -> Begun {
        let Some(host) = &mut self.host else { return Begun::Whole(false) };
        // From the text's end upwards, to where the tier has all before it.
        let (mut path, mut above, mut at) = (Vec::new(), None, Some(id));
        while let Some((next, node)) = at.and_then(|next| Some((next, self.prefix.node(next)?))) {
            if next != id && node.host.is_some_and(|known| host.cache.contains(known)) {
                above = node.host;
                break;
            }
            path.push(next);
            at = node.above;
        }
        let mut begun = false;
        for &next in path.iter().rev() {
            let Some(host) = &mut self.host else { break };
            if host.saves.len() >= host.config.max_copies as usize {
                return Begun::Part;
            }
            let Some(node) = self.prefix.node(next) else { break };
            let window = window && next == id && node.window.is_some();
            let placed = host.cache.save_below(above, node.tokens, window);
            self.prefix.set_offered(next, window);
            let Some(Placed { node, save }) = placed else {
                // What stands on a page without room has none either.
                self.prefix.set_offered(id, true);
                break;
            };
            self.prefix.set_host(next, node);
            above = Some(node);
            if let Some(save) = save {
                begun |= next == id;
                self.order_save(next, save);
            }
        }
        Begun::Whole(begun)
    }

    /// Hands a save out; until it has been read, its pages are held.
    fn order_save(&mut self, id: NodeId, save: Save) {
        let (Some(node), Some(host)) = (self.prefix.node(id), &mut self.host) else { return };
        let (mut pages, mut runs) = (Vec::new(), Vec::new());
        let mut push = |pool, page: u32, slot: u32, generation| {
            pages.push(PageMove { class: class(pool), cache: page, arena: slot });
            PageRun::push(&mut runs, class(pool), page, generation);
        };
        let compressed = save.compressed.map(|slot| {
            push(PoolName::Compressed, node.compressed.id().0, slot.0, node.compressed.generation());
            self.pools.compressed.share(node.compressed)
        });
        let window = save.window.zip(node.window).map(|(slot, page)| {
            push(PoolName::Window, page.id().0, slot.0, page.generation());
            self.pools.window.share(page)
        });
        let copy = host.next_copy();
        host.orders.saves.push(HostSave { id: copy, pages: pages.into(), runs: runs.into() });
        host.saves.insert(copy, Saving { save, stage: Stage::Queued, compressed, window });
    }

    /// The order that reads a save's pages has been answered.
    pub(super) fn leave_saved_pages(&mut self, copy: CopyId) {
        let Some(saving) = self.host.as_mut().and_then(|host| host.saves.get_mut(&copy)) else { return };
        saving.compressed.take().into_iter().for_each(|page| _ = self.pools.compressed.release(page));
        saving.window.take().into_iter().for_each(|page| _ = self.pools.window.release(page));
    }

    pub(super) fn save_seen(&mut self, copy: CopyId, seen: &CopySeen) {
        let Some(host) = &mut self.host else { return };
        let Some(saving) = host.saves.get_mut(&copy).filter(|saving| saving.stage == Stage::Ordered) else { return };
        match seen {
            CopySeen::Moving | CopySeen::Checked => {}
            CopySeen::Done => {
                host.cache.finish_save(&saving.save);
                host.saves.remove(&copy);
                host.orders.drops.push(copy);
            }
            // A rank may still write the slots.
            CopySeen::Failed(_) => {
                saving.stage = Stage::Dropping;
                host.orders.drops.push(copy);
            }
        }
    }

    /// Nobody writes the slots of a save that failed any more.
    pub(super) fn dropped_save(&mut self, copy: CopyId) {
        let Some(host) = &mut self.host else { return };
        if let Some(Saving { save, .. }) = host.saves.remove(&copy) {
            host.cache.give_up_save(&save);
        }
    }
}
