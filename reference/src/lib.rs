//! What each operation means.
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
pub mod rng;
pub mod suite;
pub mod tolerance;
