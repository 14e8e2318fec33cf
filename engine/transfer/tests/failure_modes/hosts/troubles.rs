//! What goes wrong in a run of drivers, and what came of it.

use super::process::Pace;
use crate::endpoints::world::ms;
use std::collections::BTreeMap;
use std::time::Duration;
use transfer::room::Protections;

/// What goes wrong until `until`. Chances are per mille of every 20 ms, except where something else is said.
#[derive(Debug, Clone)]
pub(crate) struct Troubles {
    pub(crate) until: Duration,
    /// A server is killed and starts again within 600 ms.
    pub(crate) kill: u32,
    /// Messages between two ranks wait for up to 400 ms.
    pub(crate) hold: u32,
    /// Messages between two ranks are lost for up to 600 ms.
    pub(crate) cut: u32,
    /// Clients go away; per decision that their room sees.
    pub(crate) leave: u32,
    /// Requests that prefill refuses, of all.
    pub(crate) refuse: u32,
    /// Somebody connects and sends what is no frame.
    pub(crate) noise: bool,
    /// Somebody greets as a decode rank would, asks without end and never reads.
    pub(crate) mute: bool,
    /// Bytes that may wait for a peer.
    pub(crate) queued_bytes: usize,
    /// Frames: rules of the driver; they stay when the rest is over.
    pub(crate) frames: &'static str,
    /// Pages: rules of the in-process transport.
    pub(crate) pages: &'static str,
    pub(crate) pace: Pace,
    pub(crate) verify: bool,
    pub(crate) on: Protections,
}

impl Default for Troubles {
    fn default() -> Self {
        let pace = Pace { skew: 0, exchange: true };
        Self {
            until: ms(1500),
            kill: 0,
            hold: 0,
            cut: 0,
            leave: 0,
            refuse: 0,
            noise: false,
            mute: false,
            queued_bytes: 1 << 20,
            frames: "",
            pages: "",
            pace,
            verify: false,
            on: Protections::ALL,
        }
    }
}

impl Troubles {
    /// A bit of everything.
    pub(crate) fn storm(seed: u64) -> Self {
        Self {
            kill: 5,
            hold: 6,
            cut: 4,
            leave: 4,
            refuse: 60,
            noise: true,
            frames: "frame-sent=drop@0.01; frame-sent=duplicate@0.02; frame-received=reorder@0.02; \
                     frame-received=delay(60)@0.01; frame-sent=flip@0.001; frame-received=truncate@0.001",
            pages: "completion=never-end@0.01; completion=error-then-write(80)@0.01; completion=fail@0.01; post=fail@0.01; \
                    post=delay(150)@0.05; page-copy=delay(60)@0.05; tear-down=delay(20)@0.2; poll=delay@0.05",
            pace: Pace { skew: 50, exchange: true },
            verify: seed.is_multiple_of(2),
            ..Self::default()
        }
    }
}

/// What came of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) answered: u32,
    pub(crate) failed: u32,
    pub(crate) reasons: BTreeMap<String, u32>,
    pub(crate) restarts: u32,
    pub(crate) held: u32,
    pub(crate) cut: u32,
    /// Bytes that were no frame, or frames that made no sense, on the connections of the last processes.
    pub(crate) malformed: u64,
    pub(crate) verified: usize,
    /// Peers whose queue ran over.
    pub(crate) overflows: u64,
    /// From a request to its good answer.
    pub(crate) slowest: Duration,
}
