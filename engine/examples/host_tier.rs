//! How fast pages go to host memory and back, beside a plain copy of as many bytes in the same run.
//! `cargo run --release -p engine --example host_tier`
//!
//! Four layers of V4-Flash with fp8 rows and keys, on the host device: "cache" and slots are both ordinary memory, and the rank's
//! thread and the copy engine share this machine's cores with whatever else runs. Ratios mean more than rates.

use engine::config::ModelConfig;
use engine::geometry::{CacheGeometry, CacheShape};
use engine::handover::{PageMove, PageRun};
use engine::host_cache::{HostLoad, HostOrders, HostSave, HostSizes};
use engine::host_tier::{HostTier, HostTierConfig};
use engine::ids::Generation;
use engine::model::cache::Caches;
use engine::pools::PoolSizes;
use kernel_bindings::host::HostOps;
use reference::ops::{IndexKFormat, KvFormat, Ops};
use std::error::Error;
use std::time::Instant;
use transfer::exchange::{CopyId, CopySeen};
use transfer::ids::{Class, Unit};

const COMPRESSED: u32 = 192;
const WINDOW: u32 = 24;
const RUNS: usize = 7;

type Buffer = <HostOps as Ops>::Buffer;

struct Rig {
    caches: Caches<Buffer>,
    tier: HostTier,
    next: u64,
}

impl Rig {
    fn exchange(&mut self, orders: &HostOrders) -> Result<(), Box<dyn Error>> {
        self.tier.begin(&HostOps, &mut self.caches, orders)?;
        Ok(self.tier.save(&HostOps, &self.caches, &orders.saves)?)
    }

    /// Exchanges until a copy is over.
    fn finish(&mut self, id: CopyId) -> Result<(), Box<dyn Error>> {
        loop {
            match self.tier.view().get(&id) {
                Some(CopySeen::Done) => return Ok(()),
                Some(CopySeen::Failed(reason)) => return Err(reason.to_string().into()),
                _ => self.exchange(&HostOrders::default())?,
            }
        }
    }

    fn moves(&self, first: u32) -> Vec<PageMove> {
        let class = |class, num: u32| {
            (0..num).map(move |i| PageMove { class: Class(class), cache: first * num + i, arena: i * 7 % num })
        };
        class(0, COMPRESSED).chain(class(1, WINDOW)).collect()
    }

    /// Seconds until the pages were read, and until they were stored.
    fn save(&mut self) -> Result<[f64; 2], Box<dyn Error>> {
        self.next += 1;
        let (id, pages) = (CopyId(self.next), self.moves(0));
        let runs = PageRun::of_moves(&pages, Generation(1)).into();
        let orders = HostOrders { saves: vec![HostSave { id, pages: pages.into(), runs }], ..HostOrders::default() };
        let start = Instant::now();
        self.exchange(&orders)?;
        let read = start.elapsed();
        self.finish(id)?;
        Ok([read.as_secs_f64(), start.elapsed().as_secs_f64()])
    }

    /// Seconds until the first layer could be read, and until everything was in the cache.
    fn load(&mut self) -> Result<[f64; 2], Box<dyn Error>> {
        self.next += 1;
        let id = CopyId(self.next);
        let load = HostLoad { id, pages: self.moves(1).into(), generation: Generation(self.next) };
        let start = Instant::now();
        self.exchange(&HostOrders { loads: vec![load], ..HostOrders::default() })?;
        self.tier.await_unit(&HostOps, &mut self.caches, Unit(0), &[id])?;
        let first = start.elapsed();
        (1..self.caches.gate().num_units())
            .try_for_each(|unit| self.tier.await_unit(&HostOps, &mut self.caches, Unit(unit), &[id]))?;
        Ok([first.as_secs_f64(), start.elapsed().as_secs_f64()])
    }
}

/// The median of each column.
fn medians(mut run: impl FnMut() -> Result<[f64; 2], Box<dyn Error>>) -> Result<[f64; 2], Box<dyn Error>> {
    let runs = (0..RUNS).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
    Ok([0, 1].map(|column| {
        let mut times: Vec<f64> = runs.iter().map(|run| run[column]).collect();
        times.sort_by(f64::total_cmp);
        times[RUNS / 2]
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = ModelConfig::preset("flash-4-layers").ok_or("no such preset")?;
    let shape = CacheShape::ring_per_request(config.window, false);
    let geometry = CacheGeometry::new(&config, shape, KvFormat::V4Fp8, IndexKFormat::Fp8, 0)?;
    let sizes = PoolSizes { compressed_pages: 2 * COMPRESSED, window_pages: 2 * WINDOW, request_slots: 1 };
    let slots = HostSizes { compressed_slots: COMPRESSED, window_slots: WINDOW };
    let of = |class, num| geometry_bytes(&geometry, class) * u64::from(num);
    let bytes = of(0, COMPRESSED) + of(1, WINDOW);

    let (mut plain, source) = (vec![1u8; bytes as usize], vec![7u8; bytes as usize]);
    let memcpy = medians(|| {
        let start = Instant::now();
        std::hint::black_box(&mut plain).copy_from_slice(std::hint::black_box(&source));
        Ok([start.elapsed().as_secs_f64(); 2])
    })?[0];
    let rate = |seconds: f64| format!("{:5.2} GB/s ({:4.2} x)", bytes as f64 / seconds / 1e9, memcpy / seconds);
    println!(
        "{:.0} MiB in {COMPRESSED} compressed and {WINDOW} window pages, median of {RUNS}",
        bytes as f64 / 1048576.0
    );
    println!("memcpy               {}", rate(memcpy));
    for verify in [false, true] {
        let tier = HostTier::new(&geometry, &HostTierConfig { verify, ..HostTierConfig::new(slots) })?;
        let mut rig = Rig { caches: Caches::new(&HostOps, &geometry, sizes)?, tier, next: 0 };
        let computed = PageRun::claim(&PageRun::of_moves(&rig.moves(0), Generation(1)), rig.caches.gate())?;
        for unit in (0..rig.caches.gate().num_units()).map(Unit) {
            computed.iter().try_for_each(|pages| rig.caches.gate().publish(unit, pages))?;
        }
        rig.save()?;
        rig.load()?;
        let [read, stored] = medians(|| rig.save())?;
        let [first, loaded] = medians(|| rig.load())?;
        let name = if verify { "with sums" } else { "without sums" };
        println!("save, {name:13}  {}, answered after {:.1} ms", rate(stored), read * 1e3);
        println!("load, {name:13}  {}, first layer after {:.1} ms", rate(loaded), first * 1e3);
    }
    Ok(())
}

/// Bytes of one page number of a class, in all layers.
fn geometry_bytes(geometry: &CacheGeometry, class: u8) -> u64 {
    let one = PoolSizes { compressed_pages: 1, window_pages: 1, request_slots: 1 };
    let specs = geometry.buffers(one);
    let of_class = specs.iter().filter(|spec| engine::handover::class(spec.pool) == Class(class));
    of_class
        .map(|spec| {
            let (rows, row) = geometry.rows(spec.buffer);
            u64::from(rows) * row
        })
        .sum()
}
