//! The blocks of a launch: one to its end, or several in turns; and the sums of what they counted.

use super::block::{Block, Turn};
use super::launch::Launch;
use super::program::Program;
use super::rng::Rng;
use crate::counters::{CounterMode, Counters, Traffic, mma_flops};
use crate::ir::Entry;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Counters of the blocks that have ended.
pub(crate) struct Sums {
    per_instruction: Vec<Traffic>,
    barriers: u64,
    mbarrier_phases: u64,
}

impl Sums {
    pub(crate) fn new(instructions: usize) -> Self {
        Self { per_instruction: vec![Traffic::default(); instructions], barriers: 0, mbarrier_phases: 0 }
    }

    fn take(&mut self, block: &Block<'_, '_>) {
        let Some(counters) = &block.counters else { return };
        for (sum, own) in self.per_instruction.iter_mut().zip(&counters.per_instruction) {
            sum.add(own);
        }
        self.barriers += counters.barriers;
        self.mbarrier_phases += counters.mbarrier_phases;
    }

    pub(crate) fn counters(&self, program: &Program, entry: &Entry, mode: CounterMode) -> Counters {
        let mut out =
            Counters { barriers: self.barriers, mbarrier_phases: self.mbarrier_phases, ..Counters::default() };
        for (pc, traffic) in self.per_instruction.iter().enumerate() {
            if traffic.warp_instructions == 0 {
                continue;
            }
            out.total.add(traffic);
            *out.by_class.entry(program.code[pc].class.name()).or_default() += traffic.warp_instructions;
            if let Some((name, shape)) = program.matrix_name(pc) {
                *out.mma.entry(name).or_default() += traffic.warp_instructions;
                out.mma_flops += traffic.warp_instructions * mma_flops(shape);
            }
            if mode == CounterMode::PerLine {
                out.by_line.entry(entry.code[pc].line).or_default().add(traffic);
            }
        }
        out
    }
}

/// Runs one block to its end.
pub(crate) fn run_block(launch: &Launch<'_>, index: u32, sums: &Mutex<Sums>) {
    if launch.is_stopped() {
        return;
    }
    let mut block = Block::new(launch, index);
    block.run();
    finish(block, sums);
}

fn finish(mut block: Block<'_, '_>, sums: &Mutex<Sums>) {
    block.account();
    if block.counters.is_some() {
        sums.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take(&block);
    }
}

/// Clusters one after the other, in the order of the seed; the blocks of one take turns.
pub(crate) fn run_clusters(launch: &Launch<'_>, sums: &Mutex<Sums>) {
    let Some(clusters) = &launch.clusters else { return };
    let mut order: Vec<u32> = (0..clusters.count()).collect();
    Rng::new(launch.config.seed, 0).shuffle(&mut order);
    for cluster in order {
        let members: Vec<u32> = (0..clusters.size()).map(|rank| clusters.member(cluster, rank)).collect();
        run_resident(launch, &members, sums);
        if launch.is_stopped() {
            break;
        }
    }
}

/// These blocks are resident and take turns, by the seed.
pub(crate) fn run_resident(launch: &Launch<'_>, blocks: &[u32], sums: &Mutex<Sums>) {
    let stream = blocks.first().map_or(0, |first| u64::from(*first));
    let mut rng = Rng::new(launch.config.seed, u64::MAX - stream);
    let mut running: Vec<Block<'_, '_>> = blocks.iter().map(|index| Block::new(launch, *index)).collect();
    let mut idle = 0;
    let mut activity = launch.activity.load(Ordering::Relaxed);
    while !running.is_empty() {
        let i = rng.below(running.len());
        match running[i].turn() {
            Turn::Done => {
                finish(running.swap_remove(i), sums);
                idle = 0;
            }
            Turn::Progress => idle = 0,
            Turn::Idle => idle += 1,
        }
        let now = launch.activity.load(Ordering::Relaxed);
        if now != activity {
            activity = now;
            idle = 0;
        }
        // Everybody has had many chances, and nothing anywhere has changed.
        if idle > 64 * running.len() && running.iter().all(Block::is_stuck) {
            for block in &mut running {
                block.deadlock();
            }
            break;
        }
    }
    for block in running {
        finish(block, sums);
    }
}
