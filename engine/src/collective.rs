//! How the ranks of a model add up their parts.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use kernel_bindings::cuda::{Cuda, CudaBuffer};
use kernel_bindings::nccl::NcclRank;
use kernel_bindings::ops::KernelOps;
use reference::ops::{Ops, OpsError};

/// One rank's end of an exchange. Every rank makes the same calls in the same order.
pub trait Collective<O: Ops>: fmt::Debug {
    /// Replaces the first `elements` f32 of `buffer` by their sum over all ranks, added in the order of the ranks, so that every
    /// rank holds the same bytes.
    fn all_reduce(&mut self, ops: &O, buffer: &mut O::Buffer, elements: u64) -> Result<(), OpsError>;
    /// Whether the sum stays on the device, so that it can be recorded with the operations around it.
    fn on_device(&self) -> bool {
        false
    }
}

/// A model on one rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl<O: Ops> Collective<O> for Solo {
    fn all_reduce(&mut self, _: &O, _: &mut O::Buffer, _: u64) -> Result<(), OpsError> {
        Ok(())
    }
    fn on_device(&self) -> bool {
        true
    }
}

#[derive(Debug, Default)]
struct Exchange {
    parts: Vec<Vec<u8>>,
    arrived: usize,
    round: u64,
    sum: Arc<Vec<u8>>,
    /// Why nobody will ever arrive again.
    broken: Option<String>,
}

#[derive(Debug)]
struct Shared {
    exchange: Mutex<Exchange>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Exchange> {
        // A rank that panicked has marked the exchange as broken; the data behind the lock is whole.
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank among threads of one process.
#[derive(Debug)]
pub struct ThreadRank {
    shared: Arc<Shared>,
    rank: usize,
    part: Vec<u8>,
}

impl ThreadRank {
    /// The ends of an exchange among `size` ranks.
    pub fn group(size: u32) -> Vec<ThreadRank> {
        let exchange = Exchange { parts: vec![Vec::new(); size as usize], ..Exchange::default() };
        let shared = Arc::new(Shared { exchange: Mutex::new(exchange), changed: Condvar::new() });
        (0..size as usize).map(|rank| ThreadRank { shared: Arc::clone(&shared), rank, part: Vec::new() }).collect()
    }

    /// Sum of everybody's bytes, seen as f32.
    fn sum(&mut self) -> Result<Arc<Vec<u8>>, String> {
        let mut exchange = self.shared.lock();
        if let Some(reason) = &exchange.broken {
            return Err(reason.clone());
        }
        let round = exchange.round;
        std::mem::swap(&mut exchange.parts[self.rank], &mut self.part);
        exchange.arrived += 1;
        if exchange.arrived == exchange.parts.len() {
            exchange.sum = Arc::new(add(&exchange.parts)?);
            exchange.arrived = 0;
            exchange.round += 1;
            self.shared.changed.notify_all();
        }
        while exchange.round == round {
            if let Some(reason) = &exchange.broken {
                return Err(reason.clone());
            }
            exchange = self.shared.changed.wait(exchange).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(Arc::clone(&exchange.sum))
    }
}

fn add(parts: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let len = parts[0].len();
    if let Some(rank) = parts.iter().position(|part| part.len() != len) {
        return Err(format!("rank {rank} brought {} bytes to an exchange, rank 0 brought {len}", parts[rank].len()));
    }
    let value = |part: &[u8], at: usize| f32::from_le_bytes(part[at..at + 4].try_into().expect("four bytes"));
    let mut sum = Vec::with_capacity(len);
    for at in (0..len).step_by(4) {
        let total: f32 = parts.iter().map(|part| value(part, at)).sum();
        sum.extend_from_slice(&total.to_le_bytes());
    }
    Ok(sum)
}

impl<O: Ops> Collective<O> for ThreadRank {
    fn all_reduce(&mut self, ops: &O, buffer: &mut O::Buffer, elements: u64) -> Result<(), OpsError> {
        self.part.resize(4 * elements as usize, 0);
        ops.download(buffer, 0, &mut self.part)?;
        let sum = self.sum().map_err(|message| OpsError::Device { device: ops.name(), message })?;
        ops.upload(buffer, 0, &sum)
    }
}

/// A rank among the cards of a machine; the sum never leaves them.
#[derive(Debug)]
pub struct CardRank(pub NcclRank);

impl Collective<KernelOps<Cuda>> for CardRank {
    fn all_reduce(&mut self, ops: &KernelOps<Cuda>, buffer: &mut CudaBuffer, elements: u64) -> Result<(), OpsError> {
        let device = || Ops::name(ops);
        self.0
            .all_reduce_sum(buffer, elements)
            .map_err(|error| OpsError::Device { device: device(), message: error.to_string() })
    }
    fn on_device(&self) -> bool {
        true
    }
}

impl Drop for ThreadRank {
    /// A rank that leaves wakes those that wait for it.
    fn drop(&mut self) {
        let mut exchange = self.shared.lock();
        let how = if std::thread::panicking() { "panicked" } else { "left" };
        exchange.broken.get_or_insert_with(|| format!("rank {} {how}", self.rank));
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn exchange(ranks: Vec<ThreadRank>, rounds: u32, value: impl Fn(usize, u32) -> f32 + Sync) -> Vec<Vec<Vec<u8>>> {
        let value = &value;
        std::thread::scope(|scope| {
            let handles: Vec<_> = ranks
                .into_iter()
                .map(|mut rank| {
                    scope.spawn(move || {
                        (0..rounds)
                            .map(|round| {
                                rank.part = f32s(&[value(rank.rank, round), 1.0]);
                                rank.sum().expect("everybody arrives").to_vec()
                            })
                            .collect()
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn every_rank_holds_every_rounds_sum() {
        // Distinct powers of two: a missing, doubled or stale part changes the sum.
        let sums = exchange(ThreadRank::group(4), 200, |rank, round| ((round % 7) as f32).exp2() * (1 << rank) as f32);
        for (rank, rounds) in sums.iter().enumerate() {
            for (round, sum) in rounds.iter().enumerate() {
                let expected = ((round % 7) as f32).exp2() * 15.0;
                assert_eq!(sum, &f32s(&[expected, 4.0]), "rank {rank}, round {round}");
            }
        }
    }

    #[test]
    fn a_rank_that_leaves_ends_the_wait_of_the_others() {
        let mut ranks = ThreadRank::group(2);
        let gone = ranks.pop().expect("two ranks");
        let waiting = std::thread::spawn(move || ranks[0].sum());
        drop(gone);
        let error = waiting.join().expect("no panic").expect_err("the other rank is gone");
        assert_eq!(error, "rank 1 left");
    }

    #[test]
    fn parts_of_different_length_are_refused() {
        assert!(add(&[f32s(&[1.0]), f32s(&[1.0, 2.0])]).is_err_and(|e| e.contains("rank 1 brought 8 bytes")));
    }
}
