//! Rooms of the side that asks: pages reserved, OPEN, units landed and copied into the cache, the text going on.

use super::{ArenaPages, Orders, Side};
use crate::handover::{Export, Handover, HandoverRecord, Import, PageMove, PrefillRequest, prompt_hash};
use crate::ids::SequenceId;
use crate::scheduler::{AddError, Reserved, Scheduler};
use crate::sequence::{Event, FinishReason, Request};
use crate::step::StepPlan;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use transfer::exchange::{Agreed, Command, RoomSeen};
use transfer::fault::Faults;
use transfer::ids::RoomKey;
use transfer::layout::PagesByClass;
use transfer::reason::{Code, Reason};
use transfer::room::UnitSet;

#[derive(Debug)]
struct Room {
    sequence: SequenceId,
    landing: PagesByClass,
    moves: Arc<[PageMove]>,
    generation: crate::ids::Generation,
    /// Units whose copy into the cache has been ordered.
    ordered: UnitSet,
    /// Orders in flight that copy.
    filling: u32,
    done: Option<Arc<[u8]>>,
    /// The request has gone on or ended: only quiet is waited for.
    over: bool,
}

/// Rooms of a decode server.
#[derive(Debug)]
pub struct Decode {
    arena: ArenaPages,
    num_units: u32,
    rooms: BTreeMap<RoomKey, Room>,
    by_sequence: BTreeMap<SequenceId, RoomKey>,
    /// What was asked, until the room is over.
    requests: BTreeMap<SequenceId, PrefillRequest>,
    /// Requests with cache pages and without landing pages.
    unopened: VecDeque<Reserved>,
    next_room: u64,
}

/// Below 2^63, so that a process never comes to the end of its numbers.
fn first_room() -> u64 {
    RandomState::new().hash_one(0) >> 1
}

impl Decode {
    /// No rooms, over an arena as `handover` lays it out. Rooms are counted from a number drawn at random: a prefill server
    /// remembers those of other decode servers and of a process that was here before, and refuses a number that was used.
    pub fn new(handover: &Handover) -> Self {
        Self {
            arena: ArenaPages::new(handover.layout()),
            num_units: handover.layout().num_units(),
            rooms: BTreeMap::new(),
            by_sequence: BTreeMap::new(),
            requests: BTreeMap::new(),
            unopened: VecDeque::new(),
            next_room: first_room(),
        }
    }

    /// With faults of [`Point::Quarantine`](transfer::fault::Point::Quarantine).
    #[must_use]
    pub fn with_faults(mut self, faults: Arc<Faults>) -> Self {
        self.arena.set_faults(faults);
        self
    }

    /// The landing pages, to look at.
    pub fn arena(&self) -> &ArenaPages {
        &self.arena
    }

    /// Rooms that are not forgotten yet.
    pub fn num_rooms(&self) -> usize {
        self.rooms.len()
    }

    /// The request needs its room no longer.
    fn drop_room(&mut self, id: SequenceId, reason: Reason, orders: &mut Orders) {
        self.requests.remove(&id);
        self.unopened.retain(|reserved| reserved.sequence != id);
        let Some(key) = self.by_sequence.remove(&id) else { return };
        let Some(room) = self.rooms.get_mut(&key).filter(|room| !room.over) else { return };
        room.over = true;
        orders.commands.push(Command::Abort { key, reason });
    }

    /// Landing pages and OPEN for who has cache pages, in order. A prompt that no landing arena holds is computed here.
    fn open(&mut self, scheduler: &mut Scheduler, orders: &mut Orders) {
        while let Some(reserved) = self.unopened.front() {
            let counts = reserved.needed.counts();
            if !self.arena.could_hold(&counts) {
                scheduler.compute_here(reserved.sequence);
                self.requests.remove(&reserved.sequence);
                self.unopened.pop_front();
                continue;
            }
            let Some(asked) = self.requests.get_mut(&reserved.sequence) else {
                self.unopened.pop_front();
                continue;
            };
            let Some(landing) = self.arena.take(&counts) else { return };
            let Some(reserved) = self.unopened.pop_front() else { return };
            let Reserved { sequence, held, needed, compressed, window, request_slot, generation } = reserved;
            let key = RoomKey { room: self.next_room, epoch: 1 };
            self.next_room += 1;
            let cache = needed.pages(&compressed, &window, request_slot).expect("pages were reserved");
            asked.held = held;
            let request = Arc::from(asked.encode());
            orders.commands.push(Command::Open { key, request, pages: landing.clone() });
            let moves = PageMove::pairs(&cache, &landing).into();
            let room = Room {
                sequence,
                landing,
                moves,
                generation,
                ordered: UnitSet::default(),
                filling: 0,
                done: None,
                over: false,
            };
            self.by_sequence.insert(sequence, key);
            self.rooms.insert(key, room);
        }
    }

    /// The text of a room goes on, if its record is that of its request.
    fn start(&mut self, key: RoomKey, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>) {
        let Some(room) = self.rooms.get(&key) else { return };
        let (sequence, Some(done)) = (room.sequence, room.done.clone()) else { return };
        let asked = self.requests.get(&sequence);
        let record = HandoverRecord::decode(&done).map_err(|error| error.to_string()).and_then(|record| {
            let expected = asked.map(|asked| (asked.prompt.len() as u32, prompt_hash(&asked.prompt)));
            let got = (record.prompt_tokens, record.prompt_hash);
            match expected == Some(got) && record.first.cached_tokens < record.prompt_tokens {
                true => Ok(record),
                false => Err(format!("handover record: expected prompt {expected:?} (tokens, hash), got {got:?}")),
            }
        });
        match record {
            Ok(record) => {
                events.extend(scheduler.start(sequence, &record.first));
                self.requests.remove(&sequence);
                self.by_sequence.remove(&sequence);
                self.rooms.entry(key).and_modify(|room| room.over = true);
                orders.commands.push(Command::Taken { key });
            }
            Err(why) => self.fail(sequence, Reason::new(Code::Protocol, why), scheduler, orders, events),
        }
    }

    fn fail(
        &mut self,
        sequence: SequenceId,
        reason: Reason,
        scheduler: &mut Scheduler,
        orders: &mut Orders,
        events: &mut Vec<Event>,
    ) {
        events.extend(scheduler.end_with(sequence, FinishReason::Failed(reason.to_string())));
        self.drop_room(sequence, reason, orders);
    }
}

impl Side for Decode {
    fn add(&mut self, request: Request, scheduler: &mut Scheduler) -> Result<SequenceId, AddError> {
        let asked = PrefillRequest { prompt: request.prompt.clone(), sampling: request.sampling, held: 0 };
        let id = scheduler.add_remote(request)?;
        self.requests.insert(id, asked);
        Ok(id)
    }

    fn cancel(&mut self, id: SequenceId, scheduler: &mut Scheduler, orders: &mut Orders) -> Option<Event> {
        let event = scheduler.cancel(id)?;
        self.drop_room(id, Reason::new(Code::Aborted, "the request was cancelled"), orders);
        Some(event)
    }

    fn prepare(&mut self, scheduler: &mut Scheduler, orders: &mut Orders) {
        while let Some(id) = scheduler.take_preempted() {
            self.drop_room(id, Reason::new(Code::Aborted, "preempted: the prompt is computed here"), orders);
        }
        while let Some(reserved) = scheduler.take_reserved() {
            self.unopened.push_back(reserved);
        }
        self.open(scheduler, orders);
        // Copies that were ordered for requests which have ended since are not made.
        let rooms = &mut self.rooms;
        orders.imports.retain(|import| {
            let Some(room) = rooms.get_mut(&import.key) else { return false };
            let fills = !room.over && scheduler.filling(room.sequence);
            room.filling += u32::from(fills);
            fills
        });
    }

    fn exports(&mut self, _: &StepPlan) -> Vec<Export> {
        Vec::new()
    }

    fn carried_out(&mut self, imports: &[Import], scheduler: &mut Scheduler) {
        for import in imports {
            let room = self.rooms.get_mut(&import.key).expect("a room stays while an order copies its pages");
            room.filling -= 1;
            scheduler.filled(room.sequence);
        }
    }

    fn take_in(&mut self, agreed: &Agreed, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>) {
        let nothing = RoomSeen::default();
        let keys: Vec<RoomKey> = self.rooms.keys().copied().collect();
        for key in keys {
            let seen = agreed.rooms.get(&key).unwrap_or(&nothing);
            let Some(room) = self.rooms.get_mut(&key) else { continue };
            if room.over {
                if room.filling == 0 && self.arena.may_leave(seen.quiet) {
                    self.arena.give_back(std::mem::take(&mut room.landing));
                }
                if room.filling == 0 && seen.quiet {
                    self.rooms.remove(&key);
                    orders.commands.push(Command::Forget { key });
                }
                continue;
            }
            if let Some(reason) = &seen.failed {
                let sequence = room.sequence;
                self.fail(sequence, reason.clone(), scheduler, orders, events);
                continue;
            }
            let units: Vec<_> = seen.landed.iter().filter(|&unit| room.ordered.insert(unit)).collect();
            if !units.is_empty() {
                let (pages, generation) = (Arc::clone(&room.moves), room.generation);
                orders.imports.push(Import { key, units, pages, generation });
            }
            room.done = seen.done.clone();
            let waits = orders.imports.iter().any(|import| import.key == key);
            if room.ordered.len() == self.num_units && room.filling == 0 && !waits && room.done.is_some() {
                self.start(key, scheduler, orders, events);
            }
        }
    }

    fn is_waiting(&self) -> bool {
        !self.rooms.is_empty()
    }
}
