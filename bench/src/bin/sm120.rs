//! `sm120`: see [`bench::cli`].

use bench::halves::Transports;
use std::process::ExitCode;

fn main() -> ExitCode {
    bench::command::run(Transports::default())
}
