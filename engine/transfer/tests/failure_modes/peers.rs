//! F11, F12, F15, F19: peers that die, stall, or are not what they seem.

use crate::endpoints::faults::Faults;
use crate::endpoints::world::{World, ms};
use crate::endpoints::{ALL, quiet_faults, settle, sound};
use crate::hosts::{self, Troubles};
use crate::words::hello;
use serde_json::Value;
use std::time::Duration;
use transfer::hello::{Hello, Side, agree, check_own};

#[test]
fn f11_killed_stopped_and_restarted_processes() {
    for seed in 0..300 {
        sound(seed, Faults { kill: 30, stop: 30, cut: 20, post_hangs: 50, ..quiet_faults() });
    }
}

#[test]
fn f11_a_driver_finds_the_successor_of_its_peer() {
    let mut restarts = 0;
    for seed in 0..60 {
        restarts += hosts::sound(seed, Troubles { kill: 30, ..Troubles::default() }).tally.restarts;
    }
    assert!(restarts > 60, "{restarts} servers were killed");
}

#[test]
fn f11_networks_that_hold_and_lose_what_is_sent() {
    for seed in 0..60 {
        hosts::sound(seed, Troubles { hold: 40, cut: 40, ..Troubles::default() });
    }
}

/// A peer asks and asks and never reads what it is told. Its connection ends; who is served meanwhile waits no longer.
#[test]
fn f12_a_peer_that_never_reads_delays_nobody() {
    let slowest = |mute| {
        let hosts = hosts::sound(3, Troubles { mute, queued_bytes: 20_000, ..Troubles::default() });
        assert_eq!((hosts.tally.answered, hosts.tally.failed), (13, 0), "{:?}", hosts.tally);
        assert_eq!(hosts.tally.overflows > 0, mute, "{:?}", hosts.tally);
        hosts.tally.slowest
    };
    let (alone, beside) = (slowest(false), slowest(true));
    assert!(beside < alone + ms(100), "{alone:?} without it, {beside:?} with it");
}

#[test]
fn f19_a_stopped_receiver_holds_up_nobody_else() {
    for seed in 0..50 {
        let mut world = World::new(seed, 2, quiet_faults(), ALL);
        world.run(ms(500));
        // One room there: the pages it holds at prefill until the tear-down leave enough for the others.
        world.request(1, 1);
        (0..3).for_each(|_| world.request(2, 1));
        world.run(world.now + ms(20));
        // 10 s: posts to it never end, and neither beats nor closes come from it.
        world.stop(1, Duration::from_secs(10));
        world.run(world.now + ms(980));
        let served = world.tally.answered;
        (0..3).for_each(|_| world.request(2, 1));
        world.run(world.now + ms(1500));
        assert!(world.tally.answered >= served + 3, "seed {seed}: {:?}", world.tally);
        settle(&mut world);
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
    }
}

/// Every leaf of a value, by path.
fn leaves(value: &Value, path: String, out: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            leaves(value, if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, out)
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| leaves(value, format!("{path}[{i}]"), out)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => out.push((path, value.clone())),
    }
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace(['.', '['], "/").replace(']', ""))
}

#[test]
fn f15_every_field_changed_once_is_refused_by_name() {
    let (ours, theirs) = (hello(Side::Decode, 1, 0, 5), hello(Side::Prefill, 0, 0, 6));
    agree(&ours, &theirs).unwrap();
    check_own(&ours).unwrap();
    let whole = serde_json::to_value(&theirs).unwrap();
    let mut fields = Vec::new();
    leaves(&whole, String::new(), &mut fields);
    assert!(fields.len() > 30);
    for (path, value) in fields {
        let mut changed = whole.clone();
        *changed.pointer_mut(&pointer(&path)).unwrap() = match &value {
            Value::String(text) if path == "side" => Value::from(if text == "decode" { "prefill" } else { "decode" }),
            Value::String(text) => Value::from(format!("{text}!")),
            Value::Number(number) => Value::from((number.as_u64().unwrap() + 1) % 256),
            other => panic!("{path}: {other}"),
        };
        let changed: Hello = serde_json::from_value(changed).unwrap();
        assert_ne!(changed, theirs, "{path}");
        let own =
            ["name", "incarnation"].contains(&path.as_str()) || path.starts_with("blob") || path.ends_with("num_pages");
        match agree(&ours, &changed) {
            Ok(()) => assert!(own, "{path} went unnoticed"),
            Err(refusal) => {
                assert!(!own, "{path} is each side's own, got {refusal}");
                let named = path.strip_suffix("[0]").or(path.strip_suffix("[1]")).unwrap_or(&path);
                assert_eq!(refusal.field, named);
                assert_ne!(refusal.ours, refusal.theirs);
            }
        }
    }
}
