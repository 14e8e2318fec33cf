//! A prefill server, a decode server and a router as processes: the tokens of one process, and what clients, pages and the other
//! servers see when one of them is killed, stopped or sent rubbish.

mod host;
mod rig;

use rig::{Children, Deployment, PATIENCE, Process, Random, Text, alone, ask, expected, free_port, get, open, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Lengths around the borders of pages, windows and chunks of a step.
const LENGTHS: [usize; 10] = [1, 2, 64, 127, 128, 129, 255, 256, 257, 500];

#[test]
fn the_tokens_of_one_process() {
    let _alone = alone();
    let texts: Vec<Text> = (LENGTHS.iter().enumerate())
        .map(|(i, &length)| Text { temperature: 0.8 * (i % 2) as f64, ..Text::new(i as u64, length, 12) })
        .collect();
    let one = expected(&texts);
    let pd = Deployment::start();
    for stream in [false, true] {
        let asked: Vec<_> = texts.iter().map(|text| pd.ask(&Text { stream, ..text.clone() })).collect();
        for ((text, asked), one) in texts.iter().zip(asked).zip(&one) {
            let got = asked.join().expect("a whole answer");
            assert_eq!(got.as_ref(), Ok(one), "{} tokens, stream: {stream}", text.prompt.len());
        }
    }
    let compared = pd.decode.metric("sm120_transfer_rooms_compared_total", "");
    assert!(compared >= 2 * LENGTHS.len() as u64, "{compared} texts came from the prefill server");
    assert_eq!(pd.decode.metric("sm120_transfer_rooms_matching_total", ""), compared);
    pd.await_calm();
}

/// Requests that are with a prefill server which does not answer any more, beside a text that has left it.
struct Caught {
    requests: Vec<rig::Asked>,
    running: rig::Asked,
}

fn catch(pd: &Deployment, long: &Text) -> Caught {
    let first = pd.decode.metric("sm120_engine_computed_tokens_total", "").max(1);
    let running = pd.ask(long);
    until("the long text is being decoded", || {
        let computed = pd.decode.metric("sm120_engine_computed_tokens_total", "");
        if computed > first + 2 { Ok(()) } else { Err(computed) }
    });
    pd.prefill.signal("STOP");
    let text = |i| if i % 2 == 0 { Text::new(i, 300, 4) } else { Text::new(i, 200, 4).streamed() };
    let requests: Vec<_> = (0..6).map(|i| pd.ask(&text(i))).collect();
    // When all of them are on their way, or the first have failed already.
    until("requests wait for the prefill server", || {
        if pd.decode.open_rooms() == 6 || requests.iter().any(|asked| asked.is_finished()) { Ok(()) } else { Err(()) }
    });
    Caught { requests, running }
}

impl Caught {
    fn all_fail(self, one: &[u64]) {
        for asked in self.requests {
            let why = asked.join().expect("an end").expect_err("nobody could compute it");
            assert!(why.contains("PeerLost") || why.contains("no prefill server: "), "{why}");
        }
        assert_eq!(self.running.join().expect("an end").as_deref(), Ok(one), "it needs nobody any more");
    }
}

#[test]
fn a_prefill_server_is_killed_and_started_again() {
    let _alone = alone();
    let long = Text::new(99, 40, 800).streamed();
    let one = expected(std::slice::from_ref(&long));
    let mut pd = Deployment::start();
    let caught = catch(&pd, &long);
    pd.prefill.kill();
    caught.all_fail(&one[0]);
    let nobody = format!("no prefill server: {}: ", pd.control);
    pd.decode.await_unwell(&["unavailable", &nobody, "refused"]);
    let why = ask(pd.decode.address, &Text::new(5, 10, 4)).expect_err("there is no prefill server");
    assert!(why.starts_with(&format!("503: {nobody}")), "{why}");
    let why = ask(pd.router.address, &Text::new(5, 10, 4)).expect_err("there is no prefill server");
    assert!(why.starts_with("503: "), "{why}");
    pd.decode.await_idle("decode without prefill is idle");
    pd.prefill = Deployment::prefill(pd.control);
    pd.await_answers("decode finds the prefill server again");
    pd.await_calm();
}

#[test]
fn a_prefill_server_falls_silent_and_comes_back() {
    let _alone = alone();
    let long = Text::new(98, 40, 800).streamed();
    let one = expected(std::slice::from_ref(&long));
    let pd = Deployment::start();
    let caught = catch(&pd, &long);
    caught.all_fail(&one[0]);
    pd.decode.await_idle("decode is idle while prefill is silent");
    pd.decode.await_unwell(&["no prefill server: "]);
    pd.prefill.signal("CONT");
    pd.await_answers("the prefill server is back");
    pd.await_calm();
}

#[test]
fn one_of_two_prefill_servers_is_killed() {
    let _alone = alone();
    let texts: Vec<Text> = (0..12).map(|i| Text::new(i, 1 + 41 * i as usize, 6)).collect();
    let one = expected(&texts);
    let controls = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let mut prefills = controls.map(Deployment::prefill);
    let decode = Deployment::decode_of(&controls, 0);
    until("both are connected", || match decode.metric("sm120_transfer_peers", "") {
        2 => Ok(()),
        peers => Err(peers),
    });
    let ask_all = |what: &str| {
        let ask = |text: &Text| {
            let (address, text) = (decode.address, text.clone());
            std::thread::spawn(move || ask(address, &text))
        };
        let asked: Vec<_> = texts.iter().map(ask).collect();
        for (asked, one) in asked.into_iter().zip(&one) {
            assert_eq!(asked.join().expect("an end").as_ref(), Ok(one), "{what}");
        }
    };
    ask_all("with both");
    let bytes = |prefill: &Process| prefill.metric("sm120_transfer_bytes_total", "");
    assert!(prefills.iter().all(|prefill| bytes(prefill) > 0), "they share the prompts");
    prefills[0].kill();
    // At once: a room that the dead one was asked for is asked of the other.
    ask_all("with one of them");
    decode.await_well("it has one");
    let before = bytes(&prefills[1]);
    prefills[0] = Deployment::prefill(controls[0]);
    until("the first one is used again", || {
        ask(decode.address, &texts[3]).and(if bytes(&prefills[0]) > 0 { Ok(()) } else { Err("unused".into()) })
    });
    assert!(before > 0);
    decode.await_idle("decode is idle");
}

/// `sm120 pd` has no last word when it is killed: its servers notice, finish what they have and end.
#[test]
fn a_deployment_that_is_killed_leaves_nothing_behind() {
    let _alone = alone();
    let long = Text::new(97, 40, 800).streamed();
    let one = expected(std::slice::from_ref(&long));
    let mut pd = Process::half("pd", &["--port", "0"]);
    let servers = Children::of(&pd);
    assert_eq!(servers.0.len(), 2, "{:?}", pd.said());
    let decode = servers.0.iter().find(|server| server.name == "decode 0").expect("there is one").address;
    let running = std::thread::spawn(move || ask(decode, &long));
    until("the text is being computed", || {
        let (_, text) = get(decode, "/metrics").map_err(|error| error.to_string())?;
        if text.contains("sm120_engine_running_requests 1") { Ok(()) } else { Err(text) }
    });
    pd.kill();
    for server in &servers.0 {
        until(&format!("{} ends", server.name), || match TcpStream::connect(server.address) {
            Ok(_) => Err("it listens"),
            Err(_) => Ok(()),
        });
    }
    assert_eq!(running.join().expect("an end").as_ref(), Ok(&one[0]), "answers under way are finished");
}

/// Ctrl-C at a terminal is a signal to a process group. The servers are told by `sm120 pd` alone, once, and finish what they have.
#[test]
fn ctrl_c_at_a_deployment_lets_answers_finish() {
    let _alone = alone();
    let long = Text::new(96, 40, 800).streamed();
    let one = expected(std::slice::from_ref(&long));
    let words = Process::words("pd", &["--port", "0"]);
    let mut pd = Process::lead(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let servers = Children::of(&pd);
    let decode = servers.0.iter().find(|server| server.name == "decode 0").expect("there is one").address;
    let router = pd.address;
    let running = std::thread::spawn(move || ask(router, &long));
    until("the text is being computed", || {
        let (_, text) = get(decode, "/metrics").map_err(|error| error.to_string())?;
        if text.contains("sm120_engine_running_requests 1") { Ok(()) } else { Err(text) }
    });
    pd.signal_group(rustix::process::Signal::INT);
    assert_eq!(running.join().expect("an end").as_ref(), Ok(&one[0]), "answers under way are finished");
    assert_eq!(pd.end(), Some(0));
}

#[test]
fn a_decode_server_is_killed_and_started_again() {
    let _alone = alone();
    let mut pd = Deployment::start();
    let texts = (0..16)
        .map(|i| Text::new(i, 500, 350))
        .map(|text| if text.prompt[0] % 2 == 0 { text.streamed() } else { text });
    let asked: Vec<_> = texts.map(|text| pd.ask(&text)).collect();
    until("prompts are computed", || if pd.prefill.open_rooms() > 0 { Ok(()) } else { Err(()) });
    pd.decode.kill();
    for asked in asked {
        let why = asked.join().expect("an end").expect_err("its server is gone");
        assert!(!why.is_empty());
    }
    let why = ask(pd.router.address, &Text::new(5, 10, 4)).expect_err("there is no decode server");
    assert!(why.starts_with("502: ") || why.starts_with("503: "), "{why}");
    pd.prefill.await_idle("prefill has freed what it had for the decode server");
    pd.decode = Deployment::decode(pd.control, pd.decode.address.port());
    // Refused at once or not at all: the prefill server knows rooms of the process before.
    let known = |asked: Result<Vec<u64>, String>| match asked {
        Err(why) if why.contains("Gone") => panic!("a room that was used: {why}"),
        other => other.map(drop),
    };
    until("rooms have new numbers", || known(ask(pd.decode.address, &Text::new(6, 10, 2))));
    pd.await_answers("the router and the prefill server find the decode server again");
    pd.await_calm();
}

#[test]
fn two_decode_servers_share_a_prefill_server() {
    let _alone = alone();
    let texts: Vec<Text> = (0..12).map(|i| Text::new(i, 1 + 37 * i as usize, 6)).collect();
    let one = expected(&texts);
    let pd = Deployment::start();
    let other = Deployment::decode(pd.control, 0);
    until("the other one finds the prefill server", || ask(other.address, &texts[0]).map(drop));
    for server in [&pd.decode, &other] {
        let ask = |text: &Text| {
            let (address, text) = (server.address, text.clone());
            std::thread::spawn(move || ask(address, &text))
        };
        let asked: Vec<_> = texts.iter().map(ask).collect();
        for (asked, one) in asked.into_iter().zip(&one) {
            assert_eq!(asked.join().expect("a whole answer").as_ref(), Ok(one));
        }
    }
    other.await_idle("the other one is idle");
    pd.await_calm();
}

#[test]
fn clients_leave_at_any_moment() {
    let _alone = alone();
    let pd = Deployment::start();
    let mut random = Random(3);
    let clients: Vec<_> = (0..30)
        .map(|i| {
            let text = Text { stream: i % 3 > 0, ..Text::new(i, 1 + random.below(480) as usize, 300) };
            let (address, pause) = (pd.router.address, Duration::from_millis(random.below(400)));
            std::thread::spawn(move || {
                let stream = open(address, &text).expect("a connection");
                std::thread::sleep(pause);
                drop(stream);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("it leaves"));
    pd.await_calm();
    let left = pd.decode.metric("sm120_requests_total", "outcome=\"abandoned\"");
    assert!(left >= 15, "{left} of 30 left before the end");
}

#[test]
fn rubbish_at_the_control_port() {
    let _alone = alone();
    let text = Text::new(4, 300, 8);
    let one = expected(std::slice::from_ref(&text));
    let pd = Deployment::start();
    let mut random = Random(8);
    let mut silent = Vec::new();
    for i in 0..30 {
        let mut stream = TcpStream::connect(pd.control).expect("it listens");
        let bytes: Vec<u8> = match i % 3 {
            0 => (0..1 + random.below(5000)).map(|_| random.below(256) as u8).collect(),
            1 => b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            _ => Vec::new(),
        };
        // It may be cut off in the middle.
        let _ = stream.write_all(&bytes);
        silent.push(stream);
    }
    assert_eq!(ask(pd.router.address, &text).as_ref(), Ok(&one[0]), "beside open connections that say nothing");
    for mut stream in silent {
        // All of them are closed from the other side: the talkative at once, the silent ones when the time for a hello is over.
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut rest = Vec::new();
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    assert_eq!(ask(pd.router.address, &text).as_ref(), Ok(&one[0]), "and afterwards");
    assert_eq!(pd.prefill.metric("sm120_transfer_peers", ""), 1);
    pd.await_calm();
}
