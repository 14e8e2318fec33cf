//! Host memory of a rank: texts that go through it, and come back as they were.

mod rig;
mod texts;
