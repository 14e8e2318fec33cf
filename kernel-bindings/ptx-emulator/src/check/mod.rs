//! The sanitizer: happens-before between threads, and what every byte of memory holds.
//!
//! The machine tells this module about accesses and about synchronisation; this module answers with conflicts. It knows
//! neither instructions nor values. Threads of a block are numbered `warp * 32 + lane`.
//!
//! * [`LaunchCheck`]: what the blocks of one launch share (global memory, releases and acquires through it). `Sync`.
//!   One per launch, dropped at its end: launches of a stream are ordered, so nothing is carried over.
//! * [`BlockCheck`]: one running block: the order of its threads and its shared memory. Every memory instruction and
//!   every synchronisation instruction is one call, made in the order in which the machine performs them.
//! * [`InitMap`], [`SparseInitMap`]: a bit per byte that says whether anything was ever written there.
//!
//! **Order.** Every thread has a vector clock over the threads of its block and over the *agents* of the block: one
//! agent per asynchronous completion mechanism (an mbarrier's transactions, a thread's copy groups). Lanes of a warp are
//! different threads: without `bar.warp.sync` (or a barrier that both reach) nothing orders one lane before another.
//! Lanes with equal knowledge share one clock, so a convergent warp costs one clock. Between blocks, order comes from
//! releases and acquires on atomics and fences at gpu scope, and from launch order.
//!
//! **Memory.** A shadow cell per 16 bytes (split into words and bytes on partial access) holds the last write and the
//! reads since, each with thread, clock, proxy and place.

mod api;
mod block;
mod cell;
mod clock;
mod copies;
mod event;
mod init;
mod launch;
mod mbarrier;
mod object;
mod shadow;
mod warp;

pub use api::{Access, AccessKind, AsyncId, Bulk, BulkCompletion, Conflict, MemSpace, OtherAccess};
pub use block::BlockCheck;
pub use init::{InitMap, SparseInitMap};
pub use launch::LaunchCheck;
