//! The rooms of one rank: what its thread does for them around a forward.

use super::{Export, Handover, Import, Order, PageRun};
use crate::model::cache::{Caches, refused};
use crate::model::{LayerSink, NoSink};
use reference::ops::{Ops, OpsError};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use transfer::exchange::{Chain, Command, ExchangeError, PortError, Report, RoomPort, RoomSeen};
use transfer::gate::PendingPages;
use transfer::ids::{RoomKey, Unit};

/// A rank's end of the rooms, and its arena.
#[derive(Debug)]
pub struct RankRooms {
    handover: Handover,
    port: Box<dyn RoomPort>,
    /// Cache pages of rooms that are landing.
    landing: BTreeMap<RoomKey, Vec<PendingPages>>,
}

impl RankRooms {
    /// A port whose arena is laid out as `handover` says.
    pub fn new(handover: Handover, port: Box<dyn RoomPort>) -> Self {
        Self { handover, port, landing: BTreeMap::new() }
    }
}

/// What a rank keeps between exchanges. A rank of an engine without rooms takes part all the same.
#[derive(Debug, Default)]
pub(crate) struct RankExchange {
    chain: Chain,
    rooms: Option<RankRooms>,
}

impl RankExchange {
    pub(crate) fn new(rooms: Option<RankRooms>) -> Self {
        Self { chain: Chain::default(), rooms }
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

    /// Copies landed units into the cache.
    pub(crate) fn import<O: Ops>(
        &mut self,
        ops: &O,
        caches: &mut Caches<O::Buffer>,
        imports: &[Import],
    ) -> Result<(), OpsError> {
        let Some(RankRooms { handover, port, landing }) = &mut self.rooms else { return Ok(()) };
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

    /// Where a forward reports its layers.
    pub(crate) fn sink<'a, O: Ops>(&'a mut self, exports: &'a [Export]) -> Box<dyn LayerSink<O> + 'a> {
        match &mut self.rooms {
            Some(rooms) if !exports.is_empty() => Box::new(Exporting { rooms, exports }),
            _ => Box::new(NoSink),
        }
    }

    /// The one moment at which this rank looks at its rooms.
    pub(crate) fn report(&mut self, rank: u32) -> Report {
        let view = |rooms: &mut RankRooms| -> BTreeMap<RoomKey, RoomSeen> { rooms.port.view() };
        let rooms = self.rooms.as_mut().map(view).unwrap_or_default();
        Report { rank, applied: self.chain.last(), rooms, ..Report::default() }
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

/// Copies the pages of a layer into the arena as soon as the layer has written them.
struct Exporting<'a> {
    rooms: &'a mut RankRooms,
    exports: &'a [Export],
}

impl<O: Ops> LayerSink<O> for Exporting<'_> {
    fn layer_done(&mut self, ops: &O, caches: &Caches<O::Buffer>, layer: usize) -> Result<(), OpsError> {
        let RankRooms { handover, port, .. } = &mut *self.rooms;
        let unit = Unit(layer as u32);
        for export in self.exports {
            let mut put = |at: u64, page: &[u8]| port.write(at, page).map_err(|error| error.to_string());
            handover.export(ops, caches, unit, &export.pages, &export.runs, &mut put)?;
            let failed = |error: PortError| OpsError::Device { device: ops.name(), message: error.to_string() };
            port.layer_done(export.key, unit).map_err(failed)?;
        }
        Ok(())
    }
}
