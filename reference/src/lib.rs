//! What each operation means.
#![forbid(unsafe_code)]

pub mod check;
pub mod layout;
pub mod ops;
