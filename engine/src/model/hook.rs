//! Who has something to do between the layers of a step.

use reference::ops::{Ops, OpsError};

use super::cache::Caches;

/// Called around every layer, the draft layer included.
pub trait LayerHook<O: Ops> {
    /// Layer `layer` is about to be read. The first one is announced before the step claims the pages that it writes.
    ///
    /// # Errors
    /// Whatever ends the step.
    fn layer_begins(&mut self, ops: &O, caches: &mut Caches<O::Buffer>, layer: usize) -> Result<(), OpsError>;

    /// Layer `layer` has written everything that this step writes into its buffers.
    ///
    /// # Errors
    /// Whatever ends the step.
    fn layer_done(&mut self, ops: &O, caches: &Caches<O::Buffer>, layer: usize) -> Result<(), OpsError>;
}

/// Nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHook;

impl<O: Ops> LayerHook<O> for NoHook {
    fn layer_begins(&mut self, _: &O, _: &mut Caches<O::Buffer>, _: usize) -> Result<(), OpsError> {
        Ok(())
    }

    fn layer_done(&mut self, _: &O, _: &Caches<O::Buffer>, _: usize) -> Result<(), OpsError> {
        Ok(())
    }
}
