//! Two drivers over real sockets; the engines are played by the tests.

mod hostile;

use super::*;
use crate::endpoint::Limits;
use crate::exchange::{Command, RoomPort, RoomSeen};
use crate::fault::Faults;
use crate::hello::Side;
use crate::hello::tests::hello;
use crate::ids::Unit;
use crate::layout::{Layout, PagesByClass};
use crate::transport::tcp::Tcp;

const LONG: Duration = Duration::from_secs(20);

struct Rank {
    driver: Driver,
    port: DriverPort,
    arena: Arc<Arena>,
    layout: Layout,
}

/// What a test changes of the usual driver.
struct Setting {
    incarnation: u64,
    verify: bool,
    faults: &'static str,
    listen: String,
    limits: Limits,
}

impl Setting {
    fn usual() -> Self {
        Self { incarnation: 1, verify: true, faults: "", listen: "127.0.0.1:0".into(), limits: Limits::default() }
    }
}

fn start(side: Side, connect: &[&str], setting: &Setting) -> Result<Rank, DriverError> {
    let mut hello = hello(side);
    hello.incarnation = setting.incarnation;
    let mut endpoint = Config::new(hello);
    // As long as they must be on a busy machine, as short as they can be.
    endpoint.timers.beat = Duration::from_millis(50);
    endpoint.timers.misses = 20;
    endpoint.timers.retry = Duration::from_millis(100);
    endpoint.timers.drain = Duration::from_secs(2);
    endpoint.limits = setting.limits.clone();
    let layout = endpoint.hello.layout().unwrap();
    let arena = Arc::new(Arena::of(&layout).unwrap());
    let faults = match setting.faults {
        "" => Faults::none(),
        text => Faults::parse(text).unwrap(),
    };
    let faults = Arc::new(faults);
    let transport = Tcp::bind("127.0.0.1:0".parse().unwrap(), Arc::clone(&faults)).unwrap();
    let config = DriverConfig {
        listen: (side == Side::Prefill).then(|| setting.listen.clone()),
        connect: connect.iter().map(|&address| address.to_owned()).collect(),
        verify: setting.verify,
        reconnect: Duration::from_millis(50),
        faults,
        ..DriverConfig::new(endpoint)
    };
    let (driver, port) = Driver::start(config, Box::new(transport), Arc::clone(&arena), Box::new(|| ()))?;
    Ok(Rank { driver, port, arena, layout })
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LONG, "no {what} within {LONG:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Rank {
    fn pages(&self, first: u32) -> PagesByClass {
        self.layout.classes().iter().map(|class| vec![first % class.num_pages]).collect()
    }

    fn fill(&self, pages: &PagesByClass, unit: Unit, seed: u8) {
        for item in self.layout.unit(unit) {
            for &page in &pages[item.spec.class.0 as usize] {
                let (offset, bytes) = self.layout.place(item, page);
                let bytes: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(7) ^ seed ^ unit.0 as u8).collect();
                self.arena.write(offset, &bytes).unwrap();
            }
        }
    }

    fn bytes(&self, pages: &PagesByClass, unit: Unit) -> Vec<u8> {
        let mut all = Vec::new();
        for item in self.layout.unit(unit) {
            for &page in &pages[item.spec.class.0 as usize] {
                let (offset, bytes) = self.layout.place(item, page);
                let mut page = vec![0; bytes as usize];
                self.arena.read(offset, &mut page).unwrap();
                all.extend(page);
            }
        }
        all
    }

    fn apply(&mut self, command: Command) {
        self.port.apply(&command).unwrap();
    }

    fn seen(&mut self, key: RoomKey) -> Option<RoomSeen> {
        self.port.view().remove(&key)
    }

    fn connected(&self) {
        wait("connection", || self.driver.snapshot().peers.iter().any(|peer| peer.ready).then_some(()));
    }
}

fn room(room: u64) -> RoomKey {
    RoomKey { room, epoch: 1 }
}

fn open(decode: &mut Rank, key: RoomKey) -> PagesByClass {
    let pages = decode.pages(key.room as u32);
    decode.apply(Command::Open { key, server: 0, request: Arc::from(&b"a request"[..]), pages: pages.clone() });
    pages
}

/// The prefill rank computes a room that has arrived, up to `units`.
fn compute(prefill: &mut Rank, key: RoomKey, units: u32) -> PagesByClass {
    wait(&format!("arrival of {key}"), || prefill.seen(key).and_then(|seen| seen.arrived));
    let pages = prefill.pages(key.room as u32 + 1);
    prefill.apply(Command::Accept { key, pages: pages.clone() });
    for unit in (0..units).map(Unit) {
        prefill.fill(&pages, unit, key.room as u8);
        prefill.port.layer_done(key, unit).unwrap();
    }
    pages
}

/// One room from the beginning to the end.
fn whole_room(prefill: &mut Rank, decode: &mut Rank, key: RoomKey) {
    let landing = open(decode, key);
    let units = prefill.layout.num_units();
    let pages = compute(prefill, key, units);
    prefill.apply(Command::Done { key, handover: Arc::from(&b"first token"[..]) });
    let record = wait("handover", || decode.seen(key).and_then(|seen| seen.done));
    assert_eq!(&*record, b"first token");
    let seen = decode.seen(key).unwrap();
    assert_eq!(seen.landed.len(), units);
    for unit in (0..units).map(Unit) {
        assert_eq!(decode.bytes(&landing, unit), prefill.bytes(&pages, unit), "unit {unit}");
    }
    decode.apply(Command::Taken { key });
    for rank in [decode, prefill] {
        wait("quiet", || rank.seen(key).filter(|seen| seen.quiet));
        rank.apply(Command::Forget { key });
        wait("forgotten room", || rank.seen(key).is_none().then_some(()));
    }
}

/// One room, computed whole, until it has landed or failed; then until both sides have forgotten it.
fn any_room(prefill: &mut Rank, decode: &mut Rank, key: RoomKey) -> Result<(), Reason> {
    let landing = open(decode, key);
    let units = prefill.layout.num_units();
    let pages = compute(prefill, key, units);
    prefill.apply(Command::Done { key, handover: Arc::from(&b"first token"[..]) });
    let seen = wait("end", || decode.seen(key).filter(|seen| seen.done.is_some() || seen.failed.is_some()));
    let failed = seen.failed.map_or(Ok(()), Err);
    if failed.is_ok() {
        assert_eq!(decode.bytes(&landing, Unit(0)), prefill.bytes(&pages, Unit(0)));
        decode.apply(Command::Taken { key });
    }
    for rank in [decode, prefill] {
        wait("quiet", || rank.seen(key).filter(|seen| seen.quiet));
        rank.apply(Command::Forget { key });
        wait("forgotten room", || rank.seen(key).is_none().then_some(()));
    }
    failed
}

fn pair(prefill: &Setting, decode: &Setting) -> (Rank, Rank) {
    let prefill = start(Side::Prefill, &[], prefill).unwrap();
    let decode = start(Side::Decode, &[prefill.driver.address().unwrap()], decode).unwrap();
    decode.connected();
    (prefill, decode)
}

/// Down with its address and the last error, up when both sides fit, and down again when it has gone.
#[test]
fn a_server_is_up_while_it_is_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut decode = start(Side::Decode, &[&address], &Setting::usual()).unwrap();
    wait("a reason", || match &decode.port.peers()[..] {
        [PeerSeen::Down(reason)] => {
            (reason.text.starts_with(&address) && reason.text.contains("refused")).then_some(())
        }
        _ => None,
    });
    let prefill = start(Side::Prefill, &[], &Setting { listen: address.clone(), ..Setting::usual() }).unwrap();
    wait("the server", || (decode.port.peers() == [PeerSeen::Up]).then_some(()));
    drop(prefill);
    wait("its end", || (decode.port.peers() != [PeerSeen::Up]).then_some(()));
}

#[test]
fn rooms_travel_and_every_page_matches() {
    for verify in [false, true] {
        let setting = Setting { verify, ..Setting::usual() };
        let (mut prefill, mut decode) = pair(&setting, &setting);
        for key in (1..=5).map(room) {
            whole_room(&mut prefill, &mut decode, key);
        }
        let snapshot = decode.driver.snapshot();
        let expected = if verify { "5 of 5 rooms match" } else { "0 of 0 rooms match" };
        assert_eq!(snapshot.verified.to_string(), expected);
        assert!(snapshot.counters.landed_bytes > 0 && snapshot.counters.stale_bytes == 0);
        assert!(snapshot.errors.iter().all(|(_, count)| count == 0), "{:?}", snapshot.errors);
    }
}

#[test]
fn a_wrong_byte_fails_its_room_with_the_place() {
    let setting = Setting { faults: "landing=corrupt#1", ..Setting::usual() };
    let (mut prefill, mut decode) = pair(&Setting::usual(), &setting);
    let key = room(1);
    open(&mut decode, key);
    let units = prefill.layout.num_units();
    compute(&mut prefill, key, units);
    let reason = wait("failure", || decode.seen(key).and_then(|seen| seen.failed));
    assert_eq!(reason.code, crate::reason::Code::Checksum, "{reason}");
    assert!(reason.text.contains("pages"), "{reason}");
    let snapshot = decode.driver.snapshot();
    assert_eq!((snapshot.misses.len(), snapshot.verified.to_string()), (1, "0 of 1 rooms match".into()));
    wait("quiet", || decode.seen(key).filter(|seen| seen.quiet));
    // The next room is as good as any.
    whole_room(&mut prefill, &mut decode, room(2));
}

#[test]
fn an_abort_is_quiet_on_both_sides() {
    let (mut prefill, mut decode) = pair(&Setting::usual(), &Setting::usual());
    let reason = || Reason::new(crate::reason::Code::Aborted, "the client went away");
    for (number, units) in [(1, None), (2, Some(0)), (3, Some(1))] {
        let key = room(number);
        open(&mut decode, key);
        if let Some(units) = units {
            compute(&mut prefill, key, units);
        }
        decode.apply(Command::Abort { key, reason: reason() });
        let seen = wait("quiet", || decode.seen(key).filter(|seen| seen.quiet));
        assert_eq!(seen.failed, Some(reason()));
        let seen = wait("quiet", || prefill.seen(key).filter(|seen| seen.quiet && seen.failed.is_some()));
        assert!(seen.failed.is_some());
        for rank in [&mut decode, &mut prefill] {
            rank.apply(Command::Forget { key });
            wait("forgotten room", || rank.seen(key).is_none().then_some(()));
        }
    }
    let peers = |rank: &Rank| rank.driver.snapshot().peers.iter().map(|peer| peer.id).collect::<Vec<_>>();
    assert_eq!(peers(&decode), [PeerId(1)], "no abort has cost the connection");
    whole_room(&mut prefill, &mut decode, room(4));
}

#[test]
fn an_abort_of_a_room_not_known_is_quiet_at_once() {
    let (mut prefill, _decode) = pair(&Setting::usual(), &Setting::usual());
    let key = room(9);
    let reason = Reason::new(crate::reason::Code::Aborted, "another rank failed");
    prefill.apply(Command::Abort { key, reason: reason.clone() });
    let seen = wait("quiet", || prefill.seen(key).filter(|seen| seen.quiet));
    assert_eq!(seen.failed, Some(reason));
    prefill.apply(Command::Forget { key });
    wait("forgotten room", || prefill.seen(key).is_none().then_some(()));
}

#[test]
fn a_dead_prefill_fails_its_rooms_and_its_successor_is_found() {
    let (mut prefill, mut decode) = pair(&Setting::usual(), &Setting::usual());
    let address = prefill.driver.address().unwrap().to_owned();
    let key = room(1);
    open(&mut decode, key);
    compute(&mut prefill, key, 1);
    drop(prefill);
    wait("failure", || decode.seen(key).and_then(|seen| seen.failed));
    wait("quiet", || decode.seen(key).filter(|seen| seen.quiet));
    decode.apply(Command::Forget { key });

    let lost = room(2);
    open(&mut decode, lost);
    let seen = wait("failure", || decode.seen(lost).filter(|seen| seen.failed.is_some()));
    assert!(seen.quiet, "nobody was ever told of its pages");
    decode.apply(Command::Forget { key: lost });

    let again = Setting { incarnation: 2, listen: address, ..Setting::usual() };
    let mut prefill = wait("the address", || start(Side::Prefill, &[], &again).ok());
    let known = |decode: &Rank| decode.driver.snapshot().peers.iter().any(|peer| peer.ready && peer.incarnation == 2);
    wait("successor", || known(&decode).then_some(()));
    whole_room(&mut prefill, &mut decode, room(3));
}

#[test]
fn sides_that_do_not_fit_say_so_and_go_on() {
    let prefill = start(Side::Prefill, &[], &Setting::usual()).unwrap();
    let address = prefill.driver.address().unwrap();
    // Two prefill ranks have nothing to say to each other.
    let other = start(Side::Prefill, &[address], &Setting::usual()).unwrap();
    let refused = |rank: &Rank| rank.driver.snapshot().errors.of(crate::endpoint::ErrorKind::Refused);
    wait("refusal", || (refused(&prefill) + refused(&other) > 0).then_some(()));
    let mut decode = start(Side::Decode, &[address], &Setting::usual()).unwrap();
    decode.connected();
    let mut prefill = prefill;
    whole_room(&mut prefill, &mut decode, room(1));
}

#[test]
fn an_address_in_use_is_an_error() {
    let first = start(Side::Prefill, &[], &Setting::usual()).unwrap();
    let setting = Setting { listen: first.driver.address().unwrap().into(), ..Setting::usual() };
    let Err(error) = start(Side::Prefill, &[], &setting) else { panic!("two listen at one address") };
    assert!(error.to_string().contains(first.driver.address().unwrap()), "{error}");
}

#[test]
fn the_loop_beats_while_idle() {
    let (prefill, decode) = pair(&Setting::usual(), &Setting::usual());
    for rank in [&prefill, &decode] {
        wait("beat", || (rank.driver.still() < Duration::from_millis(500)).then_some(()));
    }
}

/// What happens to a frame costs its room at most, with a reason; nothing is held, and the next room is whole.
#[test]
fn frames_that_are_lost_wrong_or_late() {
    use crate::reason::Code;
    // At prefill or at decode; why the room fails, where it does.
    for (at_prefill, rules, fails) in [
        (false, "frame-sent:OPEN=drop#1", None),
        (true, "frame-sent:LAYER=drop#1; frame-sent:DONE=drop#1", None),
        (false, "frame-received:DONE=drop#1; frame-sent:DONE_ACK=drop#1", None),
        (true, "frame-sent:LAYER=duplicate; frame-received:OPEN=duplicate", None),
        (true, "frame-sent:LAYER=reorder#1", None),
        (false, "frame-received:LAYER=delay(300)#1", None),
        (true, "frame-sent:LAYER=flip(40)#1", Some(Code::Protocol)),
        (false, "frame-received:LAYER=flip#2", Some(Code::Protocol)),
        (true, "frame-sent:LAYER=truncate#1", Some(Code::Protocol)),
    ] {
        let faulty = Setting { faults: rules, ..Setting::usual() };
        let (of_prefill, of_decode) = if at_prefill { (faulty, Setting::usual()) } else { (Setting::usual(), faulty) };
        let (mut prefill, mut decode) = pair(&of_prefill, &of_decode);
        let ended = any_room(&mut prefill, &mut decode, room(1));
        assert_eq!(ended.as_ref().err().map(|reason| reason.code), fails, "{rules}: {ended:?}");
        decode.connected();
        wait("connection", || prefill.driver.snapshot().peers.iter().any(|peer| peer.ready).then_some(()));
        assert_eq!(any_room(&mut prefill, &mut decode, room(2)), Ok(()), "{rules}");
        assert!(!prefill.driver.has_ended() && !decode.driver.has_ended());
    }
}

/// A transport that does not come back from a call: the loop stands still for that long, and is seen to.
#[test]
fn a_driver_that_is_blocked_has_an_age() {
    let setting = Setting { faults: "poll=delay(700)#40", ..Setting::usual() };
    let decode = start(Side::Decode, &[], &setting).unwrap();
    wait("standstill", || (decode.driver.still() > Duration::from_millis(400)).then_some(()));
    wait("recovery", || (decode.driver.still() < Duration::from_millis(100)).then_some(()));
}
