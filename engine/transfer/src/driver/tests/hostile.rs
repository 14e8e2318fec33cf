//! Who connects and is no honest peer.

use super::*;
use crate::driver::net::Net;
use crate::frame::{Body, Frame, HEADER_BYTES, NO_ROOM, Open, encode};
use crate::hello::Hello;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

#[test]
fn bytes_that_are_no_frame_end_their_connection_only() {
    let (mut prefill, mut decode) = pair(&Setting::usual(), &Setting::usual());
    let address = prefill.driver.address().unwrap().to_owned();
    let mut junk = 1u64;
    for round in 0..20 {
        let mut stream = TcpStream::connect(&address).unwrap();
        let bytes: Vec<u8> = (0..round * 37)
            .map(|_| {
                junk = junk.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (junk >> 33) as u8
            })
            .collect();
        stream.write_all(&bytes).unwrap();
        if round >= 2 {
            stream.set_read_timeout(Some(LONG)).unwrap();
            // Its hello, then the end: by a reset, where our bytes were not read.
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest);
            assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "still open");
        }
    }
    assert!(!prefill.driver.has_ended());
    whole_room(&mut prefill, &mut decode, room(1));
}

/// HELLO as a decode rank says it.
fn greeting(name: &str) -> Vec<u8> {
    let blob = br#"{"transport":"tcp","address":"127.0.0.1:1","token":5}"#.to_vec();
    let hello = Hello { name: name.into(), transport: "tcp".into(), blob, ..hello(Side::Decode) };
    encode(&Frame { key: NO_ROOM, sequence: 1, body: Body::Hello(Box::new(hello)) }).unwrap()
}

fn dial(prefill: &Rank) -> TcpStream {
    TcpStream::connect(prefill.driver.address().unwrap()).unwrap()
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let few = Setting { limits: Limits { peers: 8, ..Limits::default() }, ..Setting::usual() };
    let mut prefill = start(Side::Prefill, &[], &few).unwrap();
    let silent: Vec<_> = (0..40).map(|_| dial(&prefill)).collect();
    let mut decode = start(Side::Decode, &[prefill.driver.address().unwrap()], &Setting::usual()).unwrap();
    decode.connected();
    whole_room(&mut prefill, &mut decode, room(1));
    let peers = prefill.driver.snapshot().peers.len();
    assert!(peers <= 8, "{peers} connections");
    drop(silent);
}

/// Peers that fit, together with far more to say than a tick has time for: the loop turns all the same.
#[test]
fn many_peers_that_flood_hold_up_nobody() {
    let mut prefill = start(Side::Prefill, &[], &Setting::usual()).unwrap();
    // Two reads each, which is what a peer may have waiting.
    let flood = |peer: u32| {
        let mut bytes = greeting(&format!("flood {peer}"));
        let said = bytes.len();
        for sequence in 2..2_600 {
            bytes.extend(encode(&Frame { key: NO_ROOM, sequence, body: Body::Fence { upto: sequence } }).unwrap());
        }
        // Every one is answered at the same length. Who is silent then is closed; by then all of it was dealt with, too.
        let answers = (bytes.len() - said) as u64;
        (dial(&prefill), bytes, answers)
    };
    let floods: Vec<_> = (0..32).map(flood).collect();
    let begin = Instant::now();
    let floods: Vec<_> = (floods.into_iter())
        .map(|(mut stream, bytes, answers)| {
            std::thread::spawn(move || {
                stream.write_all(&bytes)?;
                io::copy(&mut stream.take(answers), &mut io::sink())
            })
        })
        .collect();
    let mut stillest = Duration::ZERO;
    wait("the end of the flood", || {
        stillest = stillest.max(prefill.driver.still());
        floods.iter().all(|flood| flood.is_finished()).then_some(())
    });
    let took = begin.elapsed();
    floods.into_iter().for_each(|flood| assert!(flood.join().unwrap().unwrap() > 0));
    assert!(stillest < took / 4, "the loop stood still for {stillest:?} of {took:?}");
    let mut decode = start(Side::Decode, &[prefill.driver.address().unwrap()], &Setting::usual()).unwrap();
    decode.connected();
    whole_room(&mut prefill, &mut decode, room(1));
}

/// The first bytes of a connection, said again on another: the peer of that name comes back, and what was over stays over.
#[test]
fn a_replay_costs_a_connection_at_most() {
    let (mut prefill, mut decode) = pair(&Setting::usual(), &Setting::usual());
    whole_room(&mut prefill, &mut decode, room(1));
    let mut replay = dial(&prefill);
    replay.write_all(&greeting(&hello(Side::Decode).name)).unwrap();
    let pages = decode.pages(1);
    let open = Open { deadline_ms: 0, priority: 0, request: b"a request".to_vec(), pages };
    replay.write_all(&encode(&Frame { key: room(1), sequence: 2, body: Body::Open(open) }).unwrap()).unwrap();
    replay.set_read_timeout(Some(LONG)).unwrap();
    // HELLO, a beat perhaps, FAIL; then the honest one comes back, and this connection ends.
    let mut heard = Vec::new();
    let _ = replay.read_to_end(&mut heard);
    assert!(heard.len() > HEADER_BYTES && heard.windows(4).any(|bytes| bytes == b"over"), "the room is over");
    decode.connected();
    assert!(prefill.seen(room(1)).is_none());
    wait("the honest one", || any_room(&mut prefill, &mut decode, room(2)).ok());
}

/// A network on which nobody can be accepted.
#[derive(Debug, Clone)]
struct Full;

impl Net for Full {
    type Stream = tokio::io::DuplexStream;
    type Listener = ();

    async fn bind(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn address((): &()) -> io::Result<SocketAddr> {
        Ok(([127, 0, 0, 1], 1).into())
    }

    async fn accept((): &()) -> io::Result<Self::Stream> {
        Err(io::Error::other("too many open files"))
    }

    async fn connect(&self, _: &str) -> io::Result<Self::Stream> {
        std::future::pending().await
    }
}

/// Out of files: those that are connected are served as before.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_accepted_holds_up_nobody() {
    let hello = hello(Side::Prefill);
    let arena = Arc::new(Arena::of(&hello.layout().unwrap()).unwrap());
    let transport = Box::new(Tcp::bind("127.0.0.1:0".parse().unwrap(), Arc::new(Faults::none())).unwrap());
    let config = DriverConfig { listen: Some("here".into()), ..DriverConfig::new(Config::new(hello)) };
    let (driver, mut port) = DriverLoop::new(config, Full, transport, arena, Box::new(|| ())).unwrap();
    let running = tokio::spawn(driver.run(|ready| drop(ready.unwrap())));
    let start = tokio::time::Instant::now();
    for number in 0..20 {
        let reason = Reason::new(crate::reason::Code::Aborted, "a test");
        port.apply(&Command::Abort { key: room(number), reason }).unwrap();
        while !port.view().contains_key(&room(number)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert!(start.elapsed() < Duration::from_millis(200), "20 commands took {:?}", start.elapsed());
    drop(port);
    running.await.unwrap();
}
