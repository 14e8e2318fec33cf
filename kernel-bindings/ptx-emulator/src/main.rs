//! Command line of the machine.
fn main() {}
