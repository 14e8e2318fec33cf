//! What each operation means.
#![forbid(unsafe_code)]

pub mod check;
pub mod formats;
pub mod layout;
pub mod ops;
pub mod plain;
pub mod rng;
