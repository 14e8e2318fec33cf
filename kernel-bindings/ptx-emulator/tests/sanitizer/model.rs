//! The memory model once more, as plain sets: every access of every thread has a number, every thread has the set of
//! numbers that are ordered before it. No clocks, no groups, nothing forgotten but what a weak write ended. Slow and
//! obvious; the judge of the real thing.

use ptx_emulator::FindingClass;
use ptx_emulator::check::{AccessKind, MemSpace};
use ptx_emulator::ir::{Fence, Ordering, Scope, Space};
use std::collections::{BTreeMap, HashMap};

/// A set of access numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Set(Vec<u64>);

impl Set {
    fn add(&mut self, n: usize) {
        if self.0.len() <= n / 64 {
            self.0.resize(n / 64 + 1, 0);
        }
        self.0[n / 64] |= 1 << (n % 64);
    }
    fn has(&self, n: usize) -> bool {
        n != usize::MAX && self.0.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 != 0)
    }
    fn join(&mut self, other: &Set) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
}

/// Ordered before; of it seen by the async proxy, for shared and global memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Core {
    main: Set,
    proxy: [Set; 2],
}

impl Core {
    fn join(&mut self, other: &Core) {
        self.main.join(&other.main);
        (0..2).for_each(|i| self.proxy[i].join(&other.proxy[i]));
    }
}

/// All that a thread knows: also what a relaxed write would release and a fence would acquire, by scope.
#[derive(Debug, Clone, Default)]
pub(crate) struct Know {
    core: Core,
    fenced: [Option<Core>; 3],
    pending: [Core; 3],
}

impl Know {
    fn join(&mut self, other: &Know) {
        self.core.join(&other.core);
        for i in 0..3 {
            if let Some(theirs) = &other.fenced[i] {
                self.fenced[i].get_or_insert_default().join(theirs);
            }
            self.pending[i].join(&other.pending[i]);
        }
    }
}

/// A thread: block, warp, lane.
pub(crate) type Thread = (u32, u32, u32);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Actor {
    Thread,
    /// Waited for by the issuing thread.
    Group,
    /// Ends on an mbarrier.
    Transaction,
}

/// One access of one lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Touch {
    pub(crate) thread: Thread,
    pub(crate) space: MemSpace,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) write: bool,
    pub(crate) strong: Option<Scope>,
    pub(crate) nc: bool,
    pub(crate) proxy: bool,
    pub(crate) actor: Actor,
    pub(crate) place: u32,
}

/// A conflict: class, lane and place of the other, lane of the access being made, byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pair {
    pub(crate) class: FindingClass,
    pub(crate) lane: u32,
    pub(crate) addr: u64,
    pub(crate) other: Thread,
    pub(crate) place: u32,
}

#[derive(Debug, Default)]
struct Object {
    releases: Vec<(Thread, usize, Core)>,
}

#[derive(Debug, Default)]
struct Mbarrier {
    arrived: Know,
    landed: Set,
    done: Know,
    init: Option<usize>,
    init_fences: Vec<usize>,
}

#[derive(Debug, Default)]
struct Groups {
    open: Vec<(usize, bool)>,
    all: Vec<usize>,
    committed: Vec<Vec<(usize, bool)>>,
}

/// Everything.
#[derive(Debug, Default)]
pub(crate) struct Model {
    touches: Vec<Touch>,
    bytes: HashMap<(bool, u32, u64), Vec<usize>>,
    threads: BTreeMap<Thread, Know>,
    objects: HashMap<(bool, u32, u64), Object>,
    mbarriers: BTreeMap<(u32, u32), Mbarrier>,
    cp: BTreeMap<Thread, Groups>,
    bulk: BTreeMap<Thread, Groups>,
}

pub(crate) fn level(scope: Scope) -> usize {
    match scope {
        Scope::Cta => 0,
        Scope::Cluster => 1,
        _ => 2,
    }
}

/// Key of a byte: shared memory is one per block.
fn key(space: MemSpace, block: u32, addr: u64) -> (bool, u32, u64) {
    let shared = space == MemSpace::Shared;
    (shared, if shared { block } else { 0 }, addr)
}

impl Model {
    pub(crate) fn know(&mut self, thread: Thread) -> &mut Know {
        self.threads.entry(thread).or_default()
    }

    /// Conflicts of these accesses, all made by one instruction, with earlier ones and among each other.
    pub(crate) fn conflicts(&self, touches: &[Touch]) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (i, touch) in touches.iter().enumerate() {
            let know = self.threads.get(&touch.thread).map(|know| know.core.clone()).unwrap_or_default();
            for addr in touch.addr..touch.addr + touch.bytes {
                let earlier = self.bytes.get(&key(touch.space, touch.thread.0, addr)).into_iter().flatten();
                let earlier = earlier.map(|&number| (&self.touches[number], number));
                let beside = touches.iter().enumerate().filter(|&(j, other)| {
                    j != i && other.space == touch.space && (other.addr..other.addr + other.bytes).contains(&addr)
                });
                let beside = beside.map(|(_, other)| (other, usize::MAX));
                for (other, number) in earlier.chain(beside) {
                    if let Some(class) = judge(touch, other, number, &know, &self.threads) {
                        pairs.push(Pair { class, lane: touch.thread.2, addr, other: other.thread, place: other.place });
                    }
                }
            }
        }
        pairs
    }

    /// Records the accesses; returns the number of the last.
    pub(crate) fn record(&mut self, touches: &[Touch]) -> usize {
        for touch in touches {
            let number = self.touches.len();
            self.touches.push(*touch);
            for at in touch.addr..touch.addr + touch.bytes {
                let key = key(touch.space, touch.thread.0, at);
                let list = self.bytes.entry(key).or_default();
                if touch.write && touch.strong.is_none() {
                    list.clear();
                    self.objects.remove(&key);
                }
                list.push(number);
            }
            if touch.actor == Actor::Thread {
                self.know(touch.thread).core.main.add(number);
            }
        }
        self.touches.len() - 1
    }

    /// Releases and acquires of one lane's strong access.
    pub(crate) fn synchronize(
        &mut self,
        thread: Thread,
        space: MemSpace,
        addr: u64,
        kind: AccessKind,
        ordering: Ordering,
        level: usize,
    ) {
        let acquires = matches!(ordering, Ordering::Acquire | Ordering::AcqRel);
        let releases = matches!(ordering, Ordering::Release | Ordering::AcqRel);
        let know = self.threads.entry(thread).or_default();
        let object = self.objects.entry(key(space, thread.0, addr)).or_default();
        if matches!(kind, AccessKind::Read | AccessKind::Atomic) {
            for ((block, ..), reach, core) in &object.releases {
                // Distance between two blocks without clusters: the same (0) or the whole device (2).
                let distance = if *block == thread.0 { 0 } else { 2 };
                if *reach < distance || level < distance {
                    continue;
                }
                if acquires {
                    know.core.join(core);
                } else {
                    know.pending[distance.max(*reach).min(level)].join(core);
                }
            }
        }
        if kind == AccessKind::Read {
            return;
        }
        if kind == AccessKind::Write && object.releases.iter().any(|(by, ..)| *by != thread) {
            object.releases.clear();
        }
        if releases {
            (0..=level).for_each(|reach| object.releases.push((thread, reach, know.core.clone())));
        } else {
            for (reach, core) in know.fenced.iter().enumerate().take(level + 1) {
                object.releases.extend(core.clone().map(|core| (thread, reach, core)));
            }
        }
    }

    pub(crate) fn meet(&mut self, arriving: &[Thread], waiting: &[Thread]) {
        let mut all = Know::default();
        arriving.iter().chain(waiting).for_each(|&thread| all.join(self.threads.entry(thread).or_default()));
        waiting.iter().for_each(|&thread| self.know(thread).join(&all));
    }

    pub(crate) fn fence(&mut self, thread: Thread, fence: Fence) {
        let know = self.threads.entry(thread).or_default();
        let (acquires, releases) = match fence {
            Fence::Sc(scope) | Fence::AcqRel(scope) => (Some(scope), Some(scope)),
            Fence::Acquire(scope) => (Some(scope), None),
            Fence::Release(scope) => (None, Some(scope)),
            Fence::MbarrierInit => {
                // Stands in the order as an access to nothing.
                let number = self.touches.len();
                let (space, place) = (MemSpace::Shared, 0);
                let (actor, strong) = (Actor::Thread, None);
                let (addr, bytes, write, nc, proxy) = (0, 0, false, false, false);
                self.touches.push(Touch { thread, space, addr, bytes, write, strong, nc, proxy, actor, place });
                know.core.main.add(number);
                let touches = &self.touches;
                for ((block, _), mbarrier) in &mut self.mbarriers {
                    if *block == thread.0 && mbarrier.init.is_some_and(|init| touches[init].thread == thread) {
                        mbarrier.init_fences.push(number);
                    }
                }
                return;
            }
            Fence::ProxyAsync(space) => {
                if space != Space::Global {
                    know.core.proxy[0] = know.core.main.clone();
                }
                if space == Space::Generic || space == Space::Global {
                    know.core.proxy[1] = know.core.main.clone();
                }
                return;
            }
            Fence::ProxyAlias => return,
        };
        if let Some(scope) = acquires {
            for i in 0..=level(scope) {
                let pending = know.pending[i].clone();
                know.core.join(&pending);
            }
        }
        if let Some(scope) = releases {
            know.fenced[..=level(scope)].fill(Some(know.core.clone()));
        }
    }

    pub(crate) fn init(&mut self, block: u32, addr: u32, number: usize) {
        let mbarrier = self.mbarriers.entry((block, addr)).or_default();
        let landed = std::mem::take(&mut mbarrier.landed);
        *mbarrier = Mbarrier { landed, init: Some(number), ..Mbarrier::default() };
    }

    pub(crate) fn arrive(&mut self, thread: Thread, addr: u32, releases: bool) {
        let know = self.threads.entry(thread).or_default();
        let mbarrier = self.mbarriers.entry((thread.0, addr)).or_default();
        if releases {
            mbarrier.arrived.join(know);
        } else {
            know.fenced[0].iter().for_each(|core| mbarrier.arrived.core.join(core));
        }
    }

    pub(crate) fn complete(&mut self, block: u32, addr: u32) {
        let mbarrier = self.mbarriers.entry((block, addr)).or_default();
        mbarrier.arrived.core.main.join(&mbarrier.landed);
        mbarrier.done = mbarrier.arrived.clone();
    }

    pub(crate) fn observe(&mut self, thread: Thread, addr: u32, acquires: bool, level: usize) {
        let know = self.threads.entry(thread).or_default();
        let done = &self.mbarriers.entry((thread.0, addr)).or_default().done;
        if acquires {
            know.join(done);
        } else {
            know.pending[..=level].iter_mut().for_each(|pending| pending.join(&done.core));
        }
    }

    /// The init of the object as seen by a copy: place of an init that is ordered before the thread and not fenced.
    pub(crate) fn unfenced_init(&mut self, thread: Thread, addr: u32) -> Option<Pair> {
        let core = &self.threads.entry(thread).or_default().core;
        let mbarrier = self.mbarriers.entry((thread.0, addr)).or_default();
        let init = mbarrier.init?;
        let fenced = core.proxy[0].has(init) || mbarrier.init_fences.iter().any(|&fence| core.main.has(fence));
        let touch = &self.touches[init];
        let class = FindingClass::MissingProxyFence;
        let pair = Pair { class, lane: thread.2, addr: addr.into(), other: touch.thread, place: touch.place };
        (!fenced && core.main.has(init)).then_some(pair)
    }

    /// A copy of a group was issued; `true` marks source reads.
    pub(crate) fn issued(&mut self, thread: Thread, bulk: bool, number: usize, read: bool) {
        let groups = if bulk { &mut self.bulk } else { &mut self.cp }.entry(thread).or_default();
        groups.open.push((number, read));
        groups.all.push(number);
    }

    pub(crate) fn commit(&mut self, thread: Thread, bulk: bool) {
        let groups = if bulk { &mut self.bulk } else { &mut self.cp }.entry(thread).or_default();
        let open = std::mem::take(&mut groups.open);
        groups.committed.push(open);
    }

    /// `pending` is `None` for `wait_all`; `reads` when only sources are waited for.
    pub(crate) fn wait(&mut self, thread: Thread, bulk: bool, pending: Option<usize>, reads: bool) {
        let groups = if bulk { &mut self.bulk } else { &mut self.cp }.entry(thread).or_default();
        let main = &mut self.threads.entry(thread).or_default().core.main;
        match pending {
            None => groups.all.iter().for_each(|&number| main.add(number)),
            Some(pending) => {
                let complete = groups.committed.len().saturating_sub(pending);
                let members = groups.committed[..complete].iter().flatten();
                members.filter(|(_, read)| *read || !reads).for_each(|&(number, _)| main.add(number));
            }
        }
    }

    pub(crate) fn copies_so_far(&self, thread: Thread) -> Vec<usize> {
        self.cp.get(&thread).map_or(Vec::new(), |groups| groups.all.clone())
    }

    pub(crate) fn copies_arrived(&mut self, block: u32, addr: u32, numbers: &[usize]) {
        let mbarrier = self.mbarriers.entry((block, addr)).or_default();
        numbers.iter().for_each(|&number| mbarrier.arrived.core.main.add(number));
    }

    pub(crate) fn landed(&mut self, block: u32, addr: u32, numbers: &[usize]) {
        let mbarrier = self.mbarriers.entry((block, addr)).or_default();
        numbers.iter().for_each(|&number| mbarrier.landed.add(number));
    }
}

/// The class of a conflict between an access and an earlier one, if there is one.
fn judge(
    touch: &Touch,
    other: &Touch,
    number: usize,
    know: &Core,
    threads: &BTreeMap<Thread, Know>,
) -> Option<FindingClass> {
    if touch.write && other.nc || touch.nc && other.write {
        return Some(FindingClass::NcLoadOfWritten);
    }
    if !touch.write && !other.write {
        return None;
    }
    if let (Some(mine), Some(theirs)) = (touch.strong, other.strong)
        && touch.proxy == other.proxy
        && (touch.thread.0 == other.thread.0 || level(mine.min(theirs)) == 2)
    {
        return None;
    }
    if !know.main.has(number) {
        let race = if touch.space == MemSpace::Shared { FindingClass::SharedRace } else { FindingClass::GlobalRace };
        let waited = || threads.get(&other.thread).is_some_and(|know| know.core.main.has(number));
        let early = other.thread.0 == touch.thread.0
            && match other.actor {
                Actor::Thread => false,
                Actor::Group => !waited(),
                Actor::Transaction => true,
            };
        return Some(if early { FindingClass::AsyncEarlyAccess } else { race });
    }
    let proxy = &know.proxy[usize::from(touch.space == MemSpace::Global)];
    (touch.proxy && other.write && !other.proxy && !proxy.has(number)).then_some(FindingClass::MissingProxyFence)
}
