//! What the driver compares, and what it shows.

use super::{MISSES, Run};
use crate::checksum::{self, Place};
use crate::driver::net::Net;
use crate::driver::{PeerStatus, Snapshot};
use crate::endpoint::RoomView;
use crate::hello::Side;
use crate::ids::{RoomKey, Unit};
use crate::reason::{Code, Reason};
use crate::room::{Outcome, UnitSet};

impl<N: Net> Run<N> {
    /// Sums of a unit in the own arena; none where the room is over.
    pub(super) fn sums(&self, key: RoomKey, unit: Unit) -> Vec<u64> {
        let Some(pages) = self.sources.get(&key) else { return Vec::new() };
        let place = Place { arena: &self.arena, layout: &self.layout, pages };
        checksum::sums(place, unit).unwrap_or_else(|error| {
            tracing::warn!(%key, %unit, %error, "sums");
            Vec::new()
        })
    }

    /// Compares what has landed since the last look.
    pub(super) fn verify(&mut self) {
        let view = self.endpoint.view();
        for (key, room) in view {
            if matches!(room.outcome, Outcome::Failed(_)) {
                continue;
            }
            let checked = self.checked.entry(key).or_default();
            let mut failed = None;
            for unit in room.landed.without(checked.units).iter() {
                let sums = self.endpoint.checksums(key, unit).unwrap_or_default();
                let place = Place { arena: &self.arena, layout: &self.layout, pages: &room.pages };
                let report = match checksum::verify(place, unit, sums) {
                    Ok(report) => report,
                    Err(error) => {
                        failed = Some(error.to_string());
                        break;
                    }
                };
                checked.units.insert(unit);
                let matches = report.matches();
                self.misses.extend(report.misses.iter().take(MISSES.saturating_sub(self.misses.len())).cloned());
                checked.report.extend(report);
                if !matches {
                    failed = Some(checked.report.to_string());
                }
                self.changed = true;
            }
            let complete = room.handover.is_some() && room.landed.without(checked.units).is_empty();
            if (complete || failed.is_some()) && !std::mem::replace(&mut checked.counted, true) {
                self.verified.add(&checked.report);
            }
            if let Some(why) = failed {
                let now = self.now();
                self.endpoint.abort(key, Reason::new(Code::Checksum, why), now);
                self.changed = true;
            }
        }
    }

    pub(super) fn show(&self) {
        let mut rooms = self.endpoint.view();
        if self.config.verify && self.endpoint.side() == Side::Decode {
            for (key, room) in &mut rooms {
                self.hide_unchecked(*key, room);
            }
        }
        let peer = |peer: crate::endpoint::PeerView<'_>| PeerStatus {
            id: peer.id,
            name: peer.hello.map(|hello| hello.name.clone()).unwrap_or_default(),
            incarnation: peer.hello.map_or(0, |hello| hello.incarnation),
            ready: peer.ready,
        };
        self.shared.replace(Snapshot {
            rooms,
            ghosts: self.ghosts.clone(),
            targets: self.targets.seen(|id| self.endpoint.is_ready(id) && self.admitted.contains(&id)),
            moving: self.moving.total(self.now()),
            peers: self.endpoint.peers().map(peer).collect(),
            errors: self.endpoint.errors().clone(),
            counters: self.transport.counters(),
            verified: self.verified,
            misses: self.misses.clone(),
        });
    }

    fn hide_unchecked(&self, key: RoomKey, room: &mut RoomView) {
        let checked = self.checked.get(&key).map_or(UnitSet::EMPTY, |checked| checked.units);
        let unchecked = room.landed.without(checked);
        if !unchecked.is_empty() {
            room.landed = room.landed.without(unchecked);
            room.handover = None;
        }
    }
}
