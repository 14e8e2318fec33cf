//! Rooms of the side that computes prompts for others.

use super::{ArenaPages, Orders, Side};
use crate::geometry::CacheShape;
use crate::handover::{Export, Handover, HandoverRecord, Import, Needed, PrefillRequest, prompt_hash};
use crate::ids::SequenceId;
use crate::scheduler::Scheduler;
use crate::sequence::{Event, FinishReason, Request};
use crate::step::StepPlan;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use transfer::exchange::{Agreed, Command, RoomSeen};
use transfer::fault::Faults;
use transfer::ids::RoomKey;
use transfer::layout::PagesByClass;
use transfer::reason::{Code, Reason};

#[derive(Debug)]
struct Room {
    sequence: Option<SequenceId>,
    request: PrefillRequest,
    needed: Needed,
    pages: PagesByClass,
    /// DONE was ordered, or the room has failed: only quiet is waited for.
    over: bool,
}

/// Rooms of a prefill server.
#[derive(Debug)]
pub struct Prefill {
    arena: ArenaPages,
    shape: CacheShape,
    rooms: BTreeMap<RoomKey, Room>,
    by_sequence: BTreeMap<SequenceId, RoomKey>,
    /// Rooms without arena pages.
    waiting: VecDeque<RoomKey>,
    /// Rooms that the ranks have been told to forget and may still report.
    forgotten: BTreeSet<RoomKey>,
}

impl Prefill {
    /// No rooms, over an arena as `handover` lays it out.
    pub fn new(handover: &Handover, shape: CacheShape) -> Self {
        let arena = ArenaPages::new(handover.layout());
        Self {
            arena,
            shape,
            rooms: BTreeMap::new(),
            by_sequence: BTreeMap::new(),
            waiting: VecDeque::new(),
            forgotten: BTreeSet::new(),
        }
    }

    /// With faults of [`Point::Quarantine`](transfer::fault::Point::Quarantine).
    #[must_use]
    pub fn with_faults(mut self, faults: Arc<Faults>) -> Self {
        self.arena.set_faults(faults);
        self
    }

    /// The pages of the arena, to look at.
    pub fn arena(&self) -> &ArenaPages {
        &self.arena
    }

    /// Rooms that are not forgotten yet.
    pub fn num_rooms(&self) -> usize {
        self.rooms.len()
    }

    /// A room that all ranks have been asked for, or that failed before they were.
    fn arrive(&mut self, key: RoomKey, seen: &RoomSeen, orders: &mut Orders) {
        if let Some(reason) = &seen.failed {
            return self.refuse(key, reason.clone(), orders);
        }
        let Some(bytes) = &seen.arrived else { return };
        match self.read(bytes) {
            Ok((request, needed)) => {
                let pages = Vec::new();
                self.rooms.insert(key, Room { sequence: None, request, needed, pages, over: false });
                self.waiting.push_back(key);
            }
            Err(why) => self.refuse(key, Reason::new(Code::Refused, why), orders),
        }
    }

    fn read(&self, bytes: &[u8]) -> Result<(PrefillRequest, Needed), String> {
        let request = PrefillRequest::decode(bytes).map_err(|error| error.to_string())?;
        let (held, tokens, page) = (request.held, request.prompt.len() as u32, self.shape.page_tokens);
        if !held.is_multiple_of(page) || held >= tokens {
            return Err(format!("held tokens: expected a multiple of {page} below {tokens}, got {held}"));
        }
        let needed = Needed::at(&self.shape, held, tokens);
        match self.arena.could_hold(&needed.counts()) {
            true => Ok((request, needed)),
            false => Err(format!("a prompt of {tokens} tokens needs more pages than the arena has")),
        }
    }

    fn refuse(&mut self, key: RoomKey, reason: Reason, orders: &mut Orders) {
        let request = PrefillRequest { prompt: Vec::new(), sampling: crate::step::Sampling::GREEDY, held: 0 };
        let needed = Needed { compressed: 0..0, window: 0..0, request: false };
        self.rooms.insert(key, Room { sequence: None, request, needed, pages: Vec::new(), over: true });
        orders.commands.push(Command::Abort { key, reason });
    }

    fn fail(&mut self, key: RoomKey, reason: Reason, scheduler: &mut Scheduler, orders: &mut Orders) {
        let Some(room) = self.rooms.get_mut(&key).filter(|room| !room.over) else { return };
        room.over = true;
        self.waiting.retain(|&waiting| waiting != key);
        if let Some(sequence) = room.sequence {
            self.by_sequence.remove(&sequence);
            // Nobody here is told: the client is the other side's.
            let _ = scheduler.cancel(sequence);
        }
        orders.commands.push(Command::Abort { key, reason });
    }

    /// Arena pages for waiting rooms, in order.
    fn accept(&mut self, scheduler: &mut Scheduler, orders: &mut Orders) {
        while let Some(&key) = self.waiting.front() {
            let Some(room) = self.rooms.get_mut(&key) else { return };
            let Some(pages) = self.arena.take(&room.needed.counts()) else { return };
            self.waiting.pop_front();
            room.pages = pages.clone();
            let PrefillRequest { prompt, sampling, .. } = room.request.clone();
            match scheduler.add_prefill(Request { prompt, max_tokens: 1, stop: Vec::new(), sampling }) {
                Ok(sequence) => {
                    room.sequence = Some(sequence);
                    self.by_sequence.insert(sequence, key);
                    orders.commands.push(Command::Accept { key, pages });
                }
                Err(error) => self.fail(key, Reason::new(Code::Refused, error.to_string()), scheduler, orders),
            }
        }
    }
}

impl Side for Prefill {
    fn prepare(&mut self, scheduler: &mut Scheduler, orders: &mut Orders, _: &mut Vec<Event>) {
        while let Some(prefilled) = scheduler.take_prefilled() {
            // The pages stand in the arena: the step that copied them has been carried out.
            scheduler.release(prefilled.sequence);
            let Some(key) = self.by_sequence.remove(&prefilled.sequence) else { continue };
            let Some(room) = self.rooms.get_mut(&key).filter(|room| !room.over) else { continue };
            room.over = true;
            let record = HandoverRecord {
                first: prefilled.first,
                prompt_tokens: room.request.prompt.len() as u32,
                prompt_hash: prompt_hash(&room.request.prompt),
            };
            orders.commands.push(Command::Done { key, handover: Arc::from(record.encode()) });
        }
        self.accept(scheduler, orders);
    }

    fn exports(&mut self, plan: &StepPlan) -> Vec<Export> {
        let of_entry = |entry: &crate::step::StepEntry| {
            let key = *self.by_sequence.get(&entry.sequence)?;
            let room = self.rooms.get(&key).filter(|_| entry.emits)?;
            Export::of_entry(key, entry, &room.needed, &room.pages)
        };
        plan.entries.iter().filter_map(of_entry).collect()
    }

    fn carried_out(&mut self, _: &[Import], _: &mut Scheduler) {}

    fn take_in(&mut self, agreed: &Agreed, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>) {
        // A step that failed ends its requests; their rooms end with them.
        for event in events.drain(..) {
            let Event::Finished { sequence, reason: FinishReason::Failed(why), .. } = event else { continue };
            if let Some(&key) = self.by_sequence.get(&sequence) {
                self.fail(key, Reason::new(Code::Aborted, why), scheduler, orders);
            }
        }
        self.forgotten.retain(|key| agreed.rooms.contains_key(key));
        for (&key, seen) in agreed.rooms.iter().filter(|(key, _)| !self.forgotten.contains(key)).collect::<Vec<_>>() {
            let Some(room) = self.rooms.get_mut(&key) else {
                self.arrive(key, seen, orders);
                continue;
            };
            if room.over && self.arena.may_leave(seen.quiet) {
                self.arena.give_back(std::mem::take(&mut room.pages));
            }
            if room.over && seen.quiet {
                self.rooms.remove(&key);
                self.forgotten.insert(key);
                orders.commands.push(Command::Forget { key });
            } else if let Some(reason) = &seen.failed {
                self.fail(key, reason.clone(), scheduler, orders);
            }
        }
    }

    fn is_waiting(&self) -> bool {
        !self.rooms.is_empty()
    }
}
