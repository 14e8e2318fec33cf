//! tensor.
