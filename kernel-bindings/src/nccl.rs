//! Sums over the cards of a machine by NCCL. The library is opened at run time, like the driver.
//!
//! No machine with two cards has run this yet.

use crate::cuda::{Cuda, CudaBuffer};
use crate::device::{Device, DeviceError};
use cudarc::nccl::{Comm, Id, ReduceOp, result::NcclError, sys};

/// What the ranks of one group share: rank 0 makes it, every rank joins with it.
#[derive(Debug, Clone, Copy)]
pub struct NcclId(Id);

impl NcclId {
    /// A new group. The error says what is missing.
    pub fn new() -> Result<Self, DeviceError> {
        let absent = |reason: String| DeviceError::Absent { device: "nccl", reason };
        // SAFETY: opens and closes the library; libnccl has no load-time side effects that matter here.
        if !unsafe { sys::is_culib_present() } {
            return Err(absent("libnccl is not installed".into()));
        }
        Id::new().map(Self).map_err(|e| absent(format!("libnccl does not answer: {e:?}")))
    }
}

/// A rank: one card, one stream, the one on which the card's kernels run.
#[derive(Debug)]
pub struct NcclRank {
    comm: Comm,
    name: String,
}

impl NcclRank {
    /// Joins a group of `size` ranks; returns when all have joined.
    pub fn join(card: &Cuda, id: NcclId, rank: u32, size: u32) -> Result<Self, DeviceError> {
        let name = card.properties().name.clone();
        let comm = Comm::from_rank(card.stream(), rank as usize, size as usize, id.0);
        let comm = comm.map_err(|error| failed(&name, error))?;
        Ok(Self { comm, name })
    }

    /// Replaces the first `elements` f32 of `buffer` by their sum over all ranks. Ordered on the stream: kernels launched before
    /// are summed, kernels launched after see the sum. NCCL picks the order of the additions by size and topology and keeps it
    /// from call to call, so that every rank holds the same bytes.
    pub fn all_reduce_sum(&self, buffer: &mut CudaBuffer, elements: u64) -> Result<(), DeviceError> {
        let Some(mut view) = buffer.as_f32_mut(elements) else {
            return Err(DeviceError::Launch {
                device: self.name.clone(),
                entry: "ncclAllReduce".into(),
                reason: format!("{elements} f32 do not fit the buffer"),
            });
        };
        self.comm.all_reduce_in_place(&mut view, &ReduceOp::Sum).map_err(|error| failed(&self.name, error))?;
        Ok(())
    }
}

fn failed(name: &str, error: NcclError) -> DeviceError {
    DeviceError::Launch { device: name.to_owned(), entry: "ncclAllReduce".into(), reason: format!("{error:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the library is missing that is an error value, not a panic of the loader.
    #[test]
    fn a_missing_library_is_said() {
        match NcclId::new() {
            Ok(_) => (),
            Err(error) => assert!(error.to_string().contains("libnccl"), "{error}"),
        }
    }
}
