//! Who learns that a layer has written its cache rows of a step.

use reference::ops::{Ops, OpsError};

use super::cache::Caches;

/// A look at the caches behind every layer, the draft layer included.
pub trait LayerSink<O: Ops> {
    /// Layer `layer` has written everything that this step writes into its buffers.
    ///
    /// # Errors
    /// Whatever ends the step.
    fn layer_done(&mut self, ops: &O, caches: &Caches<O::Buffer>, layer: usize) -> Result<(), OpsError>;
}

/// Nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSink;

impl<O: Ops> LayerSink<O> for NoSink {
    fn layer_done(&mut self, _: &O, _: &Caches<O::Buffer>, _: usize) -> Result<(), OpsError> {
        Ok(())
    }
}
