//! kernel-bindings
