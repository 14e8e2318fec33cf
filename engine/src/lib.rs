//! DeepSeek-V4 over operations: layer schedule, bytes per token, one decode attention step. Nothing here knows a device.
#![forbid(unsafe_code)]

pub mod attention;
pub mod batch;
pub mod checkpoint;
pub mod config;
pub mod geometry;
pub mod ids;
pub mod model;
pub mod plan;
pub mod pools;
pub mod prefix;
pub mod scheduler;
pub mod sequence;
pub mod step;
pub mod tokenizer;
