//! Free pages, after evictions from the prefix cache if need be, and who gives way when there are none.

use super::Scheduler;
use crate::ids::SequenceId;
use crate::sequence::{Phase, Role};

impl Scheduler {
    /// Whether `pages` compressed pages are free, after evictions if need be. Nothing is evicted in vain: what the
    /// cache shares with a running sequence is what that sequence resumes from when it is preempted.
    ///
    /// Pages that are saved before they are dropped become free later: then the answer is no, and copies hold pages
    /// ([`Scheduler::copies_hold_pages`]).
    pub(super) fn reserve_compressed(&mut self, pages: u32) -> bool {
        let fits = self.available_compressed(pages);
        let mut coming = 0;
        while fits && self.pools.compressed.num_free() + coming < pages {
            let idle = self.prefix.idle_leaf(&self.pools);
            if idle.is_none() && self.copies_hold_pages() {
                return false;
            }
            let Some(leaf) = idle.or(self.prefix.oldest_leaf()) else { return false };
            if self.save_before_drop(leaf) {
                coming += 1;
            } else {
                self.prefix.drop_node(leaf, &mut self.pools);
            }
        }
        fits && coming == 0
    }

    /// How many window pages of the wanted ones are free, after evictions if need be. Of those that are saved first, more may be
    /// free later.
    pub(super) fn reserve_windows(&mut self, pages: u32) -> u32 {
        let mut coming = 0;
        while self.pools.window.num_free() + coming < pages {
            let Some(node) = self.prefix.idle_window(&self.pools) else { break };
            if self.save_before_drop(node) {
                coming += 1;
            } else {
                self.prefix.drop_node(node, &mut self.pools);
            }
        }
        self.pools.window.num_free().min(pages)
    }

    pub(super) fn available_compressed(&self, pages: u32) -> bool {
        let free = self.pools.compressed.num_free();
        free >= pages || free + self.prefix.evictable_compressed(&self.pools) >= pages
    }

    pub(super) fn available_windows(&self, pages: u32) -> bool {
        let free = self.pools.window.num_free();
        free >= pages || free + self.prefix.evictable_windows(&self.pools) >= pages
    }

    /// The youngest sequence with pages.
    pub(super) fn youngest(&self) -> Option<SequenceId> {
        self.running.last().copied().max(self.halves.youngest_landing()).max(self.youngest_loading())
    }

    /// The youngest sequence with pages gives everything back and waits at its place in the order of arrival. One whose
    /// prompt was being computed elsewhere will be computed here: it has the text. One whose beginning is being copied out of host
    /// memory gives way once the copy has been dropped.
    pub(super) fn preempt_youngest(&mut self) {
        let Some(id) = self.youngest() else { return };
        self.stats.preempted += 1;
        if self.drop_load(id) {
            return;
        }
        self.halves.preempt(id);
        self.give_way(id);
    }

    /// A sequence with pages gives everything back and waits.
    pub(super) fn give_way(&mut self, id: SequenceId) {
        self.running.remove(&id);
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        sequence.release(&mut self.pools);
        // Without its room, a prompt that was landing is computed here.
        sequence.role = if sequence.phase == Phase::Landing { Role::Whole } else { sequence.role };
        sequence.phase = Phase::Waiting;
        self.waiting.insert(id);
    }
}
