//! The `sm120` command with NIXL among its transports: `--transport nixl` of `prefill`, `decode` and `pd`.
#![forbid(unsafe_code)]

use bench::halves::Transports;
use std::process::ExitCode;
use transfer_nixl::{Config, Nixl};

fn main() -> ExitCode {
    bench::command::run(Transports { nixl: Some(|| Ok(Box::new(Nixl::new(Config::default())?))) })
}
