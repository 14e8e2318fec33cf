//! The real driver on a simulated network: turmoil's hosts, sockets and clock, the in-process transport for the pages.
//!
//! Two servers of two ranks. The ranks of a server are hosts of their own and carry out numbered decisions late by as much as
//! the run says; what they report is merged as in an engine. A run is a seed. Checked at every report: units that landed hold
//! their room's bytes, a page holds nothing but the bytes of the room that has it, pages that are dealt out were not written
//! since they were given back. Checked at the end: every request was answered once, the next one is served, no room, no
//! landing page and no ghost is left, free pages hold nothing.

mod minds;
mod process;
mod rank;
mod stranger;
mod troubles;
mod world;

pub(crate) use process::Pace;
pub(crate) use troubles::Troubles;
pub(crate) use world::Hosts;

/// Requests while things go wrong, one when they are over, and a look at what is left.
pub(crate) fn run(seed: u64, troubles: Troubles) -> Hosts {
    let mut hosts = Hosts::new(seed, troubles.clone());
    for _ in 0..6 {
        hosts.run(troubles.until / 6);
        hosts.request(3);
        hosts.request(1);
    }
    hosts.settle();
    hosts
}

/// A run that must be without violations.
pub(crate) fn sound(seed: u64, troubles: Troubles) -> Hosts {
    let hosts = run(seed, troubles);
    assert!(hosts.violations.is_empty(), "seed {seed}: {:#?}\n{:?}", hosts.violations, hosts.tally);
    hosts
}
