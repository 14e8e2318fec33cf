//! One warp: registers, and its lanes grouped into fragments that run on their own.
//!
//! A fragment is a set of lanes at one instruction. A branch on which lanes disagree makes two; they meet again at the
//! branch's immediate post-dominator, where the first waits for the others in a [`Join`]. Lanes that exit leave all
//! joins that expect them.

use super::lanes::{FULL, L32, L64, Lanes};
use super::program::{ALWAYS, CONST, NEGATE, NONE, Program, Slot};

/// What a fragment is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Can run.
    Ready,
    /// Waits for other lanes of the warp at the instruction it stands at; looked at again when `epoch` has changed.
    Collect { epoch: u32 },
    /// Waits at a named barrier of the block.
    Barrier(u32),
    /// A poll failed; looked at again when the block's progress differs.
    Poll { progress: u64, addr: u32 },
}

/// Lanes that go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    /// Index of the join it is heading for, or [`NONE`].
    pub(crate) join: u32,
    pub(crate) state: State,
}

/// A place where diverged lanes meet again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Join {
    pub(crate) pc: u32,
    /// Lanes that will come, exited ones taken out; 0 marks a free entry.
    pub(crate) expected: u32,
    pub(crate) arrived: u32,
    pub(crate) parent: u32,
}

/// Poison of a warp's registers: a set bit is a bit that nothing wrote.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shadow {
    pub(crate) p32: Vec<L32>,
    pub(crate) p64: Vec<L64>,
    pub(crate) pred: Vec<u32>,
    /// Registers with any poisoned bit.
    pub(crate) dirty32: Vec<bool>,
    pub(crate) dirty64: Vec<bool>,
    pub(crate) carry: u32,
}

/// One warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warp {
    pub(crate) id: u32,
    /// Lanes that exist (the last warp of a block may be partial).
    pub(crate) exists: u32,
    /// Lanes that have not exited.
    pub(crate) alive: u32,
    pub(crate) r32: Vec<L32>,
    pub(crate) r64: Vec<L64>,
    pub(crate) pred: Vec<u32>,
    pub(crate) carry: u32,
    pub(crate) shadow: Shadow,
    pub(crate) fragments: Vec<Fragment>,
    pub(crate) joins: Vec<Join>,
    /// Changes whenever waiting lanes may have to look again.
    pub(crate) epoch: u32,
    /// Fragment that ran last.
    pub(crate) current: usize,
    /// Strong accesses that found what they had found before, since anything happened.
    pub(crate) spins: u64,
    /// Hashes of the last strong accesses: instruction, addresses, values.
    pub(crate) strong: [u64; 4],
    /// Local memory: per lane, one after the other.
    pub(crate) local: Vec<u8>,
    /// A byte per byte of local memory: 1 = nothing wrote it. Empty when checks are off.
    pub(crate) local_unwritten: Vec<u8>,
    /// Registers per thread that `setmaxnreg` left it with.
    pub(crate) registers: u32,
    /// Instruction that lanes may execute although others are missing, after that was reported; `NONE` otherwise.
    pub(crate) forced: u32,
    /// Lanes that arrived at the cluster barrier and have not waited.
    pub(crate) cluster_arrived: u32,
    /// Lanes whose arrival at the cluster barrier has not completed its phase.
    pub(crate) cluster_pending: u32,
}

impl Warp {
    /// A warp at the entry's first instruction.
    pub(crate) fn new(id: u32, exists: u32, program: &Program, checked: bool) -> Self {
        let shadow = if checked {
            Shadow {
                p32: vec![Lanes::splat(u32::MAX); program.num32],
                p64: vec![Lanes::splat(u64::MAX); program.num64],
                pred: std::iter::once(0).chain(std::iter::repeat_n(FULL, program.num_pred - 1)).collect(),
                dirty32: vec![true; program.num32],
                dirty64: vec![true; program.num64],
                carry: FULL,
            }
        } else {
            Shadow::default()
        };
        let mut pred = vec![0; program.num_pred];
        pred[ALWAYS as usize] = FULL;
        Warp {
            id,
            exists,
            alive: exists,
            r32: vec![Lanes::splat(u32::MAX); program.num32],
            r64: vec![Lanes::splat(u64::MAX); program.num64],
            pred,
            shadow,
            fragments: vec![Fragment { pc: 0, mask: exists, join: NONE, state: State::Ready }],
            local: vec![0xff; program.local_bytes as usize * super::lanes::LANES],
            local_unwritten: vec![1; if checked { program.local_bytes as usize * super::lanes::LANES } else { 0 }],
            forced: NONE,
            ..Warp::default()
        }
    }

    /// Value of a predicate source.
    #[inline(always)]
    pub(crate) fn p(&self, source: u32) -> u32 {
        let value = self.pred[(source & !NEGATE) as usize];
        if source & NEGATE != 0 { !value } else { value }
    }

    /// Poison of a predicate source.
    #[inline(always)]
    pub(crate) fn pp(&self, source: u32) -> u32 {
        self.shadow.pred[(source & !NEGATE) as usize]
    }

    #[inline(always)]
    pub(crate) fn w<'a>(&'a self, program: &'a Program, slot: Slot) -> &'a L32 {
        if slot & CONST != 0 { &program.const32[(slot & !CONST) as usize] } else { &self.r32[slot as usize] }
    }

    #[inline(always)]
    pub(crate) fn x<'a>(&'a self, program: &'a Program, slot: Slot) -> &'a L64 {
        if slot & CONST != 0 { &program.const64[(slot & !CONST) as usize] } else { &self.r64[slot as usize] }
    }

    /// Sets a predicate destination, unless it is a sink.
    #[inline(always)]
    pub(crate) fn set_p(&mut self, slot: u32, value: u32, mask: u32) {
        if slot != NONE {
            let p = &mut self.pred[slot as usize];
            *p = *p & !mask | value & mask;
        }
    }

    /// Sets the poison of a predicate destination.
    #[inline(always)]
    pub(crate) fn set_pp(&mut self, slot: u32, poison: u32, mask: u32) {
        if slot != NONE {
            let p = &mut self.shadow.pred[slot as usize];
            *p = *p & !mask | poison & mask;
        }
    }

    /// Whether the warp has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.alive == 0
    }

    /// Whether some fragment can run, given the block's progress.
    #[inline]
    pub(crate) fn is_runnable(&self, progress: u64) -> bool {
        self.fragments.iter().any(|f| self.can_run(f, progress))
    }

    #[inline]
    pub(crate) fn can_run(&self, fragment: &Fragment, progress: u64) -> bool {
        match fragment.state {
            State::Ready => true,
            State::Collect { epoch } => epoch != self.epoch,
            State::Barrier(_) => false,
            State::Poll { progress: seen, .. } => seen != progress,
        }
    }

    /// Splits the lanes of fragment `index` over two instructions, to meet again at `meet`.
    pub(crate) fn diverge(&mut self, index: usize, first: (u32, u32), second: (u32, u32), meet: u32, exit: u32) {
        let fragment = self.fragments[index];
        let join = if meet >= exit {
            // They meet only at the end: keep whatever the lanes were heading for.
            fragment.join
        } else if fragment.join != NONE && self.joins[fragment.join as usize].pc == meet {
            fragment.join
        } else {
            self.new_join(Join { pc: meet, expected: fragment.mask, arrived: 0, parent: fragment.join })
        };
        let state = State::Ready;
        self.fragments[index] = Fragment { pc: first.0, mask: first.1, join, state };
        self.fragments.push(Fragment { pc: second.0, mask: second.1, join, state });
    }

    fn new_join(&mut self, join: Join) -> u32 {
        if let Some(free) = self.joins.iter().position(|j| j.expected == 0) {
            self.joins[free] = join;
            free as u32
        } else {
            self.joins.push(join);
            self.joins.len() as u32 - 1
        }
    }

    /// Fragment `index` has reached its join: it waits there, or goes on with all that were expected.
    pub(crate) fn park(&mut self, index: usize) {
        let fragment = self.fragments.swap_remove(index);
        let join = &mut self.joins[fragment.join as usize];
        join.arrived |= fragment.mask;
        self.epoch = self.epoch.wrapping_add(1);
        self.complete_join(fragment.join);
    }

    fn complete_join(&mut self, index: u32) {
        let join = self.joins[index as usize];
        if join.arrived == join.expected {
            if join.arrived != 0 {
                self.fragments.push(Fragment {
                    pc: join.pc,
                    mask: join.arrived,
                    join: join.parent,
                    state: State::Ready,
                });
            }
            self.joins[index as usize].expected = 0;
            self.joins[index as usize].arrived = 0;
        }
    }

    /// Lanes end.
    pub(crate) fn exit(&mut self, index: usize, lanes: u32) {
        self.alive &= !lanes;
        self.epoch = self.epoch.wrapping_add(1);
        let fragment = &mut self.fragments[index];
        fragment.mask &= !lanes;
        let mut join = fragment.join;
        if fragment.mask == 0 {
            self.fragments.swap_remove(index);
        }
        while join != NONE {
            let entry = &mut self.joins[join as usize];
            let parent = entry.parent;
            if entry.expected & lanes != 0 {
                entry.expected &= !lanes;
                self.complete_join(join);
            }
            join = parent;
        }
    }

    /// Lets lanes that wait at a join go on without the others. Returns whether there were any.
    pub(crate) fn release_joins(&mut self) -> bool {
        let mut released = false;
        for index in 0..self.joins.len() {
            let join = self.joins[index];
            if join.arrived == 0 || join.expected == 0 {
                continue;
            }
            self.fragments.push(Fragment { pc: join.pc, mask: join.arrived, join: join.parent, state: State::Ready });
            self.joins[index].expected &= !join.arrived;
            self.joins[index].arrived = 0;
            released = true;
        }
        released
    }

    /// The innermost join that two chains share.
    pub(crate) fn common_join(&self, a: u32, b: u32) -> u32 {
        let mut x = a;
        while x != NONE {
            let mut y = b;
            while y != NONE {
                if x == y {
                    return x;
                }
                y = self.joins[y as usize].parent;
            }
            x = self.joins[x as usize].parent;
        }
        NONE
    }

    /// Lanes met others before their joins: those between `from` and `to` no longer expect them.
    pub(crate) fn leave_joins(&mut self, from: u32, to: u32, lanes: u32) {
        let mut join = from;
        while join != NONE && join != to {
            let parent = self.joins[join as usize].parent;
            self.joins[join as usize].expected &= !lanes;
            self.complete_join(join);
            join = parent;
        }
    }

    /// Lanes waiting at joins.
    pub(crate) fn parked(&self) -> u32 {
        self.joins.iter().filter(|j| j.expected != 0).fold(0, |mask, j| mask | j.arrived)
    }
}
