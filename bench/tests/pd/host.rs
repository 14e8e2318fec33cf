//! Beginnings that the device has lost come out of host memory, in one process and in both halves.

use crate::rig::{Deployment, Process, Text, alone, ask, expected, free_port, until};
use std::net::SocketAddr;

/// A device of eight pages, and texts of which each has two full ones.
const DEVICE: [&str; 4] = ["--max-running", "2", "--host-cache", "64MiB"];

fn texts() -> Vec<Text> {
    (0..6).map(|i| Text::new(40 + i, 515 + 45 * i as usize, 6)).collect()
}

/// Three times in turn: each pushes out what comes next.
fn in_turn(address: SocketAddr, texts: &[Text], one: &[Vec<u64>]) {
    for round in 0..3 {
        for (text, one) in texts.iter().zip(one) {
            assert_eq!(ask(address, text).as_ref(), Ok(one), "round {round}");
        }
    }
}

fn hits(process: &Process, what: &str) -> u64 {
    process.metric(&format!("sm120_host_cache_{what}hits_total"), "")
}

#[test]
fn both_halves_load_what_the_device_has_lost() {
    let _alone = alone();
    let (texts, control) = (texts(), SocketAddr::from(([127, 0, 0, 1], free_port())).to_string());
    let one = expected(&texts);
    let half =
        |role: &str, own: &[&str]| Process::caching(role, &[&DEVICE, &["--verify-host-cache"][..], own].concat());
    let prefill = half("prefill", &["--port", "0", "--control", &control]);
    let decode = half("decode", &["--port", "0", "--prefill", &control]);
    Deployment::await_answer(decode.address);
    in_turn(decode.address, &texts, &one);
    // Of the second and the third round, all but what write-through is still writing.
    for half in [&prefill, &decode] {
        assert!(hits(half, "") >= 6, "{} of 12 in {:?}", hits(half, ""), half.said());
        assert_eq!(half.metric("sm120_host_cache_loads_failed_total", ""), 0);
        half.await_idle("every page is back");
    }
}

/// Of twelve pages a few have room in memory. A server that is killed leaves nothing in the folder.
#[test]
fn one_process_loads_from_memory_and_disk() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (texts, disk) = (texts(), format!("{}:64MiB", folder.path().display()));
    let one = expected(&texts);
    let small = ["--port", "0", "--max-running", "2", "--host-cache", "10MiB", "--host-cache-disk", &disk];
    let mut server = Process::caching("serve", &small);
    in_turn(server.address, &texts, &one);
    let (all, from_disk) = (hits(&server, ""), hits(&server, "disk_"));
    assert!(all >= 6 && (1..all).contains(&from_disk), "{from_disk} of {all} had pages on disk");
    until("every page is back", || Some(server.busy_pools()).filter(|busy| !busy.is_empty()).map_or(Ok(()), Err));
    server.kill();
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
