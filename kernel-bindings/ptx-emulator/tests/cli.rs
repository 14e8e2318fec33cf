//! The command line: exit status and text.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(name).join("case.json")
}

fn emulator(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ptx-emulator")).args(args).output().expect("the program starts")
}

fn run(name: &str, more: &[&str]) -> (i32, String) {
    let path = case(name);
    let mut args = vec!["run", path.to_str().expect("UTF-8")];
    args.extend(more);
    let output = emulator(&args);
    (output.status.code().expect("a status"), String::from_utf8(output.stdout).expect("UTF-8"))
}

#[test]
fn status_says_whether_the_kernel_is_right() {
    let (status, text) = run("row_sum", &[]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("ok row_sum") && text.contains("4 of 4 seeds"), "{text}");
    let (status, text) = run("row_sum_missing_barrier", &["--seeds", "2"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("shared_race: ") && text.contains("row_sum line 116") && text.contains("--seed 0"), "{text}");
    // Whatever the case expects: only `--expect` asks for that.
    assert_eq!(run("row_sum_missing_barrier", &["--expect"]).0, 0);
    assert_eq!(run("row_sum", &["--expect"]).0, 0);
}

#[test]
fn expectations_that_do_not_happen_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["kernel.ptx", "x.bin", "y.expected.bin"] {
        std::fs::copy(case("row_sum").with_file_name(file), folder.path().join(file)).expect("copied");
    }
    let text = std::fs::read_to_string(case("row_sum")).expect("json");
    let text = text.replace("\"expect\": \"none\"", "\"expect\": \"some\", \"class\": [\"deadlock\"]");
    let path = folder.path().join("case.json");
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("UTF-8");
    assert_eq!(emulator(&["run", path]).status.code(), Some(0));
    assert_eq!(emulator(&["run", path, "--expect"]).status.code(), Some(1));
}

#[test]
fn json_holds_findings_outputs_and_counters() {
    let (status, text) = run("row_sum", &["--json", "--counters", "--seeds", "1", "--schedule", "random"]);
    assert_eq!(status, 0);
    let json: serde_json::Value = serde_json::from_str(&text).expect("one JSON document");
    assert_eq!(json["success"], true);
    assert_eq!(json["case"], "row_sum");
    let seed = &json["seeds"][0];
    assert_eq!(seed["outputs"][0]["buffer"], "y");
    // 5 blocks x 8 barriers.
    assert_eq!(seed["counters"][0]["barriers"], 40);
    assert_eq!(seed["counters"][0]["total"]["global_load_bytes"], 5 * 256 * 4);
    assert_eq!(seed["counters"][0]["total"]["global_store_bytes"], 5 * 4);
    let (status, text) = run("misaligned", &["--json"]);
    assert_eq!(status, 1);
    let json: serde_json::Value = serde_json::from_str(&text).expect("one JSON document");
    assert_eq!(json["clean"], false);
    assert_eq!(json["as_expected"], true);
    let finding = &json["seeds"][0]["findings"][0];
    assert_eq!(finding["class"], "misaligned");
    assert_eq!(finding["address"], "x+0x4");
    assert!(finding["place"]["ptx_line"].as_u64().expect("a line") > 0);
}

#[test]
fn counters_and_options_print() {
    let (status, text) = run("identity_mma", &["--counters", "--seed", "7", "--seeds", "1"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("mma m16n8k16.f32.bf16.bf16.f32 1") && text.contains("mma_flops"), "{text}");
    // Without checks a race goes unseen, and only the outputs speak.
    assert_eq!(run("row_sum", &["--no-checks"]).0, 0);
}

#[test]
fn wrong_files_and_arguments_have_status_two() {
    let output = emulator(&["run", "no/such/case.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no/such/case.json"));
    assert_eq!(emulator(&["run"]).status.code(), Some(2));
    assert_eq!(emulator(&["run", "x", "--seeds", "0"]).status.code(), Some(2));
    assert_eq!(emulator(&["run", "x", "--schedule", "sometimes"]).status.code(), Some(2));
    assert_eq!(emulator(&["check", "no.ptx"]).status.code(), Some(2));
}

/// A device, pipe or folder in the place of a buffer file would block or never end.
#[test]
fn buffer_files_are_regular_files_and_sizes_have_an_end() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["kernel.ptx", "y.expected.bin"] {
        std::fs::copy(case("row_sum").with_file_name(file), folder.path().join(file)).expect("copied");
    }
    std::fs::create_dir(folder.path().join("x.bin")).expect("a folder in its place");
    let text = std::fs::read_to_string(case("row_sum")).expect("json");
    let path = folder.path().join("case.json");
    std::fs::write(&path, &text).expect("written");
    let path = path.to_str().expect("UTF-8");
    let output = emulator(&["run", path]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("not a regular file") && message.contains("x.bin"), "{message}");

    let huge = text
        .replace("\"bytes\": 20,", "\"bytes\": 1000000000000000000,")
        .replace("5\n   ],", "250000000000000000\n   ],");
    assert_ne!(huge, text);
    std::fs::write(path, huge).expect("written");
    std::fs::remove_dir(folder.path().join("x.bin")).expect("removed");
    std::fs::copy(case("row_sum").with_file_name("x.bin"), folder.path().join("x.bin")).expect("copied");
    let output = emulator(&["run", path]);
    assert!(
        matches!(output.status.code(), Some(1 | 2)),
        "{:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn check_lists_entries() {
    let good = case("compact").with_file_name("kernel.ptx");
    let output = emulator(&["check", good.to_str().expect("UTF-8")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(text.contains("keep_even: 3 parameters in 24 bytes") && text.contains("increment: 2 parameters"), "{text}");
    let bad = case("unsupported").with_file_name("kernel.ptx");
    let output = emulator(&["check", bad.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unsupported"));
    let help = String::from_utf8(emulator(&["run", "--help"]).stdout).expect("UTF-8");
    for word in ["--seeds", "--counters", "--schedule", "--json", "--expect", "at-wait"] {
        assert!(help.contains(word), "{word}");
    }
}
