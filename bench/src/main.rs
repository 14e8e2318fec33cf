//! sm120
fn main() {}
