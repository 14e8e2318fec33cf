//! The ranks of a model on a device.

use super::ServingError;
use engine::checkpoint::Checkpoint;
use engine::collective::{CardRank, Collective};
use engine::geometry::CacheGeometry;
use engine::handover::RankParts;
use engine::model::cache::Caches;
use engine::model::{GraphCounters, Limits, Model, Numerics, Parts, RankShape, load};
use engine::pools::PoolSizes;
use engine::runner::{RunError, Runner};
use indicatif::ProgressBar;
use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::DeviceError;
use kernel_bindings::nccl::{NcclId, NcclRank};
use kernel_bindings::ops::KernelOps;
use reference::ops::{Ops, OpsError};
use std::sync::{Arc, OnceLock};
use transfer::fault::Faults;

/// What every rank is built from.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) numerics: Numerics,
    pub(super) geometry: CacheGeometry,
    pub(super) sizes: PoolSizes,
    pub(super) limits: Limits,
    pub(super) tp: u32,
    pub(super) mtp: bool,
    pub(super) graphs: bool,
    /// Of the gate.
    pub(super) faults: Arc<Faults>,
    /// Those of the first rank.
    pub(super) counters: Arc<OnceLock<Arc<GraphCounters>>>,
}

impl Plan {
    /// Starts the ranks; `open` gives each its operations and the other ranks, for which threads of this process are offered.
    pub(super) fn start<O: Ops + 'static>(
        &self,
        bar: &ProgressBar,
        parts: Vec<RankParts>,
        open: impl Fn(u32, Box<dyn Collective<O>>) -> Result<(O, Box<dyn Collective<O>>), OpsError> + Send + Sync + 'static,
    ) -> Result<Runner, RunError> {
        let (plan, bar) = (self.clone(), bar.clone());
        Runner::start_with_parts(self.tp, self.geometry.shape, parts, move |rank, threads| {
            let failed = |source: OpsError| RunError::Load(source.into());
            let (ops, collective) = open(rank, threads).map_err(failed)?;
            plan.model(ops, rank, collective, &bar)
        })
    }

    /// One card per rank; sums by NCCL where it is installed, through the host otherwise, which is said.
    pub(super) fn start_cards(&self, bar: &ProgressBar, parts: Vec<RankParts>) -> Result<Runner, ServingError> {
        // Absence is said before threads start.
        for rank in 0..self.tp {
            Cuda::open(rank as usize)?;
        }
        let group = match self.tp {
            1 => None,
            _ => NcclId::new().map_err(|error| eprintln!("sums over the ranks go through the host: {error}")).ok(),
        };
        let ranks = self.tp;
        let failed = |error: DeviceError| OpsError::Device { device: "cuda".into(), message: error.to_string() };
        let runner = self.start(bar, parts, move |rank, threads| {
            let card = Cuda::open(rank as usize).map_err(failed)?;
            let collective = match group {
                None => threads,
                Some(id) => Box::new(CardRank(NcclRank::join(&card, id, rank, ranks).map_err(failed)?)),
            };
            Ok((KernelOps::new(card), collective))
        });
        Ok(runner?)
    }

    fn model<O: Ops>(
        &self,
        ops: O,
        rank: u32,
        collective: Box<dyn Collective<O>>,
        bar: &ProgressBar,
    ) -> Result<Model<O>, RunError> {
        let failed = |source: OpsError| RunError::Load(source.into());
        let config = self.checkpoint.config().clone();
        let ranks = RankShape::new(&config, rank, self.tp)?;
        let done = |tensors: u64| {
            if rank == 0 {
                bar.inc(tensors);
            }
        };
        // Memory that is too small is known before a weight is read.
        let caches = Caches::new(&ops, &self.geometry, self.sizes).map_err(failed)?;
        let caches = caches.with_faults(self.sizes, Arc::clone(&self.faults));
        let weights = load(&ops, &self.checkpoint, &self.numerics, &ranks, &self.limits, self.mtp, &done)?;
        let (numerics, limits) = (self.numerics, self.limits);
        let parts = Parts { config, numerics, shape: ranks, limits, weights, caches, collective };
        let mut model = Model::new(ops, parts).map_err(failed)?;
        if !self.graphs {
            model.without_graphs();
        }
        if rank == 0 {
            self.counters.get_or_init(|| model.graph_counters());
        }
        Ok(model)
    }
}
