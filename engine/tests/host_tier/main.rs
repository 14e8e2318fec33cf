//! Host memory of a rank: texts that go through it, and come back as they were.

mod graphs;
mod layers;
mod rig;
mod texts;
