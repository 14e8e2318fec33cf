//! The `sm120` command: parity, mutation score, benchmarks, reports.
#![forbid(unsafe_code)]

pub mod plots;
pub mod report;
