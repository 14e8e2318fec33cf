//! The heaviest operations on the host, timed: what `bench/peers/operations.py` puts beside other programs.

use crate::shapes;
use crate::timed::Timed;
use clap::Args;
use kernel_bindings::host::HostOps;
use reference::cases::Draw;
use reference::cases::topk_select::{Row, Shape};
use reference::ops::{IndexKFormat, OpsError};
use reference::problem::{Fill, Problem};
use serde::Serialize;
use std::path::PathBuf;

/// Options of `bench-host`.
#[derive(Debug, Clone, Args)]
pub struct BenchHostArgs {
    /// Times that each operation runs.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeats: u32,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostRow {
    /// Operation.
    pub operation: &'static str,
    /// Shape in words.
    pub shape: &'static str,
    /// Fastest run, milliseconds, copies not counted.
    pub min_ms: f64,
    /// Median run.
    pub median_ms: f64,
}

/// All figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostReport {
    /// Operations.
    pub operations: Vec<HostRow>,
    /// Machine.
    pub machine: Vec<(String, String)>,
}

/// Runs every operation `repeats` times.
pub fn run(repeats: u32) -> Result<HostReport, OpsError> {
    let rows =
        Shape { rows: vec![(32_768, Row::Random(Draw::Normal)); 32], topk: 512, slots: false, ..Shape::default() };
    let work = [
        (
            "index_logits_decode",
            "fp8, 32 x 32,768 keys, 64 heads",
            Problem::IndexLogitsDecode(shapes::index_logits(IndexKFormat::Fp8, 32, 32_768, 1)),
        ),
        (
            "sparse_mla_decode",
            "v4_fp8, 32 x 640 rows, 64 heads",
            Problem::SparseMlaDecode(Box::new(shapes::sparse_mla(32, 64).build(1))),
        ),
        ("topk_select", "512 of 32 x 32,768", Problem::TopkSelect(rows.build(1))),
    ];
    let mut operations = Vec::new();
    for (operation, shape, problem) in work {
        let mut times = Vec::new();
        for _ in 0..repeats {
            let timed = Timed::new(&HostOps);
            problem.run(&timed, Fill::Leave)?;
            times.push(1e3 * timed.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        operations.push(HostRow { operation, shape, min_ms: times[0], median_ms: times[times.len() / 2] });
    }
    Ok(HostReport { operations, machine: crate::report::machine_facts() })
}
