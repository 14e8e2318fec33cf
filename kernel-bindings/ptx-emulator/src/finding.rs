//! What the machine reports instead of undefined behaviour.

use crate::named::named;
use serde::Serialize;
use std::fmt;

named! {
    /// Class of a finding; [`FindingClass::name`] is the stable name that reports print.
    #[allow(missing_docs)]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum FindingClass {
        OutOfBounds = "out_of_bounds",
        UseAfterFree = "use_after_free",
        Misaligned = "misaligned",
        Uninitialized = "uninitialized",
        SharedRace = "shared_race",
        GlobalRace = "global_race",
        AsyncEarlyAccess = "async_early_access",
        AsyncInFlightAtExit = "async_in_flight_at_exit",
        MissingProxyFence = "missing_proxy_fence",
        NcLoadOfWritten = "nc_load_of_written",
        DivergentBarrier = "divergent_barrier",
        BarrierMismatch = "barrier_mismatch",
        MbarrierMisuse = "mbarrier_misuse",
        InactiveLane = "inactive_lane",
        PartialWarp = "partial_warp",
        Deadlock = "deadlock",
        Unsupported = "unsupported",
        BadLaunch = "bad_launch",
    }
}

impl FindingClass {
    /// The class of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

impl fmt::Display for FindingClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for FindingClass {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

/// Where in the program and the grid something happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Entry symbol.
    pub entry: String,
    /// Line of the PTX text, from 1.
    pub ptx_line: u32,
    /// Instruction text, trimmed.
    pub instruction: String,
    /// `file:line` of the kernel source where `.loc` gives one.
    pub source: Option<String>,
    /// Block coordinates.
    pub block: [u32; 3],
    /// Warp in the block.
    pub warp: u32,
    /// Lane, when one lane is to blame.
    pub lane: Option<u32>,
}

/// One report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Class.
    pub class: FindingClass,
    /// Where.
    pub place: Place,
    /// Address as allocation + offset, e.g. `keys+0x1200` or `shared+0x40`.
    pub address: Option<String>,
    /// The other access of a race, or the copy that is in flight.
    pub other: Option<Place>,
    /// One sentence.
    pub message: String,
    /// Schedule seed of the run.
    pub seed: u64,
    /// How often the same instruction (for a race: the same pair of them) reported the same class in this launch.
    pub count: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} at {}", self.class, self.message, PlaceText(&self.place))?;
        if let Some(address) = &self.address {
            write!(f, ", address {address}")?;
        }
        if let Some(other) = &self.other {
            write!(f, "; other access at {}", PlaceText(other))?;
        }
        write!(f, " (seed {}, seen {}x)", self.seed, self.count)
    }
}

struct PlaceText<'a>(&'a Place);

impl fmt::Display for PlaceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.0;
        write!(f, "{} line {} `{}`", p.entry, p.ptx_line, p.instruction)?;
        if let Some(source) = &p.source {
            write!(f, " ({source})")?;
        }
        write!(f, " block ({}, {}, {}) warp {}", p.block[0], p.block[1], p.block[2], p.warp)?;
        if let Some(lane) = p.lane {
            write!(f, " lane {lane}")?;
        }
        Ok(())
    }
}
