mod faults;
mod processes;

use super::wire::{HEAD_BYTES, Head, Kind};
use super::*;
use crate::layout::PageCopy;
use crate::transport::suite::{self, PATIENCE, ROOM, Rig, Side};
use crate::transport::{Op, Post};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

fn tcp(faults: &str) -> Tcp {
    Tcp::bind((Ipv4Addr::LOCALHOST, 0).into(), Arc::new(Faults::parse(faults).unwrap())).unwrap()
}

/// Loopback; listeners of deaf peers live as long as it.
#[derive(Default)]
struct Loopback(Vec<TcpListener>, &'static str);

impl Rig for Loopback {
    fn transport(&mut self) -> Box<dyn Transport> {
        Box::new(tcp(self.1))
    }

    fn deaf(&mut self) -> Vec<u8> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let blob = Blob { transport: NAME.into(), address: listener.local_addr().unwrap(), token: 1 };
        self.0.push(listener);
        serde_json::to_vec(&blob).unwrap()
    }

    fn pace(&mut self, slow: bool) {
        self.1 = if slow { "landing=delay(1)" } else { "" };
    }

    fn wait(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whatever strangers do: a peer that the target knows writes a page, and it arrives.
fn serves_a_real_peer(target: &mut Tcp, side: &Side) {
    let mut rig = Loopback::default();
    let mut writer = Side::new(&mut rig, 64);
    writer.transport.connect(PeerId(1), &target.blob(PeerId(2))).unwrap();
    target.connect(PeerId(2), &writer.transport.blob(PeerId(1))).unwrap();
    target.admit(ROOM);
    let pages = vec![vec![3], vec![1]];
    writer.compute(3, &pages);
    let copies = suite::copies(&writer, &pages, side, &pages);
    let ticket = writer.post(Op::Write, PeerId(1), ROOM, copies);
    suite::until(&mut rig, "the post ends", || writer.ended(ticket).is_some());
    assert_eq!(writer.ended(ticket), Some(End::Done));
    assert!(suite::compared(side, &pages, &writer, &pages).matches());
}

crate::transport_suite!(Loopback::default());

#[test]
fn a_corrupted_page_is_named() {
    let mut rig = Loopback(Vec::new(), "landing:CSA index K=corrupt#2");
    let foreign = suite::foreign_bytes(&mut rig, true);
    assert_eq!(foreign.len(), 1, "{foreign:?}");
    assert!(foreign[0].contains("pages 3 of 4 match\nCSA index K, unit 1, page "), "{}", foreign[0]);
}

fn registered() -> (Tcp, Side) {
    let mut rig = Loopback::default();
    let side = Side::new(&mut rig, 64);
    let mut transport = tcp("");
    transport.register(side.arena.clone(), &side.layout).unwrap();
    (transport, side)
}

fn raw(to: &Tcp) -> TcpStream {
    let socket = TcpStream::connect(to.blob.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Reads until the other side closes.
fn closed(mut socket: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is a close, too.
    let _ = socket.read_to_end(&mut rest);
    rest
}

/// F1 on the data path: bytes of strangers and of known peers that are no message close that connection and nothing else.
#[test]
fn no_bytes_end_the_service() {
    let (mut target, side) = registered();
    let address = target.blob.address;
    let blob = |token| serde_json::to_vec(&Blob { transport: NAME.into(), address, token }).unwrap();
    let hello =
        |token: u64, to: u64| Head::new(Kind::Hello, Ticket(token), RoomKey { room: to, epoch: 0 }).encode().to_vec();
    let own = target.blob.token;
    let mut random = 1u64;
    let mut noise = |len: usize| -> Vec<u8> {
        (0..len)
            .map(|_| {
                random = crate::fault::mix(random);
                random as u8
            })
            .collect()
    };
    let post = |kind, ranges: u32| Head { ranges, ..Head::new(kind, Ticket(1), ROOM) }.encode().to_vec();
    // Strangers: noise, a wrong incarnation, a message before HELLO.
    for bytes in [noise(HEAD_BYTES), noise(4096), hello(5, own ^ 1), post(Kind::Write, 0)] {
        let mut socket = raw(&target);
        let _ = socket.write_all(&bytes);
        assert!(closed(socket).is_empty());
    }
    let known = [
        noise(HEAD_BYTES),
        noise(1 << 16),
        hello(100, own),
        post(Kind::Ack, 0),
        post(Kind::Bytes, 0),
        // A table whose checksum is not that of the head.
        [post(Kind::Write, 2), noise(32)].concat(),
    ];
    for (i, bytes) in known.into_iter().enumerate() {
        let (token, peer) = (1000 + i as u64, PeerId(1000 + i as u32));
        target.connect(peer, &blob(token)).unwrap();
        let mut socket = raw(&target);
        socket.write_all(&hello(token, own)).unwrap();
        let _ = socket.write_all(&bytes);
        assert!(closed(socket).is_empty(), "case {i}");
        let start = Instant::now();
        while !target.poll().iter().any(|news| matches!(news, News::Lost { peer: lost, .. } if *lost == peer)) {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        target.tear_down(peer);
    }
    assert_eq!(target.counters().malformed, 10);
    suite::assert_untouched(&side, &vec![vec![], vec![]]);
    // And a real peer is served.
    serves_a_real_peer(&mut target, &side);
}

/// A connection that says nothing, or is known to nobody, does not keep others waiting.
#[test]
fn silent_strangers_hold_up_nobody() {
    let (mut target, side) = registered();
    let silent: Vec<_> = (0..8).map(|_| raw(&target)).collect();
    let mut rig = Loopback::default();
    let mut writer = Side::new(&mut rig, 64);
    writer.transport.connect(PeerId(1), &target.blob(PeerId(2))).unwrap();
    let pages = vec![vec![3], vec![1]];
    let copies = suite::copies(&writer, &pages, &side, &pages);
    target.admit(ROOM);
    // It posts before the target knows it; the target hears of it a moment later.
    let ticket = writer.post(Op::Write, PeerId(1), ROOM, copies);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(writer.ended(ticket), None);
    target.connect(PeerId(2), &writer.transport.blob(PeerId(1))).unwrap();
    suite::until(&mut rig, "the post ends", || writer.ended(ticket).is_some());
    assert_eq!(writer.ended(ticket), Some(End::Done));
    drop(silent);
}

/// Nobody listens: the post fails, the proof is the tear-down.
#[test]
fn a_refused_connection_fails_its_posts() {
    let (mut target, side) = registered();
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let blob = Blob { transport: NAME.into(), address, token: 8 };
    target.connect(PeerId(1), &serde_json::to_vec(&blob).unwrap()).unwrap();
    let pages = vec![vec![3], vec![1]];
    let copies = suite::copies(&side, &pages, &side, &pages);
    target.post(Post { ticket: Ticket(1), op: Op::Write, peer: PeerId(1), tag: ROOM, copies }).unwrap();
    let start = Instant::now();
    let mut news = Vec::new();
    while news.len() < 2 {
        assert!(start.elapsed() < PATIENCE);
        news.extend(target.poll());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(&news[0], News::Ended { ticket: Ticket(1), end: End::Failed(_) }), "{news:?}");
    let [_, News::Lost { peer: PeerId(1), reason }] = &news[..] else { panic!("{news:?}") };
    assert!(reason.starts_with(&address.to_string()), "{reason}");
    assert_eq!(target.prove_quiet(PeerId(1), Ticket(1)), None);
    target.tear_down(PeerId(1));
    assert_eq!(target.prove_quiet(PeerId(1), Ticket(1)), Some(Proof::TornDown));
}

/// A machine that has gone: connecting takes its two seconds, tearing down does not.
#[test]
fn a_tear_down_does_not_wait_for_a_connection() {
    let (mut target, side) = registered();
    let mut rig = Loopback::default();
    let blob = rig.deaf();
    let address = rig.0[0].local_addr().unwrap();
    // Until the queue of who never accepts is full, and the next to connect hears nothing.
    let mut waiting = Vec::new();
    while let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        waiting.push(socket);
    }
    target.connect(PeerId(1), &blob).unwrap();
    let pages = vec![vec![3], vec![1]];
    let copies = suite::copies(&side, &pages, &side, &pages);
    target.post(Post { ticket: Ticket(1), op: Op::Write, peer: PeerId(1), tag: ROOM, copies }).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    assert_eq!(target.tear_down(PeerId(1)), Proof::TornDown);
    assert!(start.elapsed() < Duration::from_millis(1000), "{:?}", start.elapsed());
}

/// Strangers that send a byte now and then, as many as there is room for: who has something to say gets in.
#[test]
fn slow_strangers_give_way() {
    let (mut target, side) = registered();
    let hello = Head::new(Kind::Hello, Ticket(5), RoomKey { room: target.blob.token, epoch: 0 }).encode();
    // One says who it is, and is never known.
    let mut unknown = raw(&target);
    unknown.write_all(&hello).unwrap();
    let slow: Vec<_> = (0..80)
        .map(|_| {
            let mut socket = raw(&target);
            socket.write_all(&hello[..1]).unwrap();
            socket
        })
        .collect();
    serves_a_real_peer(&mut target, &side);
    let start = Instant::now();
    assert!(closed(unknown).is_empty());
    assert!(start.elapsed() < Duration::from_secs(4), "the oldest is closed at once");
    drop(slow);
}
