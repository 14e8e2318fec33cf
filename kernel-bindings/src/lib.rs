//! Checked launches of the kernels: on a card, on emulated PTX, and the same operations on the host.
//!
//! [`ops::KernelOps`] implements the contract [`reference::ops::Ops`] over any [`device::Device`]; [`host`] implements it
//! in plain Rust with f32 arithmetic.

mod cublaslt;
pub mod cuda;
pub mod device;
pub mod emulated;
pub mod host;
pub mod layout;
pub mod mapped_file;
pub mod nccl;
pub mod ops;
