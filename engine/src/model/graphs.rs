//! Decode steps as graphs: the operations of a step are recorded once per size and replayed from then on.
//!
//! A step of decode entries alone is padded to a [`DecodeSize`], which fixes every size that operations are called with. What
//! changes from step to step (ids, positions, slots, lengths, tables) stands in arrays that are uploaded before the replay and
//! whose buffers are never replaced; the other buffers of a step live as long as the model. The first step of a size runs
//! eagerly, so that everything that is kept beside the operands is there; the second is recorded and replayed.

use reference::ops::{Ops, OpsError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::mtp::DraftArrays;
use super::workspace::StepArrays;
use crate::batch::{Batch, DecodeMost, DecodeSize};

/// Graphs that a model keeps; the one that was not used for the longest time goes first.
const MOST: usize = 64;

/// What the graphs of a model have done, to look at from any thread.
#[derive(Debug, Default)]
pub struct GraphCounters {
    recorded: AtomicU64,
    replayed: AtomicU64,
    pieces: AtomicU64,
    first: AtomicU64,
    refusal: Mutex<Option<String>>,
}

impl GraphCounters {
    /// Graphs recorded.
    pub fn recorded(&self) -> u64 {
        self.recorded.load(Ordering::Relaxed)
    }

    /// Graphs replayed.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// Launches inside the replayed graphs, which an eager step hands to the device one by one.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// Padded steps that ran eagerly, the first of their size.
    pub fn first_steps(&self) -> u64 {
        self.first.load(Ordering::Relaxed)
    }

    /// Why steps are no longer recorded, if recording has failed.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Which part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum StepPart {
    Forward,
    Draft,
}

/// A size that has run eagerly, and its graph from the second time on.
#[derive(Debug)]
struct Known<G> {
    graph: Option<G>,
    used: u64,
}

/// The graphs of a model.
#[derive(Debug)]
pub(super) struct Graphs<O: Ops> {
    on: bool,
    most: DecodeMost,
    arrays: Option<DecodeArrays<O::Buffer>>,
    known: HashMap<(StepPart, DecodeSize), Known<O::Graph>>,
    clock: u64,
    counters: Arc<GraphCounters>,
}

/// Arrays of padded steps, as large as the largest needs.
#[derive(Debug)]
pub(super) struct DecodeArrays<B> {
    pub(super) step: StepArrays<B>,
    pub(super) draft: DraftArrays<B>,
}

/// A batch in its graph's size.
#[derive(Debug)]
pub(super) struct Padded {
    pub(super) size: DecodeSize,
    pub(super) batch: Batch,
}

impl<O: Ops> Graphs<O> {
    /// Graphs of steps up to `most`; `on` where operations can be recorded at all.
    pub(super) fn new(on: bool, most: DecodeMost) -> Self {
        Self { on, most, arrays: None, known: HashMap::new(), clock: 0, counters: Arc::default() }
    }

    pub(super) fn turn_off(&mut self) {
        self.on = false;
    }

    pub(super) fn counters(&self) -> Arc<GraphCounters> {
        self.counters.clone()
    }

    /// The batch in the size of a graph, unless it runs eagerly.
    pub(super) fn padded(&self, batch: &Batch) -> Option<Padded> {
        let size = DecodeSize::of(batch, &self.most).filter(|_| self.on)?;
        Some(Padded { size, batch: batch.padded(size) })
    }

    /// Uploads a padded batch into the arrays of its part; the first time makes them.
    pub(super) fn put(&mut self, ops: &O, batch: &Batch) -> Result<(), OpsError> {
        if self.arrays.is_none() {
            let mut arrays = DecodeArrays { step: StepArrays::new(), draft: DraftArrays::new() };
            // Only the lengths count here.
            arrays.step.put(ops, &batch.padded(DecodeSize::largest(&batch.shape, &self.most)))?;
            arrays.step.fix();
            self.arrays = Some(arrays);
        }
        self.arrays.as_mut().expect("made above").step.put(ops, batch)
    }

    /// Uploads the tokens that the draft layer reads, one per token of a padded batch.
    pub(super) fn put_draft(&mut self, ops: &O, hc: u32, next_ids: &[i32]) -> Result<(), OpsError> {
        let draft = &mut self.arrays.as_mut().expect("a forward went before").draft;
        if !draft.is_fixed() {
            draft.put(ops, hc, &vec![0; self.most.tokens as usize])?;
            draft.fix();
        }
        draft.put(ops, hc, next_ids)
    }

    /// Runs `work` on the arrays: eagerly the first time of a size, recorded the second, replayed from then on. A recording that
    /// fails has run nothing: the step goes on eagerly, and so does every later one.
    pub(super) fn run(
        &mut self,
        ops: &O,
        part: StepPart,
        size: DecodeSize,
        mut work: impl FnMut(&DecodeArrays<O::Buffer>) -> Result<(), OpsError>,
    ) -> Result<(), OpsError> {
        let Self { on, arrays, known, clock, counters, .. } = self;
        let arrays = arrays.as_ref().expect("uploaded before");
        if !*on {
            return work(arrays);
        }
        *clock += 1;
        let Some(entry) = known.get_mut(&(part, size)) else {
            work(arrays)?;
            let oldest = known.iter().min_by_key(|(_, entry)| entry.used).map(|(&key, _)| key);
            if let Some(key) = oldest.filter(|_| known.len() >= MOST) {
                known.remove(&key);
            }
            known.insert((part, size), Known { graph: None, used: *clock });
            counters.first.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        entry.used = *clock;
        let graph = match &mut entry.graph {
            Some(graph) => graph,
            None => match ops.capture(|| work(arrays)) {
                Ok(graph) => {
                    counters.recorded.fetch_add(1, Ordering::Relaxed);
                    entry.graph.insert(graph)
                }
                Err(error) => {
                    *counters.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                    *on = false;
                    return work(arrays);
                }
            },
        };
        ops.replay(graph)?;
        counters.replayed.fetch_add(1, Ordering::Relaxed);
        counters.pieces.fetch_add(ops.recorded(graph), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel_bindings::emulated::{Emulated, EmulatedConfig};
    use kernel_bindings::ops::KernelOps;

    type Emulation = KernelOps<Emulated>;

    fn graphs() -> Graphs<Emulation> {
        let mut graphs = Graphs::new(true, DecodeMost { tokens: 64, context: 256 });
        graphs.arrays = Some(DecodeArrays { step: StepArrays::new(), draft: DraftArrays::new() });
        graphs
    }

    fn size(pages: u32) -> DecodeSize {
        DecodeSize { entries: 1, tokens_per_entry: 1, pages }
    }

    fn counts(counters: &GraphCounters) -> [u64; 3] {
        [counters.first_steps(), counters.recorded(), counters.replayed()]
    }

    #[test]
    fn eager_then_recorded_then_replayed() {
        let ops = KernelOps::new(Emulated::new(EmulatedConfig::fast()));
        let (mut graphs, mut calls) = (graphs(), 0);
        let counters = graphs.counters();
        let expected = [[1, 0, 0], [1, 1, 1], [1, 1, 2]];
        for (step, expected) in expected.into_iter().enumerate() {
            let work = |_: &_| {
                calls += 1;
                Ok(())
            };
            graphs.run(&ops, StepPart::Forward, size(1), work).expect("runs");
            assert_eq!((counts(&counters), calls), (expected, (step + 1).min(2)));
        }
        // The draft layer's part of the same size is another graph.
        graphs.run(&ops, StepPart::Draft, size(1), |_| Ok(())).expect("runs");
        assert_eq!(counts(&counters), [2, 1, 2]);
    }

    #[test]
    fn the_oldest_graph_makes_room() {
        let ops = KernelOps::new(Emulated::new(EmulatedConfig::fast()));
        let mut graphs = graphs();
        let counters = graphs.counters();
        let mut run = |pages| graphs.run(&ops, StepPart::Forward, size(pages), |_| Ok(())).expect("runs");
        let most = MOST as u32;
        (0..most).for_each(&mut run);
        run(0);
        assert_eq!(counts(&counters), [u64::from(most), 1, 1]);
        run(most);
        run(0);
        assert_eq!(counts(&counters), [u64::from(most) + 1, 1, 2], "size 1 has gone, size 0 was used since");
        run(1);
        assert_eq!(counts(&counters), [u64::from(most) + 2, 1, 2]);
        assert_eq!(graphs.known.len(), MOST);
    }

    /// The step that could not be recorded runs all the same, and only once.
    #[test]
    fn a_recording_that_fails_ends_recording() {
        let ops = KernelOps::new(Emulated::new(EmulatedConfig::fast()));
        let mut graphs = graphs();
        let counters = graphs.counters();
        let mut buffer = ops.alloc(1, "buffer").expect("fits");
        for step in 0..4 {
            graphs.run(&ops, StepPart::Forward, size(1), |_| ops.upload(&mut buffer, 0, &[step])).expect("runs");
            let mut byte = [9];
            ops.download(&buffer, 0, &mut byte).expect("there");
            assert_eq!(byte, [step]);
        }
        assert_eq!(counts(&counters), [1, 0, 0]);
        let refusal = counters.refusal().expect("said");
        assert!(refusal.contains("an upload inside a capture"), "{refusal}");
    }
}
