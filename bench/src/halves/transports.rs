//! What carries pages from one half to the other.

use crate::serve::ServeError;
use clap::ValueEnum;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use transfer::fault::{Faults, Point};
use transfer::transport::tcp::Tcp;
use transfer::transport::{Transport, TransportError};

/// Transport on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// Sockets; in every build.
    Tcp,
    /// NIXL: RDMA, shared memory or tcp, as UCX finds them; only in `sm120-nixl`, of engine/transfer-nixl/sm120.
    Nixl,
}

/// Makes the transport of a rank.
pub type Make = fn() -> Result<Box<dyn Transport>, TransportError>;

/// The transports that a build has beside tcp.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transports {
    /// NIXL's needs a C++ compiler and libclang to build, which nothing else does.
    pub nixl: Option<Make>,
}

impl Transports {
    /// Refuses a transport that is not there.
    ///
    /// # Errors
    /// As [`Transports::of_ranks`].
    pub(crate) fn check(self, kind: TransportKind) -> Result<(), ServeError> {
        self.of_ranks(kind, 1, IpAddr::from([127, 0, 0, 1]), &Arc::new(Faults::none())).map(drop)
    }

    /// A transport per rank. Made before anything else of a half: what is missing is said before weights are loaded.
    ///
    /// # Errors
    /// A build without it, a library that is not there, an address that is not this machine's, rules of faults that it does not have.
    pub(crate) fn of_ranks(
        self,
        kind: TransportKind,
        ranks: u32,
        host: IpAddr,
        faults: &Arc<Faults>,
    ) -> Result<Vec<Box<dyn Transport>>, ServeError> {
        if let Some(point) = OF_TCP.iter().find(|point| kind == TransportKind::Nixl && faults.any(**point)) {
            let reason = format!("fault {}: expected a point beside the transport, or --transport tcp", point.word());
            return Err(ServeError::Transport(TransportError::System { transport: "nixl", reason }));
        }
        let make = |_| -> Result<Box<dyn Transport>, TransportError> {
            match (kind, self.nixl) {
                (TransportKind::Tcp, _) => Ok(Box::new(Tcp::bind(SocketAddr::new(host, 0), Arc::clone(faults))?)),
                (TransportKind::Nixl, Some(make)) => make(),
                (TransportKind::Nixl, None) => {
                    Err(TransportError::System { transport: "nixl", reason: MISSING.into() })
                }
            }
        };
        (0..ranks).map(make).collect::<Result<_, _>>().map_err(ServeError::Transport)
    }
}

/// Where only tcp has faults.
const OF_TCP: [Point; 7] =
    [Point::Post, Point::Poll, Point::Completion, Point::TearDown, Point::PageCopy, Point::Landing, Point::Gate];

const MISSING: &str = "sm120 is built without it; sm120-nixl has it: cargo build --release --manifest-path engine/transfer-nixl/sm120/Cargo.toml";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_nixl_says_how_to_get_one() {
        let faults = Arc::new(Faults::none());
        let host = IpAddr::from([127, 0, 0, 1]);
        let of = |kind| Transports::default().of_ranks(kind, 2, host, &faults);
        assert_eq!(of(TransportKind::Tcp).expect("in every build").len(), 2);
        let why = of(TransportKind::Nixl).map(|made| made.len()).expect_err("not in this one").to_string();
        assert!(why.starts_with("transport nixl: sm120 is built without it; sm120-nixl has it: "), "{why}");
    }

    /// A rule that would do nothing is no rule.
    #[test]
    fn faults_that_a_transport_does_not_have_are_refused() {
        let host = IpAddr::from([127, 0, 0, 1]);
        let make: Make = || unreachable!("refused before it is made");
        let of = |kind, rules| {
            let faults = Arc::new(Faults::parse(rules).expect("rules"));
            Transports { nixl: Some(make) }.of_ranks(kind, 1, host, &faults).map(|made| made.len())
        };
        assert_eq!(of(TransportKind::Tcp, "page-copy=delay(1); post=fail").expect("tcp has them"), 1);
        let why = of(TransportKind::Tcp, "page-copy:CSA KV=late-write(3)").expect_err("not the sender").to_string();
        assert!(why.starts_with("transport tcp: fault page-copy=late-write: expected delay or corrupt"), "{why}");
        let why = of(TransportKind::Nixl, "http=stall(1); post=fail").expect_err("tcp's").to_string();
        assert_eq!(why, "transport nixl: fault post: expected a point beside the transport, or --transport tcp");
    }
}
