//! DeepSeek-V4 over operations: configuration, checkpoints, model, pools, scheduler, engine. Nothing here knows a device.
#![forbid(unsafe_code)]

pub mod batch;
pub mod checkpoint;
pub mod collective;
pub mod config;
pub mod coordinator;
pub mod engine;
pub mod geometry;
pub mod handover;
pub mod host_cache;
pub mod host_tier;
pub mod ids;
pub mod model;
pub mod plan;
pub mod pools;
pub mod prefix;
pub mod progress;
pub mod rope;
pub mod runner;
pub mod scheduler;
pub mod sequence;
pub mod step;
pub mod step_pages;
pub mod tokenizer;
