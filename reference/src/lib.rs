//! What each operation means.
#![forbid(unsafe_code)]

pub mod ops;
