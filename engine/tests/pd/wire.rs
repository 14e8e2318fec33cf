//! Both ends of a rank's rooms in one process: control messages and page copies arrive late, out of order and at another time
//! on every rank, as a seed says. Time passes when somebody looks.

use reference::rng::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use transfer::exchange::{Command, PeerSeen, PortError, RoomPort, RoomSeen};
use transfer::ids::{RoomKey, Unit};
use transfer::layout::{Layout, PageCopy, PagesByClass};
use transfer::reason::Reason;

/// What a wire does beside carrying bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manners {
    /// Looks that a message or a copy takes at most, beside the skew.
    pub(crate) delay: u64,
    /// Looks that everything takes more on this rank.
    pub(crate) skew: u64,
    /// Copies of this unit and item take so many looks more.
    pub(crate) slow: Option<(u32, &'static str, u64)>,
    /// Tells of a unit as landed while copies of the slow item are under way: what no gate would do.
    pub(crate) hasty: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Copies {
    all: usize,
    /// Those that a unit waits for: all of them, unless the wire is hasty.
    awaited: usize,
}

#[derive(Debug, Default)]
struct Room {
    request: Option<Arc<[u8]>>,
    landing: PagesByClass,
    source: PagesByClass,
    /// Copies under way by unit; a unit is here once it was handed over.
    copies: BTreeMap<u32, Copies>,
    /// What each side may see; `None` before OPEN and after it was forgotten.
    prefill: Option<RoomSeen>,
    decode: Option<RoomSeen>,
    record: Option<Arc<[u8]>>,
    taken: bool,
    /// DONE was acknowledged, as prefill knows.
    acknowledged: bool,
    /// Prefill will make no more copies, as decode knows.
    stopped: bool,
    /// When the last control message arrives: they keep their order.
    control: u64,
}

impl Room {
    fn under_way(&self) -> usize {
        self.copies.values().map(|copies| copies.all).sum()
    }

    fn awaited(&self) -> usize {
        self.copies.values().map(|copies| copies.awaited).sum()
    }
}

#[derive(Debug)]
enum Action {
    Arrive,
    Copy { unit: u32, copy: PageCopy, awaited: bool },
    Done,
    AbortPrefill(Reason),
    AbortDecode(Reason),
    Stopped,
    Acknowledged,
}

#[derive(Debug)]
struct State {
    manners: Manners,
    rng: Rng,
    now: u64,
    layouts: [Layout; 2],
    arenas: [Vec<u8>; 2],
    rooms: BTreeMap<RoomKey, Room>,
    later: Vec<(u64, RoomKey, Action)>,
    aborts: u64,
}

/// One rank's pair of arenas.
#[derive(Debug, Clone)]
pub(crate) struct Wire(Arc<Mutex<State>>);

/// A side of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Prefill = 0,
    Decode = 1,
}

#[derive(Debug)]
struct Port {
    wire: Wire,
    end: End,
}

impl Wire {
    pub(crate) fn new(prefill: &Layout, decode: &Layout, manners: Manners, seed: u64) -> Self {
        let arena = |layout: &Layout| vec![0xff; layout.bytes() as usize];
        Self(Arc::new(Mutex::new(State {
            manners,
            rng: Rng::named(seed, "wire"),
            now: 0,
            arenas: [arena(prefill), arena(decode)],
            layouts: [prefill.clone(), decode.clone()],
            rooms: BTreeMap::new(),
            later: Vec::new(),
            aborts: 0,
        })))
    }

    pub(crate) fn port(&self, end: End) -> Box<dyn RoomPort> {
        Box::new(Port { wire: self.clone(), end })
    }

    /// Rooms that either side has not forgotten.
    pub(crate) fn num_rooms(&self) -> usize {
        let state = self.lock();
        state.rooms.values().filter(|room| room.prefill.is_some() || room.decode.is_some()).count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn delay(&mut self) -> u64 {
        self.manners.skew + self.rng.below(self.manners.delay + 1)
    }

    fn tell(&mut self, key: RoomKey, action: Action) {
        let due = self.now + self.delay();
        let room = self.rooms.entry(key).or_default();
        room.control = due.max(room.control + 1);
        let due = room.control;
        self.later.push((due, key, action));
    }

    /// One look's time passes: everything that is due happens, in any order of copies.
    fn pass(&mut self) {
        self.now += 1;
        let now = self.now;
        let (mut due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.later).into_iter().partition(|at| at.0 <= now);
        self.later = later;
        for i in (1..due.len()).rev() {
            due.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        // Of one room's control messages, the earlier ones first.
        due.sort_by_key(|(at, _, action)| if matches!(action, Action::Copy { .. }) { 0 } else { *at });
        for (at, key, action) in due {
            self.happen(at, key, action);
        }
    }

    fn happen(&mut self, at: u64, key: RoomKey, action: Action) {
        let room = self.rooms.entry(key).or_default();
        let fail = |seen: &mut Option<RoomSeen>, reason: Reason| {
            seen.get_or_insert_default().failed.get_or_insert(reason);
        };
        match action {
            Action::Arrive => room.prefill.get_or_insert_default().arrived = room.request.clone(),
            Action::Copy { unit, copy, awaited } => {
                let [from, to] = &mut self.arenas;
                let range = |start: u64| start as usize..(start + copy.bytes) as usize;
                to[range(copy.dst)].copy_from_slice(&from[range(copy.src)]);
                let left = room.copies.entry(unit).or_default();
                left.all -= 1;
                left.awaited -= usize::from(awaited);
                let landed = left.awaited == 0;
                if let Some(seen) = room.decode.as_mut().filter(|_| landed) {
                    seen.landed.insert(Unit(unit));
                }
            }
            // DONE is sent behind the last copy.
            Action::Done if room.awaited() > 0 => self.later.push((at + 1, key, Action::Done)),
            Action::Done => {
                room.stopped = true;
                if let Some(seen) = &mut room.decode {
                    seen.done = room.record.clone();
                }
            }
            Action::AbortPrefill(reason) => {
                self.aborts += 1;
                fail(&mut room.prefill, reason);
                self.tell(key, Action::Stopped);
            }
            Action::AbortDecode(reason) if !room.taken && room.decode.is_some() => fail(&mut room.decode, reason),
            Action::AbortDecode(_) => {}
            Action::Stopped => room.stopped = true,
            Action::Acknowledged => room.acknowledged = true,
        }
    }
}

impl RoomPort for Port {
    fn apply(&mut self, command: &Command) -> Result<(), PortError> {
        let mut state = self.wire.lock();
        let key = command.key();
        let room = state.rooms.entry(key).or_default();
        match (self.end, command) {
            (End::Decode, Command::Open { request, pages, .. }) => {
                assert!(room.request.is_none(), "{key} is opened twice");
                (room.request, room.landing) = (Some(request.clone()), pages.clone());
                room.decode = Some(RoomSeen::default());
                state.tell(key, Action::Arrive);
            }
            (End::Decode, Command::Taken { .. }) => {
                room.taken = true;
                state.tell(key, Action::Acknowledged);
            }
            (End::Decode, Command::Abort { reason, .. }) => {
                room.decode.get_or_insert_default().failed.get_or_insert_with(|| reason.clone());
                state.tell(key, Action::AbortPrefill(reason.clone()));
            }
            (End::Prefill, Command::Accept { pages, .. }) => room.source.clone_from(pages),
            (End::Prefill, Command::Done { handover, .. }) => {
                room.record = Some(handover.clone());
                state.tell(key, Action::Done);
            }
            (End::Prefill, Command::Abort { reason, .. }) => {
                room.prefill.get_or_insert_default().failed.get_or_insert_with(|| reason.clone());
                state.tell(key, Action::AbortDecode(reason.clone()));
                state.tell(key, Action::Stopped);
            }
            (End::Decode, Command::Forget { .. }) => room.decode = None,
            (End::Prefill, Command::Forget { .. }) => room.prefill = None,
            (end, command) => return Err(PortError(format!("{end:?} is told {command:?}"))),
        }
        Ok(())
    }

    fn view(&mut self) -> BTreeMap<RoomKey, RoomSeen> {
        let mut state = self.wire.lock();
        state.pass();
        let seen = |room: &Room| {
            let mut seen = if self.end == End::Prefill { room.prefill.clone() } else { room.decode.clone() }?;
            let over = if self.end == End::Prefill { room.acknowledged } else { room.taken && room.stopped };
            let failed = seen.failed.is_some() && (self.end == End::Prefill || room.stopped);
            seen.quiet = (over || failed) && room.under_way() == 0;
            Some(seen)
        };
        state.rooms.iter().filter_map(|(key, room)| Some((*key, seen(room)?))).collect()
    }

    fn peers(&mut self) -> Vec<PeerSeen> {
        vec![PeerSeen::Up]
    }

    fn layer_done(&mut self, key: RoomKey, unit: Unit) -> Result<(), PortError> {
        let mut state = self.wire.lock();
        let Some(room) =
            state.rooms.get(&key).filter(|room| room.prefill.as_ref().is_some_and(|seen| seen.failed.is_none()))
        else {
            return Ok(());
        };
        let [prefill, decode] = &state.layouts;
        let copies = prefill.copies(unit, &room.source, decode, &room.landing);
        let copies = copies.map_err(|error| PortError(error.to_string()))?;
        let slow_item = |copy: &PageCopy| {
            let Some((slow_unit, name, _)) = state.manners.slow else { return false };
            let mut items = prefill.unit(unit).filter(|item| item.spec.name == name && unit.0 == slow_unit);
            items.any(|item| {
                let pages = u64::from(prefill.classes()[item.spec.class.0 as usize].num_pages);
                (item.offset..item.offset + pages * item.stride).contains(&copy.src)
            })
        };
        let copies: Vec<_> = copies.into_iter().map(|copy| (copy, slow_item(&copy))).collect();
        let Manners { hasty, slow, .. } = state.manners;
        let left =
            Copies { all: copies.len(), awaited: copies.iter().filter(|(_, is_slow)| !(hasty && *is_slow)).count() };
        assert!(left.awaited > 0, "every layer has a window");
        let before = state.rooms.entry(key).or_default().copies.insert(unit.0, left);
        assert_eq!(before, None, "{key}: unit {unit} is handed over twice");
        for (copy, is_slow) in copies {
            let more = slow.filter(|_| is_slow).map_or(0, |slow| slow.2);
            let due = state.now + state.delay() + more;
            state.later.push((due, key, Action::Copy { unit: unit.0, copy, awaited: !(hasty && is_slow) }));
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), PortError> {
        let state = self.wire.lock();
        let arena = &state.arenas[self.end as usize];
        let range = offset as usize..offset as usize + bytes.len();
        bytes.copy_from_slice(arena.get(range).ok_or_else(|| PortError(format!("{offset} is outside the arena")))?);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PortError> {
        let mut state = self.wire.lock();
        let arena = &mut state.arenas[self.end as usize];
        let range = offset as usize..offset as usize + bytes.len();
        arena.get_mut(range).ok_or_else(|| PortError(format!("{offset} is outside the arena")))?.copy_from_slice(bytes);
        Ok(())
    }
}
