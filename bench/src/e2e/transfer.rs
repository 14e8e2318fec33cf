//! Pages that moved during a run, beside a plain socket.

use super::E2eError;
use crate::moved::Moved;
use serde::Serialize;
use std::fmt;
use transfer::rates::{median, plain_socket};

const SOCKET_BYTES: usize = 64 << 20;
const ROUNDS: usize = 5;

/// What moved, and what a plain socket of this machine moves at the end of the same run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Transfer {
    /// Pages.
    pub moved: Moved,
    /// GB/s of a plain socket, median of five rounds of 64 MiB.
    pub socket_gb_per_second: f64,
}

impl Transfer {
    pub(super) fn measured(moved: Moved) -> Result<Self, E2eError> {
        let rates = plain_socket(SOCKET_BYTES, ROUNDS)
            .map_err(|error| E2eError::Server { url: "a plain socket".into(), message: error.to_string() })?;
        Ok(Self { moved, socket_gb_per_second: median(rates) })
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mb, rate, socket) = (self.moved.bytes as f64 / 1e6, self.moved.gb_per_second(), self.socket_gb_per_second);
        write!(
            f,
            "{mb:.1} MB of pages moved, at {rate:.3} GB/s while they did, {:.0} % of a plain socket's {socket:.3}",
            100.0 * rate / socket
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_socket() {
        let moved = Moved { bytes: 500_000_000, seconds: 1.0 };
        let text = Transfer { moved, socket_gb_per_second: 2.0 }.to_string();
        assert_eq!(text, "500.0 MB of pages moved, at 0.500 GB/s while they did, 25 % of a plain socket's 2.000");
    }
}
