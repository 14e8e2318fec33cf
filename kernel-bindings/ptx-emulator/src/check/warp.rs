//! Warps as the sanitizer sees them: lanes grouped by equal knowledge, and their asynchronous copy groups.

use super::clock::{ALL, Core, Know, Lanes, OWN_NOW};
use super::event::THREAD;
use std::collections::VecDeque;
use std::sync::Arc;

/// Lanes of a warp whose knowledge is equal but for what each lane did itself.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) mask: u32,
    pub(super) know: Arc<Know>,
}

/// Commit groups of asynchronous copies of a warp's lanes.
#[derive(Debug)]
pub(super) struct CopyGroups {
    /// Epoch in which copies are issued now, from 1.
    now: u32,
    /// A copy was issued in this epoch.
    issued: bool,
    /// Committed and not waited for: epoch up to which the group reaches, lanes.
    committed: VecDeque<(u32, u32)>,
}

impl CopyGroups {
    fn new() -> Self {
        CopyGroups { now: 1, issued: false, committed: VecDeque::new() }
    }

    /// The epoch of a copy being issued.
    pub(super) fn issue(&mut self) -> u32 {
        self.issued = true;
        self.now
    }

    /// The epoch that all copies issued so far are within; later copies are past it.
    pub(super) fn seal(&mut self) -> u32 {
        self.now += u32::from(self.issued);
        self.issued = false;
        self.now - 1
    }

    /// Ends the current group of the lanes.
    pub(super) fn commit(&mut self, mask: u32) {
        let epoch = self.seal();
        self.committed.push_back((epoch, mask));
    }

    /// All but the latest `pending` groups of each lane are complete: up to which epoch, by lanes. With `drop` they are
    /// forgotten (nothing later can wait for them in another way).
    pub(super) fn wait(&mut self, mask: u32, pending: u32, drop: bool) -> Vec<(u32, u32)> {
        let mut seen = [0u32; 32];
        let mut done: Vec<(u32, u32)> = Vec::new();
        let mut open = mask;
        for &(epoch, lanes) in self.committed.iter().rev() {
            let mut here = lanes & open;
            let mut complete = 0;
            while here != 0 {
                let lane = here.trailing_zeros();
                here &= here - 1;
                seen[lane as usize] += 1;
                if seen[lane as usize] > pending {
                    complete |= 1 << lane;
                }
            }
            if complete != 0 {
                done.push((complete, epoch));
                open &= !complete;
            }
            if open == 0 {
                break;
            }
        }
        if drop {
            for &(complete, until) in &done {
                self.committed
                    .iter_mut()
                    .filter(|(epoch, _)| *epoch <= until)
                    .for_each(|(_, lanes)| *lanes &= !complete);
            }
            while self.committed.front().is_some_and(|&(_, lanes)| lanes == 0) {
                self.committed.pop_front();
            }
        }
        done
    }
}

/// One warp of a block.
#[derive(Debug)]
pub(super) struct Warp {
    /// Lanes that exist.
    pub(super) lanes: u32,
    /// Epoch of the accesses being made; moves on at every release.
    pub(super) now: u32,
    /// Disjoint; together they make up `lanes`.
    pub(super) groups: Vec<Group>,
    pub(super) cp: CopyGroups,
    pub(super) bulk: CopyGroups,
}

impl Warp {
    pub(super) fn new(lanes: u32) -> Self {
        let group = Group { mask: lanes, know: Arc::new(own(Know::default())) };
        Warp { lanes, now: 1, groups: vec![group], cp: CopyGroups::new(), bulk: CopyGroups::new() }
    }

    /// Mask for clocks: a warp that is there in full counts as 32 lanes even when it has fewer.
    pub(super) fn clock_mask(&self, mask: u32) -> u32 {
        if mask & self.lanes == self.lanes { ALL } else { mask }
    }

    /// Makes the lanes of `mask` groups of their own and returns the range of these groups' indices.
    fn isolate(&mut self, mask: u32) -> std::ops::Range<usize> {
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for group in self.groups.drain(..) {
            let (i, o) = (group.mask & mask, group.mask & !mask);
            if i != 0 && o != 0 {
                outside.push(Group { mask: o, know: group.know.clone() });
                inside.push(Group { mask: i, know: group.know });
            } else if i != 0 {
                inside.push(group);
            } else {
                outside.push(group);
            }
        }
        let count = inside.len();
        self.groups = inside;
        self.groups.append(&mut outside);
        0..count
    }

    /// Changes what the lanes of `mask` know, group by group.
    pub(super) fn update(&mut self, mask: u32, mut change: impl FnMut(&mut Know)) {
        if let [group] = &mut self.groups[..]
            && group.mask & !mask == 0
        {
            return change(Arc::make_mut(&mut group.know));
        }
        for i in self.isolate(mask) {
            change(Arc::make_mut(&mut self.groups[i].know));
        }
    }

    /// Gives the lanes of `mask` one knowledge, replacing what they had.
    pub(super) fn replace(&mut self, mask: u32, know: Arc<Know>) {
        let mask = mask & self.lanes;
        for group in &mut self.groups {
            group.mask &= !mask;
        }
        self.groups.retain(|group| group.mask != 0);
        match self.groups.iter_mut().find(|group| Arc::ptr_eq(&group.know, &know)) {
            Some(group) => group.mask |= mask,
            None if mask != 0 => self.groups.push(Group { mask, know }),
            None => {}
        }
    }

    /// Adds what the lanes of `mask` know to `into`; does not move the epoch on.
    pub(super) fn publish(&self, lanes: Lanes, mask: u32, into: &mut Know) {
        for group in &self.groups {
            if group.mask & mask != 0 {
                let lanes = Lanes { mask: self.clock_mask(group.mask & mask), now: self.now, ..lanes };
                into.absorb(&group.know, &lanes);
            }
        }
    }

    /// The knowledge of one lane.
    pub(super) fn know(&self, lane: u32) -> &Know {
        let group = self.groups.iter().find(|group| group.mask >> lane & 1 != 0);
        &group.expect("every lane that exists is in a group").know
    }

    /// All lanes at one epoch further on.
    pub(super) fn tick(&mut self) {
        self.now += 1;
    }
}

/// Marks published knowledge as the lanes' own again: what a thread did itself is known to it.
pub(super) fn own(mut know: Know) -> Know {
    know.core.main.own[THREAD as usize] = OWN_NOW;
    know
}

/// What the lanes of one group know at this moment, frozen for later publication: "up to now" becomes the epoch.
pub(super) fn freeze(core: &Core, now: u32) -> Core {
    let mut core = core.clone();
    core.main.own[THREAD as usize] = now;
    core
}
