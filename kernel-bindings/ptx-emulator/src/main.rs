//! Command line of the machine: run case files, check PTX texts.

use clap::{Parser, Subcommand, ValueEnum};
use ptx_emulator::case::{self, Case, Options, Outcome};
use ptx_emulator::ir::{Module, Space};
use ptx_emulator::{AsyncMode, Checks, CounterMode, Counters};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes to standard output. A reader that has gone away (`| head`) ends the program quietly; any other failure ends it
/// with status 2.
fn write_out(text: std::fmt::Arguments<'_>) {
    if let Err(error) = std::io::stdout().write_fmt(text) {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("cannot write to standard output: {error}");
        std::process::exit(2);
    }
}

macro_rules! outln {
    ($($text:tt)*) => { write_out(format_args!("{}\n", format_args!($($text)*))) };
}

/// A PTX machine and sanitizer on the CPU.
#[derive(Parser)]
#[command(
    name = "ptx-emulator",
    after_help = "Exit status: 0 success, 1 a mismatch or a finding (with --expect: not what the case expects), \
                  2 the case file or the arguments are wrong."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a case file: buffers, launches, expected outputs, expected findings.
    ///
    /// Succeeds when all outputs match and no finding arises, for every schedule seed.
    Run(RunArgs),
    /// Parse a PTX file and list its entries.
    Check {
        /// PTX text.
        file: PathBuf,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// The JSON file of a case folder.
    case: PathBuf,
    /// Number of schedule seeds; the run ends at the first that fails.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First schedule seed; a finding names the one that repeats it.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// When asynchronous copies move.
    #[arg(long, value_enum, default_value_t = Schedule::Seeded)]
    schedule: Schedule,
    /// Count instructions, memory traffic and bank conflicts, and print them per launch.
    #[arg(long)]
    counters: bool,
    /// Bounds and alignment only: fast, and blind for races, uninitialised values and the like.
    #[arg(long)]
    no_checks: bool,
    /// Print one JSON document instead of text.
    #[arg(long)]
    json: bool,
    /// Succeed when what the case expects is what happened, findings included.
    #[arg(long)]
    expect: bool,
    /// End a launch as a deadlock after this many warp instructions.
    #[arg(long, default_value_t = 2_000_000_000)]
    max_instructions: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Schedule {
    /// By the seed: at the last moment for even ones, in random pieces for odd ones.
    Seeded,
    /// At once.
    Eager,
    /// At the last moment that the program allows.
    AtWait,
    /// In pieces of 16 bytes, in any order, any time before the last moment.
    Random,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Check { file } => check(&file),
    }
}

fn run(args: &RunArgs) -> ExitCode {
    let options = Options {
        first_seed: args.seed,
        seeds: args.seeds,
        async_mode: match args.schedule {
            Schedule::Seeded => None,
            Schedule::Eager => Some(AsyncMode::Eager),
            Schedule::AtWait => Some(AsyncMode::AtWait),
            Schedule::Random => Some(AsyncMode::Random),
        },
        counters: if args.counters { CounterMode::Total } else { CounterMode::Off },
        checks: if args.no_checks { Checks::Off } else { Checks::Full },
        max_instructions: args.max_instructions,
    };
    let loaded = Case::load(&args.case).and_then(|case| case::run(&case, &options).map(|outcome| (case, outcome)));
    let (case, outcome) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            if args.json {
                outln!("{}", serde_json::json!({ "error": error.to_string() }));
            }
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let success = if args.expect { outcome.as_expected } else { outcome.clean };
    if args.json {
        let mut document = serde_json::json!(outcome);
        document["success"] = success.into();
        outln!("{document:#}");
    } else {
        print_outcome(args, &case, &outcome, success);
    }
    if success { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn print_outcome(args: &RunArgs, case: &Case, outcome: &Outcome, success: bool) {
    let title = if case.title.is_empty() { String::new() } else { format!(" ({})", case.title) };
    for (seed, buffer, mismatch) in outcome.mismatches() {
        outln!("mismatch: output `{buffer}`: {mismatch} (seed {seed})");
    }
    for finding in outcome.findings() {
        outln!("{finding}");
    }
    for seed in &outcome.seeds {
        if seed.dropped_findings > 0 {
            outln!("seed {}: {} further findings were not kept", seed.seed, seed.dropped_findings);
        }
        if seed.tolerated > 0 {
            outln!("seed {}: {} findings tolerated", seed.seed, seed.tolerated);
        }
    }
    for buffer in &outcome.differs_between_seeds {
        outln!("note: the bytes of `{buffer}` depend on the schedule");
    }
    if let Some(first) = outcome.seeds.first() {
        for (index, counters) in first.counters.iter().enumerate() {
            print_counters(&case.launches[index].entry, counters);
        }
    }
    let what = match (outcome.clean, outcome.as_expected) {
        (true, true) => "outputs match, no findings",
        (true, false) => "outputs match, no findings, but the case expects some",
        (false, true) => "failed, as the case expects",
        (false, false) => "failed",
    };
    let instructions: u64 = outcome.seeds.iter().map(|seed| seed.warp_instructions).sum();
    outln!(
        "{} {}{title}: {what}; {} of {} seeds run, {instructions} warp instructions",
        if success { "ok" } else { "FAIL" },
        outcome.case,
        outcome.seeds.len(),
        args.seeds,
    );
    if let (false, Some(last)) = (outcome.clean, outcome.seeds.last()) {
        outln!("repeat: ptx-emulator run {} --seed {} --seeds 1", args.case.display(), last.seed);
    }
}

fn print_counters(entry: &str, counters: &Counters) {
    outln!("counters of {entry}:");
    if let Ok(serde_json::Value::Object(total)) = serde_json::to_value(counters.total) {
        for (name, value) in total.iter().filter(|(_, value)| value.as_u64() != Some(0)) {
            outln!("  {name:<26} {value}");
        }
    }
    for (class, count) in &counters.by_class {
        outln!("  instructions {class:<13} {count}");
    }
    for (shape, count) in &counters.mma {
        outln!("  mma {shape} {count}");
    }
    for (name, value) in [
        ("mma_flops", counters.mma_flops),
        ("barriers", counters.barriers),
        ("mbarrier_phases", counters.mbarrier_phases),
    ] {
        if value > 0 {
            outln!("  {name:<26} {value}");
        }
    }
}

fn check(file: &Path) -> ExitCode {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("error: cannot read `{}`: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    let module = match Module::parse(&text) {
        Ok(module) => module,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            return ExitCode::from(1);
        }
    };
    outln!(
        "{}: version {}.{}, target sm_{}, {} entries",
        file.display(),
        module.version.0,
        module.version.1,
        module.target.sm,
        module.entries.len()
    );
    for entry in &module.entries {
        let shared = entry.variables.iter().chain(&module.variables).filter(|v| v.space == Space::Shared);
        let bytes: u64 = shared.map(|variable| variable.size).sum();
        outln!(
            "  {}: {} parameters in {} bytes, {} instructions, {} registers, {bytes} bytes of static shared memory",
            entry.name,
            entry.params.len(),
            entry.param_bytes,
            entry.code.len(),
            entry.registers.len(),
        );
        for param in &entry.params {
            outln!("    {:>5} +{:<4} {}", param.size, param.offset, param.name);
        }
    }
    ExitCode::SUCCESS
}
