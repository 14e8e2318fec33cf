//! What the blocks of one launch share.

use super::cluster::Clusters;
use super::program::Program;
use crate::check::{Conflict, InitMap, LaunchCheck, MemSpace, SparseInitMap};
use crate::finding::{Finding, FindingClass, Place};
use crate::ir::{Entry, Module};
use crate::machine::{LaunchConfig, MachineConfig};
use crate::memory::GlobalMemory;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Which bytes of an allocation were ever written.
pub(crate) enum Written {
    Dense(InitMap),
    Sparse(SparseInitMap),
}

impl Written {
    /// Marks a range as written.
    pub(crate) fn set(&mut self, start: u64, bytes: u64) {
        match self {
            Written::Dense(map) => map.set(start..start + bytes),
            Written::Sparse(map) => map.set(start..start + bytes),
        }
    }

    /// Marks a range as never written.
    pub(crate) fn clear(&mut self, start: u64, bytes: u64) {
        match self {
            Written::Dense(map) => map.clear(start..start + bytes),
            Written::Sparse(map) => map.clear(start..start + bytes),
        }
    }

    /// Bits of up to 64 bytes: bit i = byte `start + i` was written.
    pub(crate) fn bits(&self, start: u64, bytes: u32) -> u64 {
        match self {
            Written::Dense(map) => map.bits(start, bytes),
            Written::Sparse(map) => {
                let all = if bytes >= 64 { u64::MAX } else { (1 << bytes) - 1 };
                if map.all(start..start + u64::from(bytes)) {
                    return all;
                }
                (0..u64::from(bytes)).filter(|i| map.all(start + i..start + i + 1)).fold(0, |m, i| m | 1 << i)
            }
        }
    }

    /// First byte of a range that was never written.
    pub(crate) fn first_clear(&self, start: u64, bytes: u64) -> Option<u64> {
        match self {
            Written::Dense(map) => map.first_clear(start..start + bytes),
            Written::Sparse(map) => map.first_clear(start..start + bytes),
        }
    }
}

/// Findings of a launch, one per class, instruction and, for a conflict, instruction of the other access.
#[derive(Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    index: HashMap<(FindingClass, u32, Option<u32>), usize>,
    dropped: u64,
}

/// How many distinct findings a launch keeps.
const MAX_FINDINGS: usize = 256;

/// Where a finding happened, in the machine's own numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) pc: u32,
    pub(crate) block: u32,
    pub(crate) warp: u32,
    pub(crate) lane: Option<u32>,
}

/// One launch while it runs.
pub(crate) struct Launch<'m> {
    pub(crate) program: &'m Program,
    pub(crate) module: &'m Module,
    pub(crate) entry: &'m Entry,
    pub(crate) memory: &'m GlobalMemory,
    /// Per allocation, when checks are on.
    pub(crate) written: Option<Mutex<&'m mut Vec<Written>>>,
    pub(crate) config: &'m MachineConfig,
    pub(crate) dims: &'m LaunchConfig,
    pub(crate) params: &'m [u8],
    /// Static and dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Registers per thread at the start, for `setmaxnreg`.
    pub(crate) registers_per_thread: u32,
    pub(crate) check: Option<Arc<LaunchCheck>>,
    pub(crate) findings: Mutex<Findings>,
    /// Clusters of several blocks.
    pub(crate) clusters: Option<Clusters>,
    /// Set when the launch must end early.
    pub(crate) stop: AtomicBool,
    /// Grows with everything that other blocks could be waiting for.
    pub(crate) activity: AtomicU64,
    /// Warp instructions executed by blocks that have ended or given up their turn.
    pub(crate) instructions: AtomicU64,
    /// Number of this launch on its machine.
    pub(crate) grid_id: u64,
    /// Blocks run on several host threads at once.
    pub(crate) concurrent: bool,
}

impl Launch<'_> {
    /// Block coordinates of a linear block index.
    pub(crate) fn block_at(&self, linear: u32) -> [u32; 3] {
        let [gx, gy, _] = self.dims.grid;
        [linear % gx, linear / gx % gy, linear / gx / gy]
    }

    /// A place of the text.
    pub(crate) fn place(&self, at: At) -> Place {
        let instruction = self.entry.code.get(at.pc as usize);
        let line = instruction.map_or(0, |i| i.line);
        let source = instruction.and_then(|i| i.loc).map(|(file, line)| {
            let path = self.module.files.iter().find(|(index, _)| *index == file);
            format!("{}:{line}", path.map_or("?", |(_, path)| path.as_str()))
        });
        Place {
            entry: self.entry.name.clone(),
            ptx_line: line,
            instruction: self.module.line_text(line).to_owned(),
            source,
            block: self.block_at(at.block),
            warp: at.warp,
            lane: at.lane,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records a finding; texts are made only for the first of its class and instruction.
    pub(crate) fn report(
        &self,
        class: FindingClass,
        at: At,
        text: impl FnOnce() -> (Option<String>, Option<Place>, String),
    ) {
        self.report_pair(class, at, None, text);
    }

    /// Records a conflict with another access: each pair of instructions counts, since one of a store's conflicts may
    /// be harmless and another one not.
    pub(crate) fn report_pair(
        &self,
        class: FindingClass,
        at: At,
        other: Option<u32>,
        text: impl FnOnce() -> (Option<String>, Option<Place>, String),
    ) {
        let mut findings = self.lock();
        let key = (class, at.pc, other);
        if let Some(index) = findings.index.get(&key).copied() {
            findings.list[index].count += 1;
            return;
        }
        if findings.list.len() >= MAX_FINDINGS {
            findings.dropped += 1;
            return;
        }
        let (address, other, message) = text();
        let place = self.place(at);
        let index = findings.list.len();
        findings.index.insert(key, index);
        findings.list.push(Finding { class, place, address, other, message, seed: self.config.seed, count: 1 });
    }

    /// Texts of a conflict that the sanitizer found.
    pub(crate) fn conflict_text(&self, conflict: &Conflict) -> (Option<String>, Option<Place>, String) {
        let address = match conflict.space {
            MemSpace::Shared => format!("shared+{:#x}", conflict.addr),
            MemSpace::Global => self.memory.describe(conflict.addr),
        };
        let other = conflict.other;
        let place = self.place(At { pc: other.place, block: other.block, warp: other.warp, lane: Some(other.lane) });
        let what = if other.write { "write" } else { "read" };
        let message = match conflict.class {
            FindingClass::SharedRace | FindingClass::GlobalRace => {
                format!("nothing orders this access after the {what} by another thread")
            }
            FindingClass::AsyncEarlyAccess => {
                "memory of an asynchronous copy is touched before its completion was observed".to_owned()
            }
            FindingClass::MissingProxyFence => {
                format!("no proxy fence between this access and the {what} through the other proxy")
            }
            FindingClass::NcLoadOfWritten => "ld.global.nc of memory that this launch writes".to_owned(),
            class => format!("conflict of class {class}"),
        };
        (Some(address), Some(place), message)
    }

    /// Ends the launch: findings in order of their first appearance, and how many did not fit.
    pub(crate) fn take_findings(&self) -> (Vec<Finding>, u64) {
        let mut findings = self.lock();
        (std::mem::take(&mut findings.list), findings.dropped)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
