//! The rooms and the host tier of one rank: what its thread does for them around a forward.

use super::{Export, Handover, Import, Order, PageRun};
use crate::host_tier::HostTier;
use crate::model::LayerHook;
use crate::model::cache::{Caches, refused};
use reference::ops::{Ops, OpsError};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use transfer::exchange::{Chain, Command, CopyId, ExchangeError, PortError, Report, RoomPort};
use transfer::fault::{Fault, Faults, Point};
use transfer::gate::PendingPages;
use transfer::ids::{RoomKey, Unit};

/// A rank's end of the rooms, and its arena.
#[derive(Debug)]
pub struct RankRooms {
    handover: Handover,
    port: Box<dyn RoomPort>,
    /// Cache pages of rooms that are landing.
    landing: BTreeMap<RoomKey, Vec<PendingPages>>,
    faults: Arc<Faults>,
}

impl RankRooms {
    /// A port whose arena is laid out as `handover` says.
    pub fn new(handover: Handover, port: Box<dyn RoomPort>) -> Self {
        Self { handover, port, landing: BTreeMap::new(), faults: Arc::new(Faults::none()) }
    }

    /// With faults of [`Point::Exchange`], by the rank's number.
    #[must_use]
    pub fn with_faults(self, faults: Arc<Faults>) -> Self {
        Self { faults, ..self }
    }
}

/// What a rank takes along beside its model.
#[derive(Debug, Default)]
pub struct RankParts {
    /// Its end of the rooms, in one of two halves.
    pub rooms: Option<RankRooms>,
    /// Its tier in host memory.
    pub host: Option<HostTier>,
}

impl From<RankRooms> for RankParts {
    fn from(rooms: RankRooms) -> Self {
        Self { rooms: Some(rooms), host: None }
    }
}

impl From<HostTier> for RankParts {
    fn from(host: HostTier) -> Self {
        Self { rooms: None, host: Some(host) }
    }
}

/// What a rank keeps between exchanges. A rank of an engine without rooms takes part all the same.
#[derive(Debug, Default)]
pub(crate) struct RankExchange {
    chain: Chain,
    rooms: Option<RankRooms>,
    host: Option<HostTier>,
    /// A fault keeps this rank's answers back.
    withheld: bool,
}

impl RankExchange {
    pub(crate) fn new(parts: RankParts) -> Self {
        let RankParts { rooms, host } = parts;
        Self { rooms, host, ..Self::default() }
    }

    /// Takes a decision and carries out its commands.
    pub(crate) fn obey(&mut self, order: &Order) -> Result<(), ObeyError> {
        self.chain.follow(&order.decision)?;
        let Some(rooms) = &mut self.rooms else { return Ok(()) };
        for command in &order.decision.commands {
            if matches!(command, Command::Taken { .. } | Command::Abort { .. }) {
                rooms.landing.remove(&command.key());
            }
        }
        order.decision.commands.iter().try_for_each(|command| rooms.port.apply(command)).map_err(ObeyError::Port)
    }

    /// What stands before the step: drops and loads of the host tier, landed units into the cache.
    pub(crate) fn before_step<O: Ops>(
        &mut self,
        ops: &O,
        caches: &mut Caches<O::Buffer>,
        order: &Order,
    ) -> Result<(), OpsError> {
        match &mut self.host {
            Some(host) => host.begin(ops, caches, &order.host)?,
            None if order.host.is_empty() => {}
            None => return Err(refused(ops)("a copy to or from host memory was ordered, and this rank has no tier")),
        }
        self.import(ops, caches, &order.imports)
    }

    /// What stands behind the step: pages to save are read.
    pub(crate) fn behind_step<O: Ops>(
        &mut self,
        ops: &O,
        caches: &Caches<O::Buffer>,
        order: &Order,
    ) -> Result<(), OpsError> {
        self.host.as_mut().map_or(Ok(()), |host| host.save(ops, caches, &order.host.saves))
    }

    /// Copies landed units into the cache.
    fn import<O: Ops>(&mut self, ops: &O, caches: &mut Caches<O::Buffer>, imports: &[Import]) -> Result<(), OpsError> {
        let Some(RankRooms { handover, port, landing, .. }) = &mut self.rooms else { return Ok(()) };
        let mut get = |at: u64, page: &mut [u8]| port.read(at, page).map_err(|error| error.to_string());
        for import in imports {
            let pending = match landing.entry(import.key) {
                Entry::Occupied(pending) => pending.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(PageRun::claim(&import.runs(), caches.gate()).map_err(refused(ops))?)
                }
            };
            for &unit in &import.units {
                handover.import(ops, caches, unit, &import.pages, &mut get)?;
                let published = pending.iter().try_for_each(|pages| caches.gate().publish(unit, pages));
                published.map_err(refused(ops))?;
            }
        }
        Ok(())
    }

    /// Who has something to do between the layers of a step with these reads and exports. Nobody: it may be one piece of work.
    pub(crate) fn hook<'a>(&'a mut self, read: &[PageRun], exports: &'a [Export]) -> Option<Between<'a>> {
        let loads = self.host.as_ref().map(|host| host.awaited(read)).unwrap_or_default();
        let rooms = self.rooms.as_mut().filter(|_| !exports.is_empty());
        let host = self.host.as_mut().filter(|_| !loads.is_empty());
        (rooms.is_some() || host.is_some()).then_some(Between { rooms, exports, host, loads })
    }

    /// What a fault makes of an answer: later, of another decision, or none from now on.
    pub(crate) fn hand_in(&mut self, mut report: Report) -> Option<Report> {
        let rank = report.rank;
        let faults = self.rooms.as_ref().map(|rooms| &rooms.faults).filter(|faults| faults.any(Point::Exchange));
        let Some(hit) = faults.and_then(|faults| faults.at(Point::Exchange, &rank.to_string())) else {
            return (!self.withheld).then_some(report);
        };
        match hit.fault {
            Fault::Delay => std::thread::sleep(Duration::from_millis(hit.number)),
            Fault::Withhold => self.withheld = true,
            Fault::UnequalHash => report.applied.hash ^= 1,
            _ => {}
        }
        (!self.withheld).then_some(report)
    }

    /// The one moment at which this rank looks at its rooms.
    pub(crate) fn report(&mut self, rank: u32) -> Report {
        let copies = self.host.as_mut().map(HostTier::view).unwrap_or_default();
        let report = Report { rank, applied: self.chain.last(), copies, ..Report::default() };
        let Some(RankRooms { port, .. }) = &mut self.rooms else { return report };
        // Rooms first: where one failed with its server, the server is seen to be down.
        let rooms = port.view();
        Report { rooms, peers: port.peers(), ..report }
    }
}

/// Why a decision could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObeyError {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    Port(PortError),
}

/// Before a layer, waits for what is loaded into it; behind it, copies its pages into the arena as soon as they are written.
pub(crate) struct Between<'a> {
    rooms: Option<&'a mut RankRooms>,
    exports: &'a [Export],
    host: Option<&'a mut HostTier>,
    /// Loads that the step reads.
    loads: Vec<CopyId>,
}

impl<O: Ops> LayerHook<O> for Between<'_> {
    fn layer_begins(&mut self, ops: &O, caches: &mut Caches<O::Buffer>, layer: usize) -> Result<(), OpsError> {
        let Some(host) = &mut self.host else { return Ok(()) };
        host.await_unit(ops, caches, Unit(layer as u32), &self.loads)
    }

    fn layer_done(&mut self, ops: &O, caches: &Caches<O::Buffer>, layer: usize) -> Result<(), OpsError> {
        let Some(RankRooms { handover, port, .. }) = &mut self.rooms else { return Ok(()) };
        let unit = Unit(layer as u32);
        for export in self.exports {
            let mut put = |at: u64, page: &[u8]| port.write(at, page).map_err(|error| error.to_string());
            handover.export(ops, caches, unit, &export.pages, &export.runs, &mut put)?;
            port.layer_done(export.key, unit).map_err(refused(ops))?;
        }
        Ok(())
    }
}
