//! Execution of decoded entries.
//!
//! * [`lower`] turns the checked form into [`program`]: slots for operands, lane functions ([`alu`], [`alu_float`], [`scalar`]) for
//!   arithmetic, addresses for variables.
//! * [`launch`] is what the blocks of a launch share, [`block`] one thread block with its schedule, [`warp`] one warp.
//! * [`run`] is the interpreter; [`complex`] and the modules named after instruction families hold what is not plain
//!   register arithmetic.
//! * [`poison`] follows bits that nothing wrote, [`cluster`] joins the blocks of a cluster.

// Lanes are numbers here: they index several arrays and masks at once.
#![allow(clippy::needless_range_loop)]

mod access;
mod alu;
mod alu_float;
mod async_copy;
mod atomic;
mod barrier;
mod block;
mod cluster;
mod complex;
mod count;
mod exchange;
mod fast;
mod grid;
mod lanes;
mod launch;
mod load_store;
mod lower;
mod matrix;
mod mbarrier;
mod poison;
mod program;
mod rng;
mod run;
mod scalar;
mod special;
mod visit;
mod warp;

pub(crate) use cluster::{Clusters, MAX_BLOCKS as MAX_CLUSTER_BLOCKS, unsupported as unsupported_in_cluster};
pub(crate) use grid::{Sums, run_block, run_clusters, run_resident};
pub(crate) use launch::{Findings, Launch, Written};
pub(crate) use lower::{ModuleLayout, lower};
pub(crate) use program::Program;
pub(crate) use rng::Rng;
