//! How fast bytes move, each beside a baseline of the same run: an arena beside plain memory, tcp on loopback beside a plain
//! socket. `cargo run --release -p transfer --example rates`
//!
//! Both ends share this machine's cores, and whatever else runs on them: ratios mean more than rates.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;
use transfer::arena::Arena;
use transfer::fault::Faults;
use transfer::ids::{Class, PeerId, RoomKey, Ticket, Unit};
use transfer::layout::{ClassSpec, ItemSpec, Layout, PageCopy};
use transfer::rates::{median, plain_socket};
use transfer::transport::{End, News, Op, Post, Transport, tcp::Tcp};

const BYTES: u64 = 64 << 20;
const RUNS: usize = 9;

/// Median over runs of bytes per nanosecond (= GB/s, decimal).
fn rate(mut run: impl FnMut()) -> f64 {
    median((0..RUNS).map(|_| {
        let start = Instant::now();
        run();
        BYTES as f64 / start.elapsed().as_nanos() as f64
    }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (arena, other) = (Arena::new(BYTES)?, Arena::new(BYTES)?);
    let (mut plain, source) = (vec![0u8; BYTES as usize], vec![7u8; BYTES as usize]);
    let memcpy = rate(|| std::hint::black_box(&mut plain).copy_from_slice(std::hint::black_box(&source)));
    println!("64 MiB in memory, GB/s (median of {RUNS}): memcpy {memcpy:.2}");
    for page in [584u64, 8_448, 65_536] {
        let pages = || (0..BYTES / page).map(move |nth| nth * page);
        let write = rate(|| pages().for_each(|at| arena.write(at, &source[at as usize..][..page as usize]).unwrap()));
        let read = rate(|| pages().for_each(|at| arena.read(at, &mut plain[at as usize..][..page as usize]).unwrap()));
        let copy = rate(|| pages().for_each(|at| arena.copy(at, &other, at, page).unwrap()));
        println!("  arena, pages of {page:6} bytes: write {write:.2}, read {read:.2}, copy {copy:.2}");
    }

    let socket = median(plain_socket(BYTES as usize, RUNS)?);
    println!("64 MiB over 127.0.0.1, GB/s (median of {RUNS}): plain socket {socket:.2}");
    for page in [584u64, 8_448, 37_440, 65_536] {
        println!("  tcp, pages of {page:6} bytes in a random order: {:.2}", tcp(page)?);
    }
    Ok(())
}

/// One post after another from one transport of this process to another.
fn tcp(page_bytes: u64) -> Result<f64, Box<dyn std::error::Error>> {
    let num_pages = (BYTES / page_bytes) as u32;
    let class = ClassSpec { name: "pages".into(), num_pages };
    let item = ItemSpec { unit: Unit(0), name: "bytes".into(), class: Class(0), page_bytes };
    let layout = Layout::new(vec![class], vec![item])?;
    let end = || -> Result<Tcp, Box<dyn std::error::Error>> {
        let mut transport = Tcp::bind((Ipv4Addr::LOCALHOST, 0).into(), Arc::new(Faults::none()))?;
        transport.register(Arc::new(Arena::of(&layout)?), &layout)?;
        Ok(transport)
    };
    let (mut writer, mut target) = (end()?, end()?);
    writer.connect(PeerId(1), &target.blob(PeerId(2)))?;
    target.connect(PeerId(2), &writer.blob(PeerId(1)))?;
    let tag = RoomKey { room: 1, epoch: 1 };
    target.admit(tag);
    // A stride prime to the number of pages visits all in an order that no prefetcher follows.
    let stride = (1..).map(|k| 7_919 + 2 * k).find(|&stride| gcd(stride, num_pages) == 1).unwrap_or(1);
    let place = |page: u32| layout.place(&layout.items()[0], page).0;
    let copy = |nth: u32| {
        let shuffled = (u64::from(nth) * u64::from(stride) % u64::from(num_pages)) as u32;
        PageCopy { src: place(nth), dst: place(shuffled), bytes: page_bytes }
    };
    let copies: Vec<PageCopy> = (0..num_pages).map(copy).collect();
    let mut next = 0;
    let mut failure = None;
    let rate = rate(|| {
        let mut open = 0;
        for part in copies.chunks(2_048) {
            next += 1;
            open += 1;
            let post = Post { ticket: Ticket(next), op: Op::Write, peer: PeerId(1), tag, copies: part.to_vec() };
            if let Err(error) = writer.post(post) {
                failure = Some(error.to_string());
                return;
            }
        }
        while open > 0 && failure.is_none() {
            for news in writer.poll() {
                match news {
                    News::Ended { end: End::Done, .. } => open -= 1,
                    other => failure = Some(format!("{other:?}")),
                }
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    });
    match failure {
        Some(reason) => Err(reason.into()),
        None => Ok(rate),
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
