//! What gets stuck, and what has to be seen of it.

use super::super::ExperimentError;
use super::super::servers::{Extra, Server, Servers};
use super::HOLD;
use rustix::process::Signal;
use std::time::Duration;

/// A server of the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Router,
    Decode,
    Prefill,
}

impl Who {
    pub(super) fn of(self, servers: &mut Servers) -> &mut Server {
        match self {
            Who::Router => &mut servers.router,
            Who::Decode => &mut servers.decode,
            Who::Prefill => &mut servers.prefill,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Who::Router => "router",
            Who::Decode => "decode",
            Who::Prefill => "prefill",
        }
    }
}

/// What a bad `/health` has to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// A part, or other words.
    Words(&'static str),
    /// The prefill server that a decode server has lost, by its control address.
    Prefill,
}

impl Names {
    pub(super) fn text(self, servers: &Servers) -> String {
        match self {
            Names::Words(words) => words.to_owned(),
            Names::Prefill => format!("{ALONE}: {}: ", servers.control),
        }
    }
}

/// How something gets stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// SIGSTOP, and later SIGCONT.
    Stop(Who),
    /// SIGKILL, and later another process.
    Kill(Who),
    /// By a fault that the server was started with, and that ends by itself.
    Rule(Who, &'static str),
    /// By a fault after which the process ends; another is started.
    End(Who, &'static str),
}

impl Act {
    pub(super) fn begin(self, servers: &mut Servers) -> Result<(), ExperimentError> {
        match self {
            Act::Stop(who) => who.of(servers).signal(Signal::STOP),
            Act::Kill(who) => who.of(servers).kill(),
            Act::Rule(..) | Act::End(..) => Ok(()),
        }
    }

    /// Whether the moment is known at which it began.
    pub(super) fn is_at_once(self) -> bool {
        matches!(self, Act::Stop(_) | Act::Kill(_))
    }
}

/// One case.
#[derive(Debug)]
pub(super) struct Case {
    /// On the command line.
    pub(super) name: &'static str,
    pub(super) act: Act,
    /// Options of both halves.
    pub(super) both: &'static [&'static str],
    /// Whose `/health` says so, and what its reason names.
    pub(super) seen: Option<(Who, Names)>,
    /// Reasons that clients may be given.
    pub(super) reasons: &'static [&'static str],
    /// For a client to be told, from when it is stuck or from its request, whichever is later.
    pub(super) within: Duration,
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a router says to requests while its only server is not well, and what they are told whose answer broke off.
const UNWELL: &str = "no decode server can take the request";

/// What a decode server says to requests while its only prefill server is not there.
const ALONE: &str = "no prefill server";

pub(super) const CASES: &[Case] = &[
    Case {
        name: "prefill-stopped",
        act: Act::Stop(Who::Prefill),
        both: &[],
        seen: Some((Who::Decode, Names::Prefill)),
        reasons: &["PeerLost", ALONE, UNWELL],
        // 2 s of silence, and what a busy machine adds.
        within: seconds(4),
    },
    Case {
        name: "decode-stopped",
        act: Act::Stop(Who::Decode),
        both: &[],
        seen: Some((Who::Router, Names::Words("no decode server is well"))),
        reasons: &["PeerLost", ALONE, UNWELL],
        // For as long as it is stopped nobody can tell them; then as elsewhere.
        within: seconds(10),
    },
    Case {
        name: "decode-rank-stalled",
        act: Act::Rule(Who::Decode, "exchange:0=delay(4000)#80"),
        both: &[],
        seen: Some((Who::Decode, Names::Words("rank 0"))),
        reasons: &[UNWELL],
        within: seconds(6),
    },
    Case {
        name: "prefill-rank-stalled",
        act: Act::Rule(Who::Prefill, "exchange:0=delay(4000)#80"),
        both: &[],
        seen: Some((Who::Prefill, Names::Words("rank 0"))),
        reasons: &[UNWELL],
        within: seconds(6),
    },
    Case {
        name: "decode-rank-withheld",
        act: Act::End(Who::Decode, "exchange:0=withhold#80"),
        both: &["--step-timeout", "4s"],
        seen: Some((Who::Decode, Names::Words("rank 0"))),
        reasons: &["no answer of rank 0 within 4s", "the engine", "broke off", UNWELL],
        within: seconds(6),
    },
    Case {
        name: "decode-driver-blocked",
        act: Act::Rule(Who::Decode, "poll=delay(4000)#1500"),
        both: &[],
        seen: Some((Who::Decode, Names::Words("transfer 0"))),
        reasons: &["PeerLost", ALONE, UNWELL],
        within: seconds(6),
    },
    Case {
        name: "host-copies-stuck",
        act: Act::Rule(Who::Prefill, "host-save:CSA index K=delay(4000)#6"),
        both: &["--host-cache", "64MiB"],
        seen: Some((Who::Prefill, Names::Words("host copies 0"))),
        reasons: &["NoProgress", "Lease", UNWELL],
        within: seconds(7),
    },
    Case {
        name: "arena-full",
        // The pages of one text at a time, and one whose end is never told.
        act: Act::Rule(Who::Prefill, "completion=never-end#12"),
        both: &["--arena-texts", "1"],
        seen: None,
        reasons: &["NoProgress", "TornDown", "PeerLost", ALONE, UNWELL],
        // 5 s without a layer, then 5 s for a proof of quiet before the connection is torn down.
        within: seconds(13),
    },
    Case {
        name: "prefill-killed",
        act: Act::Kill(Who::Prefill),
        both: &[],
        seen: Some((Who::Decode, Names::Prefill)),
        reasons: &["PeerLost", ALONE, UNWELL],
        within: seconds(4),
    },
];

impl Case {
    /// Whether it needs a fault of a transport, which only that of tcp has.
    pub(super) fn is_of_tcp(&self) -> bool {
        let rules = match self.act {
            Act::Rule(_, rules) | Act::End(_, rules) => rules,
            Act::Stop(_) | Act::Kill(_) => "",
        };
        rules.starts_with("poll") || rules.starts_with("completion")
    }

    /// What is done, for the report.
    pub(super) fn words(&self) -> String {
        let hold = HOLD.as_secs();
        let act = match self.act {
            Act::Stop(who) => format!("the {} process is stopped for {hold} s", who.name()),
            Act::Kill(who) => format!("the {} process is killed, and another is started {hold} s later", who.name()),
            Act::Rule(who, rules) => format!("the {} server has --faults \"{rules}\"", who.name()),
            Act::End(who, rules) => {
                format!("the {} server has --faults \"{rules}\" until it ends; another is started without", who.name())
            }
        };
        if self.both.is_empty() { act } else { format!("{act}; both halves have {}", self.both.join(" ")) }
    }

    pub(super) fn extra(&self) -> Extra {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let faults = |of| match self.act {
            Act::Rule(who, rules) | Act::End(who, rules) if who == of => words(&["--faults", rules]),
            _ => Vec::new(),
        };
        let both = words(self.both);
        Extra { both, prefill: faults(Who::Prefill), decode: faults(Who::Decode), ..Extra::default() }
    }
}
