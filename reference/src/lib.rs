//! What each operation means, and whether an implementation does it.
//!
//! [`ops`] is the contract: the trait, the operands, the edges in words; [`check`] what every implementation refuses.
//! [`formats`] and [`layout`] are the numbers and bytes, [`plain`] the operations on them with f64 sums. [`cases`] holds
//! hostile data, [`golden`] values from outside, [`suite`] runs either on any implementation, [`compare`] judges within
//! [`tolerance`], [`reversed`] turns the batch round. [`recall`] measures what a quantised index loses. Nothing here is shared with what it judges.
#![forbid(unsafe_code)]

pub mod cases;
pub mod check;
pub mod compare;
pub mod formats;
pub mod golden;
pub mod layout;
pub mod ops;
pub mod plain;
pub mod problem;
pub mod recall;
pub mod reversed;
pub mod rng;
pub mod suite;
pub mod tolerance;
