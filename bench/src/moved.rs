//! Pages that prefill servers have sent, by their own metrics.

use crate::probe::{get, sum};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

/// For an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Page bytes, and the time in which they moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Moved {
    /// Bytes of pages that have arrived, acknowledged.
    pub bytes: u64,
    /// Seconds in which at least one unit was under way; those of several ranks and servers are added.
    pub seconds: f64,
}

impl Moved {
    /// What these servers have sent so far; nothing by no server.
    ///
    /// # Errors
    /// A server that does not answer, or without these metrics.
    pub fn by(servers: &[SocketAddr]) -> std::io::Result<Self> {
        let mut all = Self::default();
        for server in servers {
            let (_, text, _) = get(*server, "/metrics", ANSWER)?;
            all.bytes += sum(&text, "sm120_transfer_bytes_total{")? as u64;
            all.seconds += sum(&text, "sm120_transfer_moving_seconds_total{")?;
        }
        Ok(all)
    }

    /// What was sent since then.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes - before.bytes, seconds: self.seconds - before.seconds }
    }

    /// GB/s (decimal) of a connection while it moves pages; 0 if nothing was.
    pub fn gb_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds / 1e9 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bytes_over_the_time_in_which_they_moved() {
        let later = Moved { bytes: 3_000_000_000, seconds: 2.5 };
        let between = later.since(Moved { bytes: 1_000_000_000, seconds: 0.5 });
        assert_eq!(between.gb_per_second(), 1.0);
        assert_eq!(Moved::default().gb_per_second(), 0.0);
    }
}
