//! The sanitizer: happens-before between threads, and what every byte of memory holds.
//!
//! The machine tells this module about accesses and about synchronisation; this module answers with conflicts. It knows
//! neither instructions nor values. Threads of a block are numbered `warp * 32 + lane`.
//!
//! **Order.** Every thread has a vector clock over the threads of its block and over the *agents* of the block: one
//! agent per asynchronous completion mechanism (an mbarrier's transactions, a thread's bulk groups). Lanes of a warp are
//! different threads: without `bar.warp.sync` (or a barrier that both reach) nothing orders one lane before another.
//! Lanes with equal knowledge share one clock, so a convergent warp costs one clock. Between blocks, order comes from
//! releases and acquires on atomics and fences at gpu scope, and from launch order.
//!
//! **Memory.** A shadow cell per 4-byte word (split into bytes on partial access) holds the last write and the reads
//! since, each with thread, clock, proxy and place. A bit per byte says whether anything was written.
