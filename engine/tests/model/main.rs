//! The whole model against values of an outside implementation, and against itself: pieces, batches, ranks, devices.

mod devices;
mod equal;
mod faults;
mod formats;
mod graphs;
mod mtp;
mod plain;
mod rig;
mod serve;
