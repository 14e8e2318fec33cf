//! A capture on a card: the stream records into a CUDA graph, which is instantiated once and launched as a whole.

use crate::device::{not_captured, spoilt};
use cudarc::driver::{CudaGraph as Instantiated, CudaSlice, CudaStream, sys};
use std::sync::{Arc, Mutex, MutexGuard};

/// What happened in the capture under way.
#[derive(Debug, Default)]
pub(super) struct Capture {
    /// Launches, products and fills.
    pub(super) recorded: u64,
    /// The first refusal.
    spoilt: Option<String>,
    /// Buffers that were dropped. The stream cannot free them while it records.
    dropped: Vec<CudaSlice<u8>>,
}

/// Whether there is a capture under way. Shared with the buffers, which may be dropped in it.
pub(super) type Captures = Arc<Mutex<Option<Capture>>>;

/// A panic elsewhere leaves nothing half done behind the lock.
pub(super) fn lock(captures: &Captures) -> MutexGuard<'_, Option<Capture>> {
    captures.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Capture {
    /// Notes a refusal and gives it back.
    pub(super) fn spoil(&mut self, what: &str) -> String {
        self.spoilt.get_or_insert_with(|| what.to_owned());
        what.to_owned()
    }

    /// Keeps a buffer until the capture has ended.
    pub(super) fn keep(&mut self, buffer: CudaSlice<u8>) {
        self.spoil(&not_captured("freeing a buffer"));
        self.dropped.push(buffer);
    }

    /// Ends the recording of `stream` and makes the graph; buffers that waited for the end are freed.
    pub(super) fn end(self, stream: &Arc<CudaStream>) -> Result<CudaGraph, String> {
        // No flag: there are no allocations in the graph, and it is launched by the host.
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(|e| e.to_string());
        drop(self.dropped);
        if let Some(why) = self.spoilt {
            return Err(spoilt(&why));
        }
        let graph = graph?.ok_or_else(|| spoilt("the driver recorded nothing"))?;
        // The first replay need not bring the graph to the card.
        graph.upload().map_err(|e| e.to_string())?;
        Ok(CudaGraph { graph, recorded: self.recorded, stream: stream.clone() })
    }
}

/// An instantiated CUDA graph.
pub struct CudaGraph {
    graph: Instantiated,
    recorded: u64,
    stream: Arc<CudaStream>,
}

impl std::fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaGraph").field("recorded", &self.recorded).finish_non_exhaustive()
    }
}

impl CudaGraph {
    pub(super) fn instantiated(&self) -> &Instantiated {
        &self.graph
    }

    pub(super) fn recorded(&self) -> u64 {
        self.recorded
    }

    pub(super) fn is_of(&self, stream: &Arc<CudaStream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }
}
