//! Random scripts, played to the sanitizer and to the plain model: the same first conflict, or none in either.

use super::model::{Actor, Model, Pair, Thread, Touch, level};
use super::support::{ALL, G};
use proptest::prelude::*;
use ptx_emulator::check::{
    Access, AccessKind, AsyncId, BlockCheck, Bulk, BulkCompletion, Conflict, LaunchCheck, MemSpace,
};
use ptx_emulator::ir::{Fence, Ordering, Scope, Space};
use std::sync::Arc;

/// Threads of a block: a full warp and one of three lanes.
const THREADS: u32 = 35;
/// Addresses used for strong accesses, and now and then for weak ones.
const FLAGS: [u64; 2] = [256, 272];
/// Mbarriers in shared memory.
const MBARRIERS: [u32; 2] = [512, 520];

#[derive(Debug, Clone)]
enum Step {
    Access {
        warp: u32,
        mask: u32,
        global: bool,
        base: u64,
        stride: u64,
        bytes: u32,
        kind: AccessKind,
    },
    Flag {
        warp: u32,
        mask: u32,
        global: bool,
        flag: usize,
        kind: AccessKind,
        ordering: Ordering,
        scope: Scope,
    },
    WarpSync {
        warp: u32,
        mask: u32,
    },
    /// Warps that arrive only, warps that wait.
    Barrier {
        arrive: Vec<(u32, u32)>,
        wait: Vec<(u32, u32)>,
    },
    Fence {
        warp: u32,
        mask: u32,
        fence: Fence,
    },
    Init {
        warp: u32,
        lane: u32,
        mbarrier: usize,
    },
    Arrive {
        warp: u32,
        mask: u32,
        mbarrier: usize,
        release: bool,
    },
    Complete {
        mbarrier: usize,
    },
    Observe {
        warp: u32,
        mask: u32,
        mbarrier: usize,
        acquire: bool,
    },
    CpAsync {
        warp: u32,
        mask: u32,
        dst: u64,
        src: u64,
        stride: u64,
    },
    CpCommit {
        warp: u32,
        mask: u32,
    },
    CpWait {
        warp: u32,
        mask: u32,
        groups: Option<u32>,
    },
    CpArrive {
        warp: u32,
        lane: u32,
        mbarrier: usize,
    },
    Load {
        warp: u32,
        lane: u32,
        dst: u64,
        src: u64,
        mbarrier: usize,
    },
    Store {
        warp: u32,
        lane: u32,
        dst: u64,
        src: u64,
        reduce: bool,
    },
    BulkCommit {
        warp: u32,
        mask: u32,
    },
    BulkWait {
        warp: u32,
        mask: u32,
        groups: u32,
        read: bool,
    },
    /// The oldest operation on an mbarrier ends.
    End,
}

/// One step of a block; a careful one is left out where it would conflict, which lets scripts go deep.
#[derive(Debug, Clone)]
struct Line {
    block: u32,
    careful: bool,
    step: Step,
}

/// How often the kinds of steps come, and how many places there are.
#[derive(Debug, Clone, Copy)]
struct Mix {
    blocks: u32,
    /// Few lanes and few addresses meet more often.
    narrow: bool,
    access: u32,
    flag: u32,
    sync: u32,
    fence: u32,
    proxy_fence: u32,
    mbarrier: u32,
    cp_async: u32,
    bulk: u32,
}

/// A bit of everything.
const ALL_SORTS: Mix = Mix {
    blocks: 2,
    narrow: false,
    access: 12,
    flag: 7,
    sync: 2,
    fence: 3,
    proxy_fence: 2,
    mbarrier: 3,
    cp_async: 2,
    bulk: 2,
};
/// Flags, fences, scopes.
const FLAGS_ONLY: Mix = Mix {
    narrow: true,
    access: 8,
    flag: 12,
    sync: 1,
    fence: 6,
    proxy_fence: 0,
    mbarrier: 0,
    cp_async: 0,
    bulk: 0,
    ..ALL_SORTS
};
/// Warps and barriers.
const WARPS_ONLY: Mix = Mix { blocks: 1, flag: 2, sync: 4, mbarrier: 2, ..FLAGS_ONLY };
/// Copies of both kinds and what ends them.
const COPIES_ONLY: Mix = Mix {
    blocks: 1,
    narrow: true,
    access: 6,
    flag: 0,
    fence: 0,
    proxy_fence: 4,
    mbarrier: 4,
    cp_async: 3,
    bulk: 3,
    ..ALL_SORTS
};

fn lanes(mix: Mix) -> BoxedStrategy<u32> {
    if mix.narrow {
        prop_oneof![3 => Just(1u32), 2 => Just(2), 1 => Just(3), 1 => Just(ALL)].boxed()
    } else {
        prop_oneof![Just(1u32), Just(2), Just(4), Just(3), Just(7), Just(0x8000_0001), Just(ALL), Just(ALL)].boxed()
    }
}

fn warp_mask(mix: Mix) -> impl Strategy<Value = (u32, u32)> {
    (0..2u32, lanes(mix)).prop_map(|(warp, mask)| (warp, if warp == 1 { (mask & 7).max(1) } else { mask }))
}

fn one(mix: Mix) -> impl Strategy<Value = (u32, u32)> {
    (0..2u32, 0..if mix.narrow { 2u32 } else { 3 })
}

fn fence() -> impl Strategy<Value = Fence> {
    let scope = prop_oneof![Just(Scope::Cta), Just(Scope::Gpu)];
    prop_oneof![
        2 => scope.clone().prop_map(Fence::AcqRel),
        1 => scope.clone().prop_map(Fence::Sc),
        1 => scope.clone().prop_map(Fence::Acquire),
        1 => scope.prop_map(Fence::Release),
    ]
}

fn proxy_fence() -> impl Strategy<Value = Fence> {
    prop_oneof![
        2 => Just(Fence::MbarrierInit),
        2 => Just(Fence::ProxyAsync(Space::Generic)),
        1 => Just(Fence::ProxyAsync(Space::Shared)),
        1 => Just(Fence::ProxyAsync(Space::Global)),
    ]
}

fn access(mix: Mix) -> impl Strategy<Value = Step> {
    let at = 0..if mix.narrow { 6u64 } else { 16 };
    let access = (warp_mask(mix), any::<bool>(), 0..3u32, 0..5u32, 0..5u64, at, 0..8u32);
    access.prop_map(|((warp, mask), global, kind, size, stride, at, rare)| {
        let bytes = 1 << size;
        let kind = match (kind, global) {
            (0, _) => AccessKind::Write,
            (1, true) if rare < 2 => AccessKind::ReadNc,
            _ => AccessKind::Read,
        };
        // Bases within 64 bytes, and now and then on a flag.
        let base = if rare == 7 { FLAGS[at as usize % 2] } else { at * 4 / u64::from(bytes) * u64::from(bytes) };
        let far = if global { 1 << 16 } else { 64 };
        let stride = [0, u64::from(bytes), 2 * u64::from(bytes), 16.max(u64::from(bytes)), far][stride as usize];
        Step::Access { warp, mask, global, base, stride, bytes, kind }
    })
}

fn flag(mix: Mix) -> impl Strategy<Value = Step> {
    let orderings = prop_oneof![
        Just(Ordering::Relaxed),
        Just(Ordering::Volatile),
        Just(Ordering::Acquire),
        Just(Ordering::Release),
        Just(Ordering::AcqRel)
    ];
    let flag = (warp_mask(mix), any::<bool>(), 0..2usize, 0..4u32, orderings, 0..3u32);
    flag.prop_map(|((warp, mask), global, flag, kind, ordering, scope)| {
        let kind = [AccessKind::Read, AccessKind::Write, AccessKind::Atomic, AccessKind::Reduce][kind as usize];
        let ordering = match (kind, ordering) {
            (AccessKind::Read, Ordering::Release | Ordering::AcqRel) => Ordering::Acquire,
            (AccessKind::Write, Ordering::Acquire | Ordering::AcqRel) => Ordering::Release,
            (AccessKind::Reduce, Ordering::Acquire | Ordering::AcqRel) => Ordering::Release,
            (AccessKind::Atomic | AccessKind::Reduce, Ordering::Volatile) => Ordering::Relaxed,
            _ => ordering,
        };
        let scope = if scope == 0 { Scope::Cta } else { Scope::Gpu };
        Step::Flag { warp, mask, global, flag, kind, ordering, scope }
    })
}

fn sync(mix: Mix) -> impl Strategy<Value = Step> {
    let barrier = (prop::collection::vec(lanes(mix), 2), 0..4u32, 0..4u32).prop_map(|(masks, arrive, wait)| {
        let pick = |which: u32| {
            let warps = (0..2).filter(move |w| which >> w & 1 != 0);
            warps.map(|w| (w, if w == 1 { 7 } else { masks[0] | masks[1] })).collect::<Vec<_>>()
        };
        Step::Barrier { arrive: pick(arrive & !wait), wait: pick(wait) }
    });
    prop_oneof![
        2 => warp_mask(mix).prop_map(|(warp, mask)| Step::WarpSync { warp, mask }),
        1 => barrier,
        1 => Just(Step::Barrier { arrive: Vec::new(), wait: vec![(0, ALL), (1, 7)] }),
    ]
}

fn mbarrier(mix: Mix) -> impl Strategy<Value = Step> {
    let object = 0..2usize;
    let (who, one) = (warp_mask(mix), one(mix));
    prop_oneof![
        2 => (one, object.clone()).prop_map(|((warp, lane), mbarrier)| Step::Init { warp, lane, mbarrier }),
        3 => (warp_mask(mix), object.clone(), any::<bool>())
            .prop_map(|((warp, mask), mbarrier, release)| Step::Arrive { warp, mask, mbarrier, release }),
        4 => object.clone().prop_map(|mbarrier| Step::Complete { mbarrier }),
        4 => (who, object, any::<bool>())
            .prop_map(|((warp, mask), mbarrier, acquire)| Step::Observe { warp, mask, mbarrier, acquire }),
        3 => Just(Step::End),
    ]
}

fn cp_async(mix: Mix) -> impl Strategy<Value = Step> {
    let who = || warp_mask(mix);
    prop_oneof![
        3 => (who(), 0..4u64, 0..4u64, 0..2u64).prop_map(|((warp, mask), dst, src, stride)| {
            Step::CpAsync { warp, mask, dst: dst * 16, src: src * 16, stride: stride * 16 }
        }),
        2 => who().prop_map(|(warp, mask)| Step::CpCommit { warp, mask }),
        2 => (who(), 0..4u32).prop_map(|((warp, mask), n)| Step::CpWait { warp, mask, groups: n.checked_sub(1) }),
        2 => (one(mix), 0..2usize).prop_map(|((warp, lane), mbarrier)| Step::CpArrive { warp, lane, mbarrier }),
    ]
}

fn bulk(mix: Mix) -> impl Strategy<Value = Step> {
    let (at, who) = (|| (0..4u64).prop_map(|n| n * 16), || warp_mask(mix));
    prop_oneof![
        3 => (one(mix), at(), at(), 0..2usize)
            .prop_map(|((warp, lane), dst, src, mbarrier)| Step::Load { warp, lane, dst, src, mbarrier }),
        3 => (one(mix), at(), at(), any::<bool>())
            .prop_map(|((warp, lane), dst, src, reduce)| Step::Store { warp, lane, dst, src, reduce }),
        2 => who().prop_map(|(warp, mask)| Step::BulkCommit { warp, mask }),
        2 => (who(), 0..3u32, any::<bool>())
            .prop_map(|((warp, mask), groups, read)| Step::BulkWait { warp, mask, groups, read }),
    ]
}

fn script(mix: Mix) -> impl Strategy<Value = Vec<Line>> {
    let step = prop::strategy::Union::new_weighted(
        [
            (mix.access, access(mix).boxed()),
            (mix.flag, flag(mix).boxed()),
            (mix.sync, sync(mix).boxed()),
            (mix.fence, fence_step(mix, fence()).boxed()),
            (mix.proxy_fence, fence_step(mix, proxy_fence()).boxed()),
            (mix.mbarrier, mbarrier(mix).boxed()),
            (mix.cp_async, cp_async(mix).boxed()),
            (mix.bulk, bulk(mix).boxed()),
        ]
        .into_iter()
        .filter(|(weight, _)| *weight != 0)
        .collect(),
    );
    let line = (0..2 * mix.blocks - 1, 0..12u32, step);
    let line = line.prop_map(|(block, careless, step)| Line { block: block / 2, careful: careless != 0, step });
    prop::collection::vec(line, 1..120)
}

fn fence_step(mix: Mix, fence: impl Strategy<Value = Fence>) -> impl Strategy<Value = Step> {
    (warp_mask(mix), fence).prop_map(|((warp, mask), fence)| Step::Fence { warp, mask, fence })
}

/// An operation on an mbarrier that has not ended: block, object, number in the sanitizer, accesses in the model.
struct Running {
    block: u32,
    mbarrier: u32,
    id: AsyncId,
    numbers: Vec<usize>,
    load: bool,
}

struct Both {
    real: Vec<BlockCheck>,
    model: Model,
    running: Vec<Running>,
    out: Vec<Conflict>,
    place: u32,
    /// Number of the last access in the model.
    last: usize,
}

impl Both {
    fn new() -> Self {
        let launch = Arc::new(LaunchCheck::new());
        Both {
            real: (0..2).map(|block| BlockCheck::new(launch.clone(), block, block, THREADS, 1024)).collect(),
            model: Model::default(),
            running: Vec::new(),
            out: Vec::new(),
            place: 0,
            last: 0,
        }
    }

    fn threads(block: u32, warp: u32, mask: u32) -> Vec<Thread> {
        (0..32).filter(|lane| mask >> lane & 1 != 0).map(|lane| (block, warp, lane)).collect()
    }

    fn touch(&self, thread: Thread, space: MemSpace, addr: u64, bytes: u64, write: bool) -> Touch {
        let (strong, nc, proxy, actor, place) = (None, false, false, Actor::Thread, self.place);
        Touch { thread, space, addr, bytes, write, strong, nc, proxy, actor, place }
    }

    /// Lanes of a strong use of an mbarrier's bytes.
    fn object(&self, threads: &[Thread], addr: u32, write: bool) -> Vec<Touch> {
        let touch = |&thread| Touch {
            strong: Some(Scope::Cta),
            ..self.touch(thread, MemSpace::Shared, u64::from(addr), 8, write)
        };
        threads.iter().map(touch).collect()
    }

    /// Conflicts of an instruction's accesses, which are recorded; `None` when it is to be left out.
    fn check(&mut self, line: &Line, touches: &[Touch]) -> Option<Vec<Pair>> {
        let pairs = self.model.conflicts(touches);
        if line.careful && !pairs.is_empty() {
            return None;
        }
        self.last = self.model.record(touches);
        Some(pairs)
    }

    /// Plays one line to both; the conflicts of the model.
    fn play(&mut self, line: &Line) -> Vec<Pair> {
        // Few places, so that accesses of different times share them as in a loop.
        self.place = self.place % 3 + 1;
        let (block, place) = (line.block, self.place);
        let real = block as usize;
        let weak = (Ordering::Weak, Scope::Cta);
        match line.step {
            Step::Access { warp, mask, global, base, stride, bytes, kind } => {
                let space = if global { MemSpace::Global } else { MemSpace::Shared };
                let from = base + if global { G } else { 0 };
                let addr: [u64; 32] = std::array::from_fn(|lane| from + lane as u64 % 3 * stride);
                let touches: Vec<_> = Self::threads(block, warp, mask)
                    .into_iter()
                    .map(|t| Touch {
                        nc: kind == AccessKind::ReadNc,
                        ..self.touch(t, space, addr[t.2 as usize], bytes.into(), kind == AccessKind::Write)
                    })
                    .collect();
                let Some(pairs) = self.check(line, &touches) else { return Vec::new() };
                let (ordering, scope) = weak;
                let access = Access { space, warp, mask, addr: &addr, bytes, kind, ordering, scope, place };
                self.real[real].access(&access, &mut self.out);
                pairs
            }
            Step::Flag { warp, mask, global, flag, kind, ordering, scope } => {
                let space = if global { MemSpace::Global } else { MemSpace::Shared };
                let at = FLAGS[flag] + if global { G } else { 0 };
                let scope = if ordering == Ordering::Volatile { Scope::Sys } else { scope };
                let write = kind != AccessKind::Read;
                let threads = Self::threads(block, warp, mask);
                let touches: Vec<_> = threads
                    .iter()
                    .map(|&t| Touch { strong: Some(scope), ..self.touch(t, space, at, 4, write) })
                    .collect();
                let Some(pairs) = self.check(line, &touches) else { return Vec::new() };
                for thread in threads {
                    self.model.synchronize(thread, space, at, kind, ordering, level(scope));
                }
                let access = Access { space, warp, mask, addr: &[at; 32], bytes: 4, kind, ordering, scope, place };
                self.real[real].access(&access, &mut self.out);
                pairs
            }
            Step::WarpSync { warp, mask } => {
                self.model.meet(&[], &Self::threads(block, warp, mask));
                self.real[real].warp_sync(warp, mask);
                Vec::new()
            }
            Step::Barrier { ref arrive, ref wait } => {
                let all =
                    |set: &[(u32, u32)]| set.iter().flat_map(|&(w, m)| Self::threads(block, w, m)).collect::<Vec<_>>();
                self.model.meet(&all(arrive), &all(wait));
                for (set, waits) in [(arrive, false), (wait, true)] {
                    set.iter().for_each(|&(warp, mask)| self.real[real].barrier_arrive(3, warp, mask, waits));
                }
                self.real[real].barrier_complete(3);
                Vec::new()
            }
            Step::Fence { warp, mask, fence } => {
                Self::threads(block, warp, mask).into_iter().for_each(|thread| self.model.fence(thread, fence));
                self.real[real].fence(warp, mask, fence);
                Vec::new()
            }
            Step::Init { warp, lane, mbarrier } => {
                let addr = MBARRIERS[mbarrier];
                let touch = self.touch((block, warp, lane), MemSpace::Shared, u64::from(addr), 8, true);
                let Some(pairs) = self.check(line, &[touch]) else { return Vec::new() };
                let number = self.last;
                self.model.init(block, addr, number);
                self.real[real].mbarrier_init(warp, lane, addr, place, &mut self.out);
                pairs
            }
            Step::Arrive { warp, mask, mbarrier, release } => {
                let addr = MBARRIERS[mbarrier];
                let threads = Self::threads(block, warp, mask);
                let touches = self.object(&threads, addr, true);
                let Some(pairs) = self.check(line, &touches) else { return Vec::new() };
                threads.iter().for_each(|&thread| self.model.arrive(thread, addr, release));
                let ordering = if release { Ordering::Release } else { Ordering::Relaxed };
                self.real[real].mbarrier_arrive(warp, mask, addr, ordering, Scope::Cta, place, &mut self.out);
                pairs
            }
            Step::Complete { mbarrier } => {
                self.model.complete(block, MBARRIERS[mbarrier]);
                self.real[real].mbarrier_complete(MBARRIERS[mbarrier]);
                Vec::new()
            }
            Step::Observe { warp, mask, mbarrier, acquire } => {
                let addr = MBARRIERS[mbarrier];
                let threads = Self::threads(block, warp, mask);
                let touches = self.object(&threads, addr, false);
                let Some(pairs) = self.check(line, &touches) else { return Vec::new() };
                threads.iter().for_each(|&thread| self.model.observe(thread, addr, acquire, 0));
                let ordering = if acquire { Ordering::Acquire } else { Ordering::Relaxed };
                self.real[real].mbarrier_observe(warp, mask, addr, ordering, Scope::Cta, place, &mut self.out);
                pairs
            }
            Step::CpAsync { warp, mask, dst, src, stride } => {
                let src: [u64; 32] = std::array::from_fn(|lane| G + src + lane as u64 % 2 * 16);
                let dst: [u64; 32] = std::array::from_fn(|lane| dst + lane as u64 % 4 * stride);
                let threads = Self::threads(block, warp, mask);
                let group = |touch| Touch { actor: Actor::Group, ..touch };
                let reads = threads.iter().map(|&t| self.touch(t, MemSpace::Global, src[t.2 as usize], 16, false));
                let writes = threads.iter().map(|&t| self.touch(t, MemSpace::Shared, dst[t.2 as usize], 16, true));
                let touches: Vec<_> = reads.chain(writes).map(group).collect();
                let Some(pairs) = self.check(line, &touches) else { return Vec::new() };
                for (i, touch) in touches.iter().enumerate() {
                    let number = self.last + 1 - touches.len() + i;
                    self.model.issued(touch.thread, false, number, !touch.write);
                }
                self.real[real].cp_async(warp, mask, &dst, &src, 16, &[16; 32], place, &mut self.out);
                pairs
            }
            Step::CpCommit { warp, mask } => {
                Self::threads(block, warp, mask).into_iter().for_each(|thread| self.model.commit(thread, false));
                self.real[real].cp_async_commit(warp, mask);
                Vec::new()
            }
            Step::CpWait { warp, mask, groups } => {
                for thread in Self::threads(block, warp, mask) {
                    self.model.wait(thread, false, groups.map(|n| n as usize), false);
                }
                self.real[real].cp_async_wait(warp, mask, groups);
                Vec::new()
            }
            Step::CpArrive { warp, lane, mbarrier } => {
                let (addr, thread) = (MBARRIERS[mbarrier], (block, warp, lane));
                let touches = self.object(&[thread], addr, true);
                let Some(pairs) = self.check(line, &touches) else { return Vec::new() };
                let numbers = self.model.copies_so_far(thread);
                let id = self.real[real].cp_async_mbarrier_arrive(warp, lane, addr, place, &mut self.out);
                self.running.push(Running { block, mbarrier: addr, id, numbers, load: false });
                pairs
            }
            Step::Load { warp, lane, dst, src, mbarrier } => {
                let (addr, thread) = (MBARRIERS[mbarrier], (block, warp, lane));
                let src = (MemSpace::Global, G + src);
                let dst = (MemSpace::Shared, dst);
                let copy = |touch| Touch { actor: Actor::Transaction, proxy: true, ..touch };
                let mut touches = self.object(&[thread], addr, true);
                touches.push(copy(self.touch(thread, src.0, src.1, 32, false)));
                touches.push(copy(self.touch(thread, dst.0, dst.1, 32, true)));
                let init = self.model.unfenced_init(thread, addr);
                if line.careful && init.is_some() {
                    return Vec::new();
                }
                let Some(mut pairs) = self.check(line, &touches) else { return Vec::new() };
                pairs.extend(init);
                let numbers = vec![self.last - 1, self.last];
                let bulk = Bulk { warp, lane, dst, src, bytes: 32, reduce: false, place };
                let id = self.real[real].bulk_issue(&bulk, BulkCompletion::Mbarrier(addr), &mut self.out);
                self.running.push(Running { block, mbarrier: addr, id, numbers, load: true });
                pairs
            }
            Step::Store { warp, lane, dst, src, reduce } => {
                let thread = (block, warp, lane);
                let src = (MemSpace::Shared, src);
                let dst = (MemSpace::Global, G + dst);
                let copy = |touch| Touch { actor: Actor::Group, proxy: true, ..touch };
                let write = copy(self.touch(thread, dst.0, dst.1, 32, true));
                let write = Touch { strong: reduce.then_some(Scope::Gpu), ..write };
                let touches = [copy(self.touch(thread, src.0, src.1, 32, false)), write];
                let Some(pairs) = self.check(line, &touches) else { return Vec::new() };
                self.model.issued(thread, true, self.last - 1, true);
                self.model.issued(thread, true, self.last, false);
                let bulk = Bulk { warp, lane, dst, src, bytes: 32, reduce, place };
                self.real[real].bulk_issue(&bulk, BulkCompletion::Group, &mut self.out);
                pairs
            }
            Step::BulkCommit { warp, mask } => {
                Self::threads(block, warp, mask).into_iter().for_each(|thread| self.model.commit(thread, true));
                self.real[real].bulk_commit(warp, mask);
                Vec::new()
            }
            Step::BulkWait { warp, mask, groups, read } => {
                for thread in Self::threads(block, warp, mask) {
                    self.model.wait(thread, true, Some(groups as usize), read);
                }
                self.real[real].bulk_wait(warp, mask, groups, read);
                Vec::new()
            }
            Step::End => {
                if !self.running.is_empty() {
                    let op = self.running.remove(0);
                    let real = &mut self.real[op.block as usize];
                    if op.load {
                        self.model.landed(op.block, op.mbarrier, &op.numbers);
                        real.bulk_landed(op.id);
                    } else {
                        self.model.copies_arrived(op.block, op.mbarrier, &op.numbers);
                        real.cp_async_arrived(op.id);
                    }
                }
                Vec::new()
            }
        }
    }
}

/// Plays a script up to its first conflict and holds the two verdicts against each other.
fn compare(script: &[Line]) -> Result<(), TestCaseError> {
    let mut both = Both::new();
    for (i, line) in script.iter().enumerate() {
        let pairs = both.play(line);
        prop_assert_eq!(both.out.is_empty(), pairs.is_empty(), "line {}: {:?}, expected {:?}", i, both.out, pairs);
        for conflict in &both.out {
            let found = Pair {
                class: conflict.class,
                lane: conflict.lane,
                addr: conflict.addr,
                other: (conflict.other.block, conflict.other.warp, conflict.other.lane),
                place: conflict.other.place,
            };
            prop_assert!(pairs.contains(&found), "line {}: {:?} is none of {:?}", i, found, pairs);
        }
        if !pairs.is_empty() {
            break;
        }
    }
    Ok(())
}

proptest! {
    // PROPTEST_CASES asks for more.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(4000),
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn agrees_with_the_plain_model_on_all_sorts(script in script(ALL_SORTS)) {
        compare(&script)?;
    }

    #[test]
    fn agrees_with_the_plain_model_on_flags(script in script(FLAGS_ONLY)) {
        compare(&script)?;
    }

    #[test]
    fn agrees_with_the_plain_model_on_warps(script in script(WARPS_ONLY)) {
        compare(&script)?;
    }

    #[test]
    fn agrees_with_the_plain_model_on_copies(script in script(COPIES_ONLY)) {
        compare(&script)?;
    }
}
