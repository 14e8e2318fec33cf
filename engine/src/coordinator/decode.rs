//! Rooms of the side that asks: pages reserved, OPEN, units landed and copied into the cache, the text going on.

use super::servers::{Choice, Servers};
use super::{ArenaPages, Orders, Side};
use crate::geometry::CacheShape;
use crate::handover::{Export, Handover, HandoverRecord, Import, Needed, PageMove, PrefillRequest, prompt_hash};
use crate::ids::SequenceId;
use crate::scheduler::{AddError, Reserved, Scheduler};
use crate::sequence::{Event, FinishReason, Request};
use crate::step::StepPlan;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use transfer::exchange::{Agreed, Command, RoomSeen};
use transfer::fault::Faults;
use transfer::frame;
use transfer::ids::RoomKey;
use transfer::layout::PagesByClass;
use transfer::reason::{Code, Reason};
use transfer::room::UnitSet;

#[derive(Debug)]
struct Room {
    /// Cache pages of its request.
    reserved: Reserved,
    server: u32,
    landing: PagesByClass,
    moves: Arc<[PageMove]>,
    /// Units whose copy into the cache has been ordered.
    ordered: UnitSet,
    /// Orders in flight that copy.
    filling: u32,
    done: Option<Arc<[u8]>>,
    /// The request has gone on or ended: only quiet is waited for.
    over: bool,
}

/// What was asked.
#[derive(Debug)]
struct Asked {
    request: PrefillRequest,
    /// Servers asked so far.
    times: u32,
    /// How often the ranks had looked for servers when it came.
    since: u64,
}

/// Rooms of a decode server.
#[derive(Debug)]
pub struct Decode {
    arena: ArenaPages,
    shape: CacheShape,
    servers: Servers,
    num_units: u32,
    rooms: BTreeMap<RoomKey, Room>,
    by_sequence: BTreeMap<SequenceId, RoomKey>,
    /// What was asked, until the room is over.
    requests: BTreeMap<SequenceId, Asked>,
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
    pub fn new(handover: &Handover, shape: CacheShape) -> Self {
        Self {
            arena: ArenaPages::new(handover.layout()),
            shape,
            servers: Servers::default(),
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

    /// Refuses a prompt that no frame holds, if an arena holds its pages: otherwise it is computed here and never sent.
    fn check_size(&self, asked: &PrefillRequest) -> Result<(), AddError> {
        let tokens = asked.prompt.len();
        let needed = Needed::at(&self.shape, 0, u32::try_from(tokens).unwrap_or(u32::MAX)).counts();
        let (bytes, limit) = (frame::open_bytes(asked.encoded_bytes(), &needed), frame::MAX_BODY_BYTES);
        match bytes > limit && self.arena.could_hold(&needed) {
            true => Err(AddError::NeverSent { tokens, bytes, limit }),
            false => Ok(()),
        }
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
    fn open(&mut self, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>) {
        while let Some(reserved) = self.unopened.front() {
            let (sequence, counts) = (reserved.sequence, reserved.needed.counts());
            if !self.arena.could_hold(&counts) {
                scheduler.compute_here(sequence);
                self.requests.remove(&sequence);
                self.unopened.pop_front();
                continue;
            }
            let Some(asked) = self.requests.get_mut(&sequence) else {
                self.unopened.pop_front();
                continue;
            };
            let busy = |server| self.rooms.values().filter(|room| !room.over && room.server == server).count();
            let server = match self.servers.choose(self.next_room, asked.since, busy) {
                Choice::Server(server) => server,
                Choice::Unknown => return,
                Choice::Nobody(why) => {
                    events.extend(scheduler.end_with(sequence, FinishReason::Unavailable(why)));
                    self.requests.remove(&sequence);
                    self.unopened.pop_front();
                    continue;
                }
            };
            let Some(landing) = self.arena.take(&counts) else { return };
            let Some(reserved) = self.unopened.pop_front() else { return };
            let key = RoomKey { room: self.next_room, epoch: 1 };
            self.next_room += 1;
            let Reserved { needed, compressed, window, request_slot, .. } = &reserved;
            let cache = needed.pages(compressed, window, *request_slot).expect("pages were reserved");
            asked.request.held = reserved.held;
            asked.times += 1;
            let request = Arc::from(asked.request.encode());
            orders.commands.push(Command::Open { key, server, request, pages: landing.clone() });
            let moves = PageMove::pairs(&cache, &landing).into();
            let (ordered, filling, done, over) = (UnitSet::default(), 0, None, false);
            self.by_sequence.insert(sequence, key);
            self.rooms.insert(key, Room { reserved, server, landing, moves, ordered, filling, done, over });
        }
    }

    /// A room has failed. Where its server was lost before a page came, another one is asked; otherwise the request has failed.
    fn failed(
        &mut self,
        key: RoomKey,
        reason: &Reason,
        scheduler: &mut Scheduler,
        orders: &mut Orders,
        events: &mut Vec<Event>,
    ) {
        let Some(room) = self.rooms.get_mut(&key) else { return };
        let sequence = room.reserved.sequence;
        let asked = self.requests.get(&sequence).map_or(u32::MAX, |asked| asked.times);
        let untouched = reason.code == Code::PeerLost && room.ordered.is_empty();
        if !untouched || !self.servers.can_ask_again(asked) {
            return self.fail(sequence, reason.clone(), scheduler, orders, events);
        }
        room.over = true;
        self.unopened.push_front(room.reserved.clone());
        self.by_sequence.remove(&sequence);
        orders.commands.push(Command::Abort { key, reason: reason.clone() });
    }

    /// The text of a room goes on, if its record is that of its request.
    fn start(&mut self, key: RoomKey, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>) {
        let Some(room) = self.rooms.get(&key) else { return };
        let (sequence, Some(done)) = (room.reserved.sequence, room.done.clone()) else { return };
        let asked = self.requests.get(&sequence);
        let record = HandoverRecord::decode(&done).map_err(|error| error.to_string()).and_then(|record| {
            let expected = asked
                .map(|Asked { request: PrefillRequest { prompt, .. }, .. }| (prompt.len() as u32, prompt_hash(prompt)));
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
        self.check_size(&asked)?;
        let id = scheduler.add_remote(request)?;
        self.requests.insert(id, Asked { request: asked, times: 0, since: self.servers.looks() });
        Ok(id)
    }

    fn cancel(&mut self, id: SequenceId, scheduler: &mut Scheduler, orders: &mut Orders) -> Option<Event> {
        let event = scheduler.cancel(id)?;
        self.drop_room(id, Reason::new(Code::Aborted, "the request was cancelled"), orders);
        Some(event)
    }

    fn prepare(&mut self, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>) {
        while let Some(id) = scheduler.take_preempted() {
            self.drop_room(id, Reason::new(Code::Aborted, "preempted: the prompt is computed here"), orders);
        }
        while let Some(reserved) = scheduler.take_reserved() {
            self.unopened.push_back(reserved);
        }
        self.open(scheduler, orders, events);
        // Copies that were ordered for requests which have ended since are not made.
        let rooms = &mut self.rooms;
        orders.imports.retain(|import| {
            let Some(room) = rooms.get_mut(&import.key) else { return false };
            let fills = !room.over && scheduler.filling(room.reserved.sequence);
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
            scheduler.filled(room.reserved.sequence);
        }
    }

    fn take_in(&mut self, agreed: &Agreed, scheduler: &mut Scheduler, orders: &mut Orders, events: &mut Vec<Event>) {
        self.servers.take_in(&agreed.peers);
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
                self.failed(key, reason, scheduler, orders, events);
                continue;
            }
            let units: Vec<_> = seen.landed.iter().filter(|&unit| room.ordered.insert(unit)).collect();
            if !units.is_empty() {
                let (pages, generation) = (Arc::clone(&room.moves), room.reserved.generation);
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
        !self.rooms.is_empty() || !self.unopened.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::geometry::CacheGeometry;
    use crate::ids::TokenId;
    use crate::pools::PoolSizes;
    use crate::step::Sampling;
    use reference::ops::{IndexKFormat, KvFormat};

    fn decode(compressed_pages: u32) -> Decode {
        let config = ModelConfig::tiny();
        let shape = CacheShape::ring_per_request(config.window, false);
        let geometry = CacheGeometry::new(&config, shape, KvFormat::V4Fp8, IndexKFormat::Fp8, 0).expect("a geometry");
        let arena = PoolSizes { compressed_pages, window_pages: 16, request_slots: 1 };
        Decode::new(&Handover::new(&geometry, arena).expect("a layout"), shape)
    }

    /// The longest prompt that a frame of 1 MiB holds, by the bytes of the frame itself.
    #[test]
    fn a_prompt_that_no_frame_holds_is_refused_before_it_is_sent() {
        let decode = decode(4096);
        let asked =
            |tokens: usize| PrefillRequest { prompt: vec![TokenId(7); tokens], sampling: Sampling::GREEDY, held: 0 };
        let fits = |tokens: usize| {
            let needed = Needed::at(&decode.shape, 0, tokens as u32).counts();
            let pages = needed.iter().map(|&pages| vec![0; pages as usize]).collect();
            let open = frame::Open { deadline_ms: 0, priority: 0, request: asked(tokens).encode(), pages };
            let key = RoomKey { room: 1, epoch: 1 };
            frame::encode(&frame::Frame { key, sequence: 1, body: frame::Body::Open(open) }).is_ok()
        };
        let longest = (258_000..262_000).rev().find(|&tokens| fits(tokens)).expect("around a quarter of a million");
        assert_eq!(decode.check_size(&asked(longest)), Ok(()));
        let refused = decode.check_size(&asked(longest + 1)).expect_err("too long").to_string();
        assert!(refused.starts_with(&format!("prompt of {} tokens: takes 104", longest + 1)), "{refused}");
        assert!(refused.ends_with("a frame holds 1048576"), "{refused}");
    }

    #[test]
    fn a_prompt_that_no_arena_holds_is_never_sent() {
        let prompt = vec![TokenId(7); 300_000];
        let asked = PrefillRequest { prompt, sampling: Sampling::GREEDY, held: 0 };
        assert_eq!(decode(8).check_size(&asked), Ok(()), "it is computed here");
    }
}
