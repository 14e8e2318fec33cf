//! The command behind [`crate::cli`]: what it says and the status it ends with.

use crate::cli::{Cli, Command, DevicesArgs, InspectArgs, MakeCheckpointArgs, MutantsArgs, ParityArgs, PlanArgs};
use crate::e2e::{self, E2eArgs, E2eReport};
use crate::experiment::ExperimentArgs;
use crate::generate::{self, GenerateArgs};
use crate::halves::Transports;
use crate::host_ops::{self, BenchHostArgs};
use crate::report::{self, Report};
use crate::serve::{self, ServeError};
use crate::{checkpoints, deployment, devices, halves, job, mutants, plan};
use clap::Parser;
use clap::error::{ContextKind, ErrorKind};
use engine::sequence::FinishReason;
use std::io::{IsTerminal, Write};
use std::path::Path;
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

macro_rules! out {
    ($($text:tt)*) => { write_out(format_args!($($text)*)) };
}

macro_rules! outln {
    () => { write_out(format_args!("\n")) };
    ($($text:tt)*) => { write_out(format_args!("{}\n", format_args!($($text)*))) };
}

type Failure = Box<dyn std::error::Error>;

/// Runs the command line of this process, in a build that has these transports.
pub fn run(transports: Transports) -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => match variable_to_blame(&error, &words, std::env::var("SM120_DEVICE").ok().as_deref()) {
            Some(text) => return failed(text),
            None => error.exit(),
        },
    };
    if let Err(text) = check_threads(std::env::var("RAYON_NUM_THREADS").ok().as_deref()) {
        return failed(text);
    }
    match &cli.command {
        Some(Command::Serve(args)) => return server(|quiet, say| serve::run(args, quiet, say)),
        Some(Command::Prefill(args)) => return server(|quiet, say| halves::prefill(args, transports, quiet, say)),
        Some(Command::Decode(args)) => return server(|quiet, say| halves::decode(args, transports, quiet, say)),
        Some(Command::Router(args)) => return server(|_, say| deployment::router(args, say)),
        Some(Command::Pd(args)) => {
            let line = std::env::args_os().skip_while(|word| word != "pd").skip(1);
            return server(|_, say| deployment::pd(args, transports, line, say));
        }
        _ => {}
    }
    let outcome = match cli.command {
        None => main_job(&cli.report, cli.json.as_deref()),
        Some(Command::Devices(args)) => list_devices(&args),
        Some(Command::Parity(args)) => parity(&args),
        Some(Command::E2e(args)) => end_to_end(&args),
        Some(Command::BenchHost(args)) => bench_host(&args),
        Some(Command::Generate(args)) => completion(&args),
        Some(Command::Serve(_) | Command::Prefill(_) | Command::Decode(_) | Command::Router(_) | Command::Pd(_)) => {
            unreachable!("servers run above")
        }
        Some(Command::Experiment(args)) => experiment(&args, transports),
        Some(Command::Mutants(args)) => mutation_score(&args),
        Some(Command::Plan(args)) => memory_plan(&args),
        Some(Command::Inspect(args)) => inspect(&args),
        Some(Command::MakeCheckpoint(args)) => make_checkpoint(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(error),
    }
}

/// Says why nothing was done.
fn failed(why: impl std::fmt::Display) -> ExitCode {
    // Where standard error takes nothing, the status still tells.
    let _ = writeln!(std::io::stderr(), "sm120: {why}");
    ExitCode::from(2)
}

/// A device that nobody wrote on the command line comes from the environment, and is to be corrected there.
fn variable_to_blame(error: &clap::Error, words: &[String], device: Option<&str>) -> Option<String> {
    let about = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let of_device = error.kind() == ErrorKind::InvalidValue && about.starts_with("--device");
    let written = words.iter().any(|word| word == "--device" || word.starts_with("--device="));
    let device = device.filter(|_| of_device && !written)?;
    Some(format!("SM120_DEVICE: expected host, emulated or cuda, got `{device}`"))
}

/// Threads that the system may not have are no thread at all: rayon ends the process when it cannot start one.
fn check_threads(variable: Option<&str>) -> Result<(), String> {
    const MOST: u64 = 1024;
    match variable.map(str::parse::<u64>) {
        Some(Ok(threads)) if threads > MOST => {
            Err(format!("RAYON_NUM_THREADS: expected at most {MOST}, got {threads}"))
        }
        Some(Err(_)) => Err(format!("RAYON_NUM_THREADS: expected a number, got `{}`", variable.unwrap_or_default())),
        Some(Ok(_)) | None => Ok(()),
    }
}

fn write_json(path: Option<&Path>, value: &impl serde::Serialize) -> Result<(), Failure> {
    if let Some(path) = path {
        let text = serde_json::to_string_pretty(value)?;
        std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

/// Prints the devices; true.
fn list_devices(args: &DevicesArgs) -> Result<bool, Failure> {
    let rows = devices::list();
    let cells = rows.iter().map(|row| {
        let state = if row.present { "present" } else { "absent" };
        [row.kind.clone(), state.to_owned(), row.name.clone(), row.facts.clone()]
    });
    out!("{}", report::table(["device", "", "name", "facts"], cells));
    write_json(args.json.as_deref(), &rows)?;
    Ok(true)
}

fn print_parity(report: &Report) {
    out!("{}", report.parity_table());
    for (device, reason, count) in report.not_offered() {
        outln!("not offered on {device}: {count} cases: {reason}");
    }
    for (device, reason) in &report.absent {
        outln!("not judged: {device}: {reason}");
    }
    for row in report.failures() {
        outln!("\nFAIL {} on {}:\n{}", row.case, row.device, row.failure);
    }
}

fn parity(args: &ParityArgs) -> Result<bool, Failure> {
    if args.list {
        for case in job::cases(args)? {
            outln!("{}", case.name);
        }
        return Ok(true);
    }
    check_json(args.json.as_deref())?;
    let report = job::parity(args)?;
    print_parity(&report);
    write_json(args.json.as_deref(), &report)?;
    Ok(report.failures().next().is_none())
}

fn end_to_end(args: &E2eArgs) -> Result<bool, Failure> {
    if let Some([a, b]) = args.compare.as_deref() {
        out!("{}", e2e::compare(a, b)?);
        return Ok(true);
    }
    check_json(args.json.as_deref())?;
    check_folder(&args.report)?;
    let report = e2e::all(args, !std::io::stderr().is_terminal())?;
    outln!("{}\n\n{}", report.headline(), report.table());
    let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let readme = report.write(&args.report, &format!("sm120 {command}"))?;
    write_json(args.json.as_deref(), &report)?;
    outln!("report: {}", readme.display());
    Ok(report.passes())
}

/// Runs an experiment; its figure is the last line.
fn experiment(args: &ExperimentArgs, transports: Transports) -> Result<bool, Failure> {
    let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let answer = crate::experiment::run(args, transports, &format!("sm120 {command}"))?;
    outln!("{}\n{}", answer.table(), answer.figure);
    Ok(answer.passes())
}

fn bench_host(args: &BenchHostArgs) -> Result<bool, Failure> {
    check_json(args.json.as_deref())?;
    let report = host_ops::run(args.repeats)?;
    let rows = report.operations.iter().map(|r| {
        [r.operation.to_owned(), r.shape.to_owned(), format!("{:.2}", r.min_ms), format!("{:.2}", r.median_ms)]
    });
    out!("{}", report::table(["operation", "shape", "min ms", "median ms"], rows));
    write_json(args.json.as_deref(), &report)?;
    Ok(true)
}

fn completion(args: &GenerateArgs) -> Result<bool, Failure> {
    let done = generate::run(args, |piece| {
        out!("{piece}");
        // A terminal shows a line at its end otherwise; write_out has reported a closed pipe.
        let _ = std::io::stdout().flush();
    })?;
    outln!();
    if let FinishReason::Failed(why) = &done.reason {
        eprintln!("sm120: after {} tokens: {why}", done.usage.generated_tokens);
        return Ok(false);
    }
    let seconds = done.all.as_secs_f64();
    if args.model.model.is_none() {
        eprintln!("the weights of --preset are random, and so is the text; --model DIR takes a checkpoint");
    }
    eprintln!(
        "{} prompt tokens, {} generated in {seconds:.2} s, first after {:.0} ms ({:?})",
        done.usage.prompt_tokens,
        done.usage.generated_tokens,
        1e3 * done.first.as_secs_f64(),
        done.reason,
    );
    Ok(true)
}

/// Runs a server until it ends; what it says goes out line by line.
fn server(run: impl FnOnce(bool, &mut dyn FnMut(&str)) -> Result<ExitCode, ServeError>) -> ExitCode {
    let mut say = |line: &str| {
        outln!("{line}");
        // Whoever waits for the address reads it through a pipe.
        let _ = std::io::stdout().flush();
    };
    run(!std::io::stderr().is_terminal(), &mut say).unwrap_or_else(|error| {
        eprintln!("sm120: {error}");
        ExitCode::from(2)
    })
}

fn mutation_score(args: &MutantsArgs) -> Result<bool, Failure> {
    check_json(args.json.as_deref())?;
    let score = mutants::score(args.module.as_deref().unwrap_or_default(), args.seeds)?;
    let mut modules: Vec<&str> = score.mutants.iter().map(|m| m.module.as_str()).collect();
    modules.dedup();
    let rows = modules.iter().map(|&module| {
        let of = || score.mutants.iter().filter(|m| m.module == module);
        let killed = of().filter(|m| matches!(m.fate, mutants::Fate::Killed(_))).count();
        let excused = of().filter(|m| matches!(m.fate, mutants::Fate::Equivalent(_))).count();
        [module.to_owned(), format!("{killed} / {}", of().count()), excused.to_string()]
    });
    if !score.mutants.is_empty() {
        out!("{}", report::table(["module", "killed", "equivalent"], rows));
    }
    for mutant in &score.mutants {
        match &mutant.fate {
            mutants::Fate::Survived => {
                outln!("SURVIVED {} line {} `{}` ({})", mutant.module, mutant.line, mutant.statement, mutant.source);
            }
            mutants::Fate::Equivalent(reason) => {
                outln!("equivalent {} `{}` ({}): {reason}", mutant.module, mutant.statement, mutant.source);
            }
            mutants::Fate::Killed(_) => {}
        }
    }
    for stale in &score.stale {
        outln!("STALE excuse, no survivor matches: {stale}");
    }
    if score.mutants.is_empty() {
        outln!("nothing to remove: no wait, barrier, fence or arrive in these modules");
    }
    outln!("killed {} / {} mutants in {:.1} s", score.killed(), score.mutants.len(), score.seconds);
    write_json(args.json.as_deref(), &score)?;
    Ok(score.passes())
}

/// Prints the plan; true.
fn memory_plan(args: &PlanArgs) -> Result<bool, Failure> {
    check_json(args.json.as_deref())?;
    let report = plan::plan(args)?;
    out!("{}", report.render());
    write_json(args.json.as_deref(), &report)?;
    Ok(true)
}

/// Shows a checkpoint; an error if it cannot be loaded.
fn inspect(args: &InspectArgs) -> Result<bool, Failure> {
    check_json(args.json.as_deref())?;
    let inspection = checkpoints::inspect(args)?;
    out!("{}", inspection.text());
    write_json(args.json.as_deref(), &inspection)?;
    inspection.verdict().map_err(Failure::from)?;
    Ok(true)
}

fn make_checkpoint(args: &MakeCheckpointArgs) -> Result<bool, Failure> {
    outln!("{}", checkpoints::make(args)?);
    Ok(true)
}

/// Refuses an output path before the work is done, not after. An existing file is left as it is.
fn check_json(path: Option<&Path>) -> Result<(), Failure> {
    if let Some(path) = path {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

/// The same for the folder of a report.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    Ok(std::fs::create_dir_all(folder).map_err(|e| format!("cannot write a report to {}: {e}", folder.display()))?)
}

fn main_job(folder: &Path, json: Option<&Path>) -> Result<bool, Failure> {
    check_json(json)?;
    check_folder(folder)?;
    let report = job::main_job()?;
    print_parity(&report);
    outln!("\nrecall of the exact top-512 by index-K format\n{}", report.recall_table());
    if let Some(e2e) = &report.e2e {
        outln!("\nend to end: {}\n{}", e2e.headline(), e2e.table());
    }
    if let Some(halves) = &report.halves {
        outln!("\nprefill and decode in processes of their own: {}\n{}", halves.headline(), halves.table());
    }
    outln!("real shapes on the emulator\n{}", report.shapes_table());
    let readme = report.write(folder).map_err(|e| format!("cannot write the report to {}: {e}", folder.display()))?;
    write_json(json, &report)?;
    let failed = report.failures().count();
    let verdict = if failed == 0 { "all passed".to_owned() } else { format!("{failed} FAILED") };
    outln!("{} parity cases, {verdict}; {:.1} s; report: {}", report.parity.len(), report.seconds, readme.display());
    let served = [&report.e2e, &report.halves].iter().all(|run| run.as_ref().is_some_and(E2eReport::passes));
    if !served {
        outln!("end to end: requests FAILED, or C = 1 and C = 32 gave different texts");
    }
    Ok(failed == 0 && !report.parity.is_empty() && served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_the_environment_is_blamed_there() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        // What clap says of a bad variable, it says of a bad option too.
        let error = Cli::try_parse_from(["sm120", "parity", "--device", "gpu"]).expect_err("no such device");
        let blamed = variable_to_blame(&error, &words("sm120 parity"), Some("gpu"));
        assert_eq!(blamed.as_deref(), Some("SM120_DEVICE: expected host, emulated or cuda, got `gpu`"));
        for line in ["sm120 parity --device gpu", "sm120 parity --device=gpu"] {
            assert_eq!(variable_to_blame(&error, &words(line), Some("gpu")), None, "{line}");
        }
        let other = Cli::try_parse_from(["sm120", "parity", "--size", "gpu"]).expect_err("no such size");
        assert_eq!(variable_to_blame(&other, &words("sm120 parity"), Some("gpu")), None);
    }

    #[test]
    fn more_threads_than_a_system_has_are_refused() {
        assert_eq!([None, Some("0"), Some("2"), Some("1024")].map(check_threads), [const { Ok(()) }; 4]);
        let refused = "RAYON_NUM_THREADS: expected at most 1024, got 100000";
        assert_eq!(check_threads(Some("100000")), Err(refused.to_owned()));
        assert!(check_threads(Some("two")).is_err());
    }
}
