//! DeepSeek-V4 over operations: weights of a rank, caches, one forward of a batch.

mod attention;
pub mod cache;
mod forward;
mod graphs;
mod hook;
mod load;
mod mtp;
mod numerics;
pub mod probe;
pub mod weights;
mod workspace;

pub use forward::{Model, Parts};
pub use graphs::GraphCounters;
pub use hook::{LayerHook, NoHook};
pub use load::{LoadError, RankBytes, load};
pub use numerics::{Numerics, WeightStorage};
pub use workspace::{Limits, RankShape};
