//! Prefill here, decode there: pages that travel, and the same text as one engine makes.

#[path = "../scheduling/fake.rs"]
#[allow(dead_code)]
mod fake;
mod gate;
mod handover;
mod host;
mod linked;
mod pair;
mod stalls;
mod storms;
mod texts;
mod wire;
