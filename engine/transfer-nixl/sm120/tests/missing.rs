//! Without NIXL's library. With it: `SM120_TEST_PROGRAM=.. SM120_TEST_TRANSPORT=nixl cargo test -p bench --test pd`.

use std::process::Command;

/// Said before a checkpoint is looked for.
#[test]
fn a_library_that_is_not_there_is_named() {
    for server in [&["pd"][..], &["prefill"], &["decode", "--prefill", "127.0.0.1:9"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sm120-nixl"));
        command.args(server).args(["--transport", "nixl", "--model", "/nowhere", "--port", "0"]);
        let output = command.env("NIXL_LIBRARY", "/nowhere/libnixl_capi.so").output().expect("the command starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("transport nixl: /nowhere/libnixl_capi.so: "), "{error}");
    }
}
