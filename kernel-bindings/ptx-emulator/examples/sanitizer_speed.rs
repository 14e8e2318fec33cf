//! What a check costs: nanoseconds per warp access in the usual situations.
//!
//! `cargo run --release -p ptx-emulator --example sanitizer_speed`

use ptx_emulator::check::{Access, AccessKind, BlockCheck, Conflict, LaunchCheck, MemSpace};
use ptx_emulator::ir::{Ordering, Scope};
use std::sync::Arc;
use std::time::Instant;

type Row = (&'static str, fn(&mut Bench));

fn main() {
    let rows: [Row; 10] = [
        ("shared 16 B per lane, read again by the same warp", |b| b.shared(16, 16, 1, false)),
        ("shared 16 B per lane, read by 8 warps in turn", |b| b.shared(16, 16, 8, false)),
        ("shared 4 B per lane, read again", |b| b.shared(4, 4, 1, false)),
        ("shared 2 B per lane, read again", |b| b.shared(2, 2, 1, false)),
        ("shared 4 B, one address for all lanes", |b| b.shared(4, 0, 1, false)),
        ("shared 16 B per lane, written again", |b| b.shared(16, 16, 1, true)),
        ("shared 16 B per lane, written, barrier, read by 8 warps, barrier (per access)", Bench::tiles),
        ("global 16 B per lane, new addresses", |b| b.global(16, 512)),
        ("global 4 B per lane, new addresses", |b| b.global(4, 128)),
        ("global 4 B, a page per lane", Bench::scattered),
    ];
    for (name, run) in rows {
        let mut bench = Bench::new();
        // The least of several runs: others use the machine too.
        let mut least = f64::INFINITY;
        for _ in 0..10 {
            let (start, before) = (Instant::now(), bench.accesses);
            run(&mut bench);
            least = least.min(start.elapsed().as_nanos() as f64 / (bench.accesses - before) as f64);
        }
        println!("{least:8.0} ns  {name}");
        assert!(bench.out.is_empty(), "{:?}", bench.out);
    }
}

struct Bench {
    block: BlockCheck,
    out: Vec<Conflict>,
    accesses: u64,
    next: u64,
}

impl Bench {
    fn new() -> Self {
        let block = BlockCheck::new(Arc::new(LaunchCheck::new()), 0, 0, 256, 65536);
        Bench { block, out: Vec::new(), accesses: 0, next: 1 << 40 }
    }

    fn access(&mut self, space: MemSpace, warp: u32, addr: &[u64; 32], bytes: u32, write: bool, place: u32) {
        let kind = if write { AccessKind::Write } else { AccessKind::Read };
        let (mask, ordering, scope) = (u32::MAX, Ordering::Weak, Scope::Cta);
        let access = Access { space, warp, mask, addr, bytes, kind, ordering, scope, place };
        self.block.access(&access, &mut self.out);
        self.accesses += 1;
    }

    fn shared(&mut self, bytes: u32, stride: u64, warps: u32, write: bool) {
        for i in 0..2_000u64 {
            let base = i % 16 * 1024;
            let addr = std::array::from_fn(|lane| base + lane as u64 * stride);
            self.access(MemSpace::Shared, i as u32 % warps, &addr, bytes, write, 1);
        }
    }

    fn barrier(&mut self) {
        (0..8).for_each(|warp| self.block.barrier_arrive(0, warp, u32::MAX, true));
        self.block.barrier_complete(0);
    }

    fn tiles(&mut self) {
        for _ in 0..50 {
            for row in 0..8 {
                let addr = std::array::from_fn(|lane| row * 512 + lane as u64 * 16);
                self.access(MemSpace::Shared, row as u32, &addr, 16, true, 1);
            }
            self.barrier();
            for warp in 0..8 {
                for row in 0..8 {
                    let addr = std::array::from_fn(|lane| row * 512 + lane as u64 * 16);
                    self.access(MemSpace::Shared, warp, &addr, 16, false, 2);
                }
            }
            self.barrier();
        }
    }

    fn global(&mut self, bytes: u32, step: u64) {
        for _ in 0..2_000 {
            let base = self.next;
            let addr = std::array::from_fn(|lane| base + lane as u64 * u64::from(bytes));
            self.access(MemSpace::Global, 0, &addr, bytes, false, 3);
            self.next += step;
        }
    }

    fn scattered(&mut self) {
        for i in 0..2_000u64 {
            let addr = std::array::from_fn(|lane| (1 << 40) + (lane as u64 * 4096 * 37) + i % 500 * 4);
            self.access(MemSpace::Global, 0, &addr, 4, false, 4);
        }
    }
}
