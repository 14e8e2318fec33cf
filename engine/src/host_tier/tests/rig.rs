//! Caches with a tier, and what a scheduler would order.

use crate::geometry::{BufferSpec, CacheGeometry, PoolName};
use crate::handover::{self, PageMove, PageRun};
use crate::host_cache::{HostLoad, HostOrders, HostSave};
use crate::host_tier::{HostTier, HostTierConfig, MemorySlots, SlotStore};
use crate::ids::Generation;
use crate::model::cache::Caches;
use crate::pools::PoolSizes;
use kernel_bindings::host::HostOps;
use reference::ops::Ops;
use reference::rng::Rng;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use transfer::exchange::{CopyId, CopySeen};
use transfer::ids::{Class, Unit};
use transfer::layout::PagesByClass;

const SIZES: PoolSizes = PoolSizes { compressed_pages: 6, window_pages: 5, request_slots: 1 };
const LONG: Duration = Duration::from_secs(60);

/// Pages by class; the pairs `(class, page)` when flattened.
pub(super) fn of(compressed: &[u32], window: &[u32]) -> [Vec<(Class, u32)>; 2] {
    let pages = |class, pages: &[u32]| pages.iter().map(|&page| (Class(class), page)).collect();
    [pages(0, compressed), pages(1, window)]
}

pub(super) type Places = [Vec<(Class, u32)>; 2];

fn lists(places: &Places) -> PagesByClass {
    places.iter().map(|places| places.iter().map(|(_, page)| *page).collect()).collect()
}

pub(super) fn seen_of(tier: &mut HostTier, id: u64) -> Option<CopySeen> {
    tier.view().remove(&CopyId(id))
}

pub(super) struct Rig {
    pub(super) geometry: CacheGeometry,
    pub(super) caches: Caches<<HostOps as Ops>::Buffer>,
    pub(super) tier: HostTier,
    rng: Rng,
}

impl Rig {
    pub(super) fn new(geometry: &CacheGeometry, config: &HostTierConfig) -> Self {
        Self::with(geometry, HostTier::new(geometry, config).expect("starts"))
    }

    /// A tier whose slots are behind a valve.
    pub(super) fn behind(geometry: &CacheGeometry, config: &HostTierConfig) -> (Self, Arc<Valve>) {
        let valve = Arc::new(Valve::default());
        let slots = MemorySlots::new(config.layout(geometry).expect("small")).expect("small");
        let store = ValvedSlots { slots, valve: Arc::clone(&valve) };
        (Self::with(geometry, HostTier::on(geometry, config, Box::new(store)).expect("starts")), valve)
    }

    pub(super) fn with(geometry: &CacheGeometry, tier: HostTier) -> Self {
        let caches = Caches::new(&HostOps, geometry, SIZES).expect("fits");
        let mut rig = Self { geometry: geometry.clone(), caches, tier, rng: Rng::named(9, "pages") };
        for spec in geometry.buffers(SIZES) {
            let bytes = rig.random(spec.bytes as usize);
            rig.upload(&spec, 0, &bytes);
        }
        rig
    }

    fn random(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.rng.bits().to_le_bytes()).take(len).collect()
    }

    fn upload(&mut self, spec: &BufferSpec, at: u64, bytes: &[u8]) {
        let buffer = self.caches.layer_mut(spec.layer).and_then(|layer| layer.buffer_mut(spec.buffer)).expect("listed");
        HostOps.upload(buffer, at, bytes).expect("in range");
    }

    fn units(&self) -> impl Iterator<Item = Unit> + use<> {
        (0..self.caches.gate().num_units()).map(Unit)
    }

    /// What a step would do: pages claimed, written and published.
    pub(super) fn compute(&mut self, generation: u64, places: &Places) {
        let pending = PageRun::claim(&runs(generation, places), self.caches.gate()).expect("free pages");
        for spec in self.geometry.buffers(SIZES) {
            let class = handover::class(spec.pool).0 as usize;
            for &(_, page) in places.get(class).into_iter().flatten() {
                let bytes = self.random(spec.pages.page_stride_bytes as usize);
                self.upload(&spec, u64::from(page) * spec.pages.page_stride_bytes, &bytes);
            }
        }
        for unit in self.units() {
            pending.iter().for_each(|pages| self.caches.gate().publish(unit, pages).expect("claimed"));
        }
    }

    pub(super) fn save(&self, id: u64, generation: u64, pages: &Places, slots: &Places) -> HostSave {
        let moves = PageMove::pairs(&lists(pages), &lists(slots)).into();
        HostSave { id: CopyId(id), pages: moves, runs: runs(generation, pages).into() }
    }

    pub(super) fn load(&self, id: u64, generation: u64, slots: &Places, pages: &Places) -> HostLoad {
        let moves = PageMove::pairs(&lists(pages), &lists(slots)).into();
        HostLoad { id: CopyId(id), pages: moves, generation: Generation(generation) }
    }

    /// An exchange without a step.
    pub(super) fn try_order(&mut self, orders: &HostOrders) -> Result<(), String> {
        let Self { caches, tier, .. } = self;
        let done = tier.begin(&HostOps, caches, orders).and_then(|()| tier.save(&HostOps, caches, &orders.saves));
        done.map_err(|error| error.to_string())
    }

    pub(super) fn order(&mut self, orders: &HostOrders) {
        self.try_order(orders).expect("copies begin");
    }

    /// Exchanges until something holds.
    pub(super) fn exchange_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < LONG, "it never comes to that: {:?}", self.tier.view());
            std::thread::yield_now();
            self.order(&HostOrders::default());
        }
    }

    /// Exchanges until a copy is over; how it ended.
    pub(super) fn until_over(&mut self, id: u64) -> CopySeen {
        let seen = |rig: &mut Self| seen_of(&mut rig.tier, id).expect("not dropped");
        self.exchange_until(|rig| matches!(seen(rig), CopySeen::Done | CopySeen::Failed(_)));
        seen(self)
    }

    /// Whether every unit of the pages may be read; else what the gate says.
    pub(super) fn readable(&self, generation: u64, places: &Places) -> Result<(), String> {
        self.units().try_for_each(|unit| self.unit_readable(unit, generation, places))
    }

    pub(super) fn unit_readable(&self, unit: Unit, generation: u64, places: &Places) -> Result<(), String> {
        let runs = runs(generation, places);
        let runs = runs.iter().map(PageRun::tagged).collect::<Result<Vec<_>, _>>().expect("a generation");
        self.caches.gate().readable(unit, &runs).map(drop).map_err(|error| error.to_string())
    }

    /// Buffers of a pool, layer by layer.
    pub(super) fn num_buffers(&self, pool: PoolName) -> usize {
        self.geometry.buffers(SIZES).iter().filter(|spec| spec.pool == pool).count()
    }

    /// Every buffer, as bytes.
    pub(super) fn contents(&self) -> Vec<Vec<u8>> {
        let read = |spec: &BufferSpec| {
            let readable = self.caches.gate().readable(Unit(spec.layer), &[]).expect("a layer");
            let layer = self.caches.layer(spec.layer).expect("a layer");
            let mut bytes = vec![0; spec.bytes as usize];
            HostOps.download(layer.buffer(spec.buffer, &readable).expect("listed"), 0, &mut bytes).expect("in range");
            bytes
        };
        self.geometry.buffers(SIZES).iter().map(read).collect()
    }

    /// Bytes of rows of one page, buffer by buffer.
    pub(super) fn page(&self, contents: &[Vec<u8>], (class, page): (Class, u32)) -> Vec<Vec<u8>> {
        let specs = self.geometry.buffers(SIZES);
        let of_class = specs.iter().zip(contents).filter(|(spec, _)| handover::class(spec.pool) == class);
        of_class
            .map(|(spec, bytes)| {
                let (rows, row) = self.geometry.rows(spec.buffer);
                let at = page as usize * spec.pages.page_stride_bytes as usize;
                bytes[at..at + rows as usize * row as usize].to_vec()
            })
            .collect()
    }

    /// The rows of a page of `from` in the place of another page of `to`.
    pub(super) fn copy_page(&self, from: &[Vec<u8>], to: &mut [Vec<u8>], page: (Class, u32), place: (Class, u32)) {
        assert_eq!(page.0, place.0);
        let rows = self.page(from, page);
        let specs = self.geometry.buffers(SIZES);
        let of_class = specs.iter().zip(to).filter(|(spec, _)| handover::class(spec.pool) == page.0);
        for ((spec, bytes), rows) in of_class.zip(rows) {
            let at = place.1 as usize * spec.pages.page_stride_bytes as usize;
            bytes[at..at + rows.len()].copy_from_slice(&rows);
        }
    }
}

fn runs(generation: u64, places: &Places) -> Vec<PageRun> {
    let mut runs = Vec::new();
    for &(class, page) in places.iter().flatten() {
        PageRun::push(&mut runs, class, page, Generation(generation));
    }
    runs
}

/// Holds slots up, or makes them fail.
#[derive(Debug, Default)]
pub(super) struct Valve {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    failing: bool,
    /// Whether somebody waits for it to open.
    waiting: bool,
    passed: usize,
}

impl Valve {
    pub(super) fn close(&self) {
        self.state.lock().expect("no panic").closed = true;
    }

    pub(super) fn open(&self) {
        self.state.lock().expect("no panic").closed = false;
        self.news.notify_all();
    }

    pub(super) fn fail(&self) {
        self.state.lock().expect("no panic").failing = true;
    }

    /// Pages that went through.
    pub(super) fn passed(&self) -> usize {
        self.state.lock().expect("no panic").passed
    }

    /// Until somebody waits behind it.
    pub(super) fn reached(&self) {
        let state = self.state.lock().expect("no panic");
        let (state, _) = self.news.wait_timeout_while(state, LONG, |state| !state.waiting).expect("no panic");
        assert!(state.waiting, "nobody comes");
    }

    fn pass(&self) -> Result<(), String> {
        let mut state = self.state.lock().expect("no panic");
        if state.closed {
            state.waiting = true;
            self.news.notify_all();
        }
        let (mut state, end) = self.news.wait_timeout_while(state, LONG, |state| state.closed).expect("no panic");
        state.waiting = false;
        state.passed += 1;
        match end.timed_out() || state.failing {
            true => Err("the store is broken".into()),
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
struct ValvedSlots {
    slots: MemorySlots,
    valve: Arc<Valve>,
}

impl SlotStore for ValvedSlots {
    fn write(&mut self, item: usize, slot: u32, page: &[u8]) -> Result<(), String> {
        self.valve.pass()?;
        self.slots.write(item, slot, page)
    }

    fn read(&mut self, item: usize, slot: u32, page: &mut [u8]) -> Result<(), String> {
        self.valve.pass()?;
        self.slots.read(item, slot, page)
    }
}
