//! The failure modes of a transfer between two servers, a test each (`f01` to `f19`), and runs in which they all happen at
//! once. `README.md` of the crate lists them.
//!
//! Two simulations: [`endpoints`] has the endpoint without I/O under a virtual clock of its own, [`hosts`] the real driver on
//! turmoil's network. `SIMULATION_SEEDS=20000 cargo test -p transfer --test failure_modes storm` runs more seeds,
//! `SIMULATION_FIRST=n` others.

mod anything;
mod chance;
mod endpoints;
mod frames;
mod hosts;
mod pages;
mod peers;
mod protections;
mod ranks;
mod rooms;
mod storms;
mod words;
