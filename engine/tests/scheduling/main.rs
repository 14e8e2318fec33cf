//! The scheduler with a model that reads and writes caches through the arrays of a batch, and notices every wrong slot.

mod fake;
mod halves;
mod halves_rules;
mod harness;
mod host;
mod random;
mod rules;
mod tier;
