//! How the ranks of a server agree before anybody acts.
//!
//! Each step a rank freezes what it sees into a [`Report`]: whole tables keyed by room, never events, so that nothing can be
//! lost or counted twice. [`merge`] is pure: what all ranks saw holds, and a failure that any rank saw. From the result the
//! coordinator alone makes the next [`Decision`], numbered and chained by hash; ranks carry out its commands and nothing
//! else. A rank that is not where the others are is found by the hash in its report.

mod peers;
mod port;
#[cfg(all(test, not(loom)))]
mod tests;

pub use peers::{PeerSeen, merge_peers, nobody_up};
pub use port::{PortError, RoomPort};

use crate::ids::RoomKey;
use crate::layout::PagesByClass;
use crate::reason::{Code, Reason};
use crate::room::UnitSet;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// What is seen of a room. Every field only ever grows while the room lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoomSeen {
    /// Prefill: the request that OPEN brought, as the engine wrote it.
    pub arrived: Option<Arc<[u8]>>,
    /// Decode: units whose every byte has landed.
    pub landed: UnitSet,
    /// Decode: the handover record that DONE brought, once nothing more will be written.
    pub done: Option<Arc<[u8]>>,
    /// Why it failed.
    pub failed: Option<Reason>,
    /// The outcome is final here (taken, acknowledged, failed), and it is proved that nobody writes or reads the room's arena
    /// pages any more.
    pub quiet: bool,
}

/// A copy between cache pages and host memory; numbers are not used twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

impl fmt::Display for CopyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy {}", self.0)
    }
}

/// What is seen of a copy. It only ever rises, and a failure is final.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySeen {
    /// Under way.
    Moving,
    /// A load whose every byte is in host memory and is what was saved: nothing can fail any more, and layers may be waited for.
    Checked,
    /// Every byte has arrived.
    Done,
    /// It will not arrive.
    Failed(Reason),
}

impl CopySeen {
    fn level(&self) -> u8 {
        match self {
            CopySeen::Moving => 0,
            CopySeen::Checked => 1,
            CopySeen::Done => 2,
            CopySeen::Failed(_) => 3,
        }
    }
}

/// The last decision that a rank carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Its number, from 1; 0 before the first.
    pub number: u64,
    /// Its hash.
    pub hash: u64,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "decision {} ({:016x})", self.number, self.hash)
    }
}

/// What one rank saw at one moment: P(k).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Rank.
    pub rank: u32,
    /// Where it stands.
    pub applied: Applied,
    /// Every room that it knows. One that it does not know is one of which it has seen nothing.
    pub rooms: BTreeMap<RoomKey, RoomSeen>,
    /// Every copy that it was ordered and not told to drop.
    pub copies: BTreeMap<CopyId, CopySeen>,
    /// Decode: the prefill servers in the order of the command line.
    pub peers: Vec<PeerSeen>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} after {}", self.rank, self.applied)?;
        for (key, seen) in &self.rooms {
            let flag = |on: bool, text: &'static str| if on { text } else { "" };
            let (arrived, done) = (flag(seen.arrived.is_some(), ", arrived"), flag(seen.done.is_some(), ", done"));
            write!(f, "; {key}: {} units{arrived}{done}{}", seen.landed.len(), flag(seen.quiet, ", quiet"))?;
            if let Some(reason) = &seen.failed {
                write!(f, ", failed ({reason})")?;
            }
        }
        self.copies.iter().try_for_each(|(id, seen)| write!(f, "; {id}: {seen:?}"))
    }
}

/// What the ranks saw together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Where all ranks stand.
    pub applied: Applied,
    /// Every room that any rank knows: what all of them saw of it, and a failure that any of them saw.
    pub rooms: BTreeMap<RoomKey, RoomSeen>,
    /// Every copy that any rank knows: as far as it is everywhere, or failed if it failed anywhere.
    pub copies: BTreeMap<CopyId, CopySeen>,
    /// Decode: the prefill servers, up where every rank is connected.
    pub peers: Vec<PeerSeen>,
}

/// Ranks that cannot go on together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExchangeError {
    /// Reports after different decisions.
    #[error("ranks stand after different decisions:\n  {0}\n  {1}")]
    Diverged(Box<Report>, Box<Report>),
    /// A decision that does not follow the last one.
    #[error("decision {number} follows hash {follows:016x}, but the last one carried out is {last}")]
    Chain {
        /// The decision's number.
        number: u64,
        /// Hash of the decision before it.
        follows: u64,
        /// What was carried out last.
        last: Applied,
    },
    /// Nobody reports.
    #[error("no rank reports")]
    Nobody,
}

/// Merges the reports of all ranks. Their order does not matter.
///
/// # Errors
/// Two ranks stand after different decisions.
pub fn merge(reports: &[Report]) -> Result<Agreed, ExchangeError> {
    let first = reports.iter().min_by_key(|report| report.rank).ok_or(ExchangeError::Nobody)?;
    let other = reports.iter().filter(|report| report.applied != first.applied).min_by_key(|report| report.rank);
    if let Some(other) = other {
        return Err(ExchangeError::Diverged(Box::new(first.clone()), Box::new(other.clone())));
    }
    let mut rooms: BTreeMap<RoomKey, RoomSeen> = BTreeMap::new();
    for key in reports.iter().flat_map(|report| report.rooms.keys()) {
        rooms.entry(*key).or_insert_with(|| agree(reports, *key));
    }
    let mut copies = BTreeMap::new();
    for id in reports.iter().flat_map(|report| report.copies.keys()) {
        copies.entry(*id).or_insert_with(|| agree_on_copy(reports, *id));
    }
    let peers = merge_peers(reports.iter().map(|report| report.peers.as_slice()));
    Ok(Agreed { applied: first.applied, rooms, copies, peers })
}

fn agree_on_copy(reports: &[Report], id: CopyId) -> CopySeen {
    let seen = || reports.iter().map(|report| report.copies.get(&id).unwrap_or(&CopySeen::Moving));
    let reason = |seen: &CopySeen| if let CopySeen::Failed(reason) = seen { Some(reason.clone()) } else { None };
    match seen().filter_map(reason).min_by(|a, b| (a.code, &a.text).cmp(&(b.code, &b.text))) {
        Some(reason) => CopySeen::Failed(reason),
        None => seen().min_by_key(|seen| seen.level()).cloned().unwrap_or(CopySeen::Moving),
    }
}

fn agree(reports: &[Report], key: RoomKey) -> RoomSeen {
    let nothing = RoomSeen::default();
    let seen: Vec<&RoomSeen> = reports.iter().map(|report| report.rooms.get(&key).unwrap_or(&nothing)).collect();
    let (arrived, arrivals_differ) = common(seen.iter().map(|seen| &seen.arrived));
    let (done, records_differ) = common(seen.iter().map(|seen| &seen.done));
    let mut landed = seen[0].landed;
    seen.iter().for_each(|seen| landed = landed.both(seen.landed));
    let reasons = seen.iter().filter_map(|seen| seen.failed.clone());
    let differ = Reason::new(Code::Protocol, "ranks were told different things about the room");
    let differ = (arrivals_differ || records_differ).then_some(differ);
    let failed = reasons.chain(differ).min_by(|a, b| (a.code, &a.text).cmp(&(b.code, &b.text)));
    RoomSeen { arrived, landed, done, failed, quiet: seen.iter().all(|seen| seen.quiet) }
}

/// A record that all have, and whether any two have different ones.
fn common<'a>(records: impl Iterator<Item = &'a Option<Arc<[u8]>>> + Clone) -> (Option<Arc<[u8]>>, bool) {
    let mut there = records.clone().flatten();
    let first = there.next();
    let differ = there.any(|record| Some(record) != first);
    let everywhere = !differ && records.clone().all(Option::is_some);
    (first.filter(|_| everywhere).cloned(), differ)
}

/// What a decision has every rank do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Decode: ask the prefill rank of the same number. From here on it may write these landing pages.
    Open {
        /// New room.
        key: RoomKey,
        /// Which prefill server, counted as in [`Report::peers`].
        server: u32,
        /// The request as the engine writes it.
        request: Arc<[u8]>,
        /// Landing pages.
        pages: PagesByClass,
    },
    /// Prefill: the request is taken; its pages will stand in these arena pages.
    Accept {
        /// Room that arrived.
        key: RoomKey,
        /// Pages of the own arena.
        pages: PagesByClass,
    },
    /// Prefill: every unit has been handed over for sending; say so when the last has landed.
    Done {
        /// Room.
        key: RoomKey,
        /// What decode needs beside the pages, as the engine writes it.
        handover: Arc<[u8]>,
    },
    /// Decode: the text goes on here. The room's outcome is final.
    Taken {
        /// Room.
        key: RoomKey,
    },
    /// Either side: the room has failed; stop and prove quiet. Of a room not known here: it is quiet.
    Abort {
        /// Room.
        key: RoomKey,
        /// Why.
        reason: Reason,
    },
    /// Either side: the room is quiet on every rank and nobody asks for it any more.
    Forget {
        /// Room.
        key: RoomKey,
    },
}

impl Command {
    /// The room.
    pub fn key(&self) -> RoomKey {
        match self {
            Command::Open { key, .. } | Command::Accept { key, .. } | Command::Done { key, .. } => *key,
            Command::Taken { key } | Command::Abort { key, .. } | Command::Forget { key } => *key,
        }
    }

    /// Bytes that two commands have in common only if they are equal.
    fn put(&self, bytes: &mut Vec<u8>) {
        let number = |bytes: &mut Vec<u8>, number: u64| bytes.extend_from_slice(&number.to_le_bytes());
        let text = |bytes: &mut Vec<u8>, text: &[u8]| {
            number(bytes, text.len() as u64);
            bytes.extend_from_slice(text);
        };
        let lists = |bytes: &mut Vec<u8>, lists: &PagesByClass| {
            number(bytes, lists.len() as u64);
            for list in lists {
                number(bytes, list.len() as u64);
                list.iter().for_each(|&page| number(bytes, u64::from(page)));
            }
        };
        let key = self.key();
        number(bytes, key.room);
        number(bytes, u64::from(key.epoch));
        match self {
            Command::Open { server, request, pages, .. } => {
                bytes.push(1);
                number(bytes, u64::from(*server));
                text(bytes, request);
                lists(bytes, pages);
            }
            Command::Accept { pages, .. } => {
                bytes.push(2);
                lists(bytes, pages);
            }
            Command::Done { handover, .. } => {
                bytes.push(3);
                text(bytes, handover);
            }
            Command::Taken { .. } => bytes.push(4),
            Command::Abort { reason, .. } => {
                bytes.extend([5, reason.code as u8]);
                text(bytes, reason.text.as_bytes());
            }
            Command::Forget { .. } => bytes.push(6),
        }
    }
}

/// What all ranks do next: D(k).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Number, from 1, without gaps.
    pub number: u64,
    /// Hash of the decision before it, 0 before the first.
    pub follows: u64,
    /// In this order.
    pub commands: Vec<Command>,
}

impl Decision {
    /// Hash over everything in it.
    pub fn hash(&self) -> u64 {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.follows.to_le_bytes());
        bytes.extend_from_slice(&(self.commands.len() as u64).to_le_bytes());
        self.commands.iter().for_each(|command| command.put(&mut bytes));
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// The end of a chain of decisions: the coordinator's, which makes them, or a rank's, which carries them out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chain {
    last: Applied,
}

impl Chain {
    /// The last decision.
    pub fn last(&self) -> Applied {
        self.last
    }

    /// The next decision.
    pub fn decide(&mut self, commands: Vec<Command>) -> Decision {
        let decision = Decision { number: self.last.number + 1, follows: self.last.hash, commands };
        self.last = Applied { number: decision.number, hash: decision.hash() };
        decision
    }

    /// Accepts a decision of somebody else.
    ///
    /// # Errors
    /// It does not follow the last one.
    pub fn follow(&mut self, decision: &Decision) -> Result<(), ExchangeError> {
        let Decision { number, follows, .. } = *decision;
        if (number, follows) != (self.last.number + 1, self.last.hash) {
            return Err(ExchangeError::Chain { number, follows, last: self.last });
        }
        self.last = Applied { number, hash: decision.hash() };
        Ok(())
    }
}
