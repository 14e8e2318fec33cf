//! `sm120 experiment`, small: the answers, and that they can be bad.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// Runs one experiment, and no other meanwhile: peers are lost after 2 s of silence, which many processes would not keep.
fn experiment(options: &[&str]) -> (Option<i32>, String) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sm120"));
    command.current_dir(folder.path()).arg("experiment").args(options).args(["--report", "report"]);
    let Output { status, stdout, stderr } = command.output().expect("the command starts");
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(folder.path().join("report/report.json").is_file(), "{status}: {text}");
    (status.code(), text)
}

const FEW: [&str; 8] = ["--sessions", "6", "--concurrency", "6", "--turns", "1", "--index-k", "fp8"];

#[test]
fn corruption_is_found_where_nobody_waits_for_index_keys() {
    let (status, text) = experiment(&[&["corruption", "--break-gate", "--host-cache", "off"], &FEW[..]].concat());
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("corruption found as expected"), "{text}");
}

#[test]
fn corruption_falls_short_when_pages_are_changed() {
    let faults = ["corruption", "--verify-transfers", "--fault", "landing:CSA KV=corrupt"];
    let (status, text) = experiment(&[&faults, &FEW[..]].concat());
    assert_eq!(status, Some(1), "{text}");
    assert!(verdict(&text, "sessions without an answer | 6").contains("FALLS SHORT"), "{text}");
    assert!(verdict(&text, "the first").contains("Checksum: "), "{text}");
}

/// Six sessions leave every page where it is: what was asked for was not tried.
#[test]
fn corruption_falls_short_when_nothing_comes_out_of_host_memory() {
    let harmless = ["corruption", "--fault", "http:read=stall(1)#1"];
    let (status, text) = experiment(&[&harmless, &FEW[..]].concat());
    assert_eq!(status, Some(1), "{text}");
    assert!(verdict(&text, "sessions whose tokens differ | 0 of 6").contains("ok"), "{text}");
    assert!(verdict(&text, "copies back, prefill and decode | 0 and 0").contains("FALLS SHORT"), "{text}");
}

/// What a build, a transport or an experiment cannot do is said before anything starts.
#[test]
fn what_cannot_be_asked_is_refused() {
    for (options, why) in [
        (&["corruption", "--transport", "nixl"][..], "sm120-nixl has it"),
        (&["wedge", "--transport", "nixl", "--cases", "prefill-killed"], "sm120-nixl has it"),
        (&["corruption", "--report", "/dev/null/report"], "the report in /dev/null/report"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_sm120")).arg("experiment").args(options).output();
        let output = output.expect("the command starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_stalled_rank_is_seen_and_recovers() {
    let options = ["wedge", "--cases", "decode-rank-stalled", "--clients", "3", "--bound-ms", "8000"];
    let (status, text) = experiment(&options);
    assert_eq!(status, Some(0), "{text}");
    let seen = verdict(&text, "Decode /health is 503");
    assert!(seen.contains("rank 0: ") && seen.contains("no progress for"), "{text}");
}

#[test]
fn a_bound_that_nobody_keeps_falls_short() {
    let options = ["wedge", "--cases", "decode-rank-stalled", "--clients", "1", "--bound-ms", "1"];
    let (status, text) = experiment(&options);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("1 checks of 1 cases FALL SHORT"), "{text}");
}

#[test]
fn a_cascade_leaves_nothing_behind() {
    let load = ["--streams", "8", "--cascades", "1", "--after-ms", "300", "--requests", "4"];
    let (status, text) = experiment(&[&["abort-cascade"], &load[..]].concat());
    // Not judged here: throughput and the time of an answer, which are the machine's.
    for what in ["pages and rooms that did not come back", "threads of engines", "before and after, 32 clients | equal"]
    {
        assert!(verdict(&text, what).contains("| ok"), "{status:?}: {text}");
    }
}

/// The line of a table.
fn verdict<'a>(text: &'a str, what: &str) -> &'a str {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().find(|line| squeezed(line).contains(what)).unwrap_or_else(|| panic!("no {what} in {text}"))
}
