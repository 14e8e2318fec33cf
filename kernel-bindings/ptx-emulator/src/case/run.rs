//! Runs a case on the machine, seed by seed.

use super::compare::{Compare, Mismatch, compare};
use super::{Arg, Case, CaseError, Init, Launch, Output};
use crate::counters::{CounterMode, Counters};
use crate::finding::{Finding, FindingClass, Place};
use crate::ir::{Entry, Module};
use crate::machine::{AsyncMode, Checks, LaunchConfig, LaunchError, Machine, MachineConfig};
use crate::memory::MemoryError;
use crate::parse::ParseError;
use serde::Serialize;
use std::collections::BTreeMap;

/// Larger buffers are backed by pages on demand.
const DENSE_BYTES: u64 = 1 << 30;

/// How to run a case.
#[derive(Debug, Clone)]
pub struct Options {
    /// First schedule seed.
    pub first_seed: u64,
    /// Number of seeds; the run ends at the first one that fails.
    pub seeds: u64,
    /// When asynchronous copies move; `None`: by the seed, at the last moment for even ones, in random pieces for odd.
    pub async_mode: Option<AsyncMode>,
    /// Counting.
    pub counters: CounterMode,
    /// Look for errors that leave no trace in the results.
    pub checks: Checks,
    /// A launch that executes more warp instructions ends with a `deadlock` finding.
    pub max_instructions: u64,
}

impl Default for Options {
    /// Four seeds, all checks, no counters.
    fn default() -> Self {
        Options {
            first_seed: 0,
            seeds: 4,
            async_mode: None,
            counters: CounterMode::Off,
            checks: Checks::Full,
            max_instructions: 2_000_000_000,
        }
    }
}

/// What running a case showed.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Name of the case.
    pub case: String,
    /// Outputs match and nothing was found, for every seed.
    pub clean: bool,
    /// What the case expects is what happened.
    pub as_expected: bool,
    /// Seeds in order; the last one is the first that was not clean.
    pub seeds: Vec<SeedResult>,
    /// Outputs whose bytes were not the same for all seeds.
    pub differs_between_seeds: Vec<String>,
}

impl Outcome {
    /// Findings that count, of all seeds.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.seeds.iter().flat_map(|seed| &seed.findings)
    }

    /// Comparisons that failed, of all seeds.
    pub fn mismatches(&self) -> impl Iterator<Item = (u64, &str, &Mismatch)> {
        self.seeds.iter().flat_map(|seed| {
            let outputs = seed.outputs.iter();
            outputs.filter_map(|x| x.mismatch.as_ref().map(|bad| (seed.seed, x.buffer.as_str(), bad)))
        })
    }
}

/// What running a case with one seed showed.
#[derive(Debug, Serialize)]
pub struct SeedResult {
    /// Schedule seed.
    pub seed: u64,
    /// Findings that count.
    pub findings: Vec<Finding>,
    /// Findings that the case tolerates.
    pub tolerated: usize,
    /// Further findings that the machine did not keep.
    pub dropped_findings: u64,
    /// Comparisons; empty when a finding ended the run before the last launch.
    pub outputs: Vec<OutputResult>,
    /// Counters of every launch, when asked for.
    pub counters: Vec<Counters>,
    /// Warp instructions executed.
    pub warp_instructions: u64,
}

impl SeedResult {
    fn clean(&self) -> bool {
        self.findings.is_empty() && self.outputs.iter().all(|output| output.mismatch.is_none())
    }
}

/// One comparison.
#[derive(Debug, Serialize)]
pub struct OutputResult {
    /// Buffer.
    pub buffer: String,
    /// `None` when it matches.
    pub mismatch: Option<Mismatch>,
}

/// Runs a case.
///
/// A text that does not parse and a launch that is refused are findings (`unsupported`, `bad_launch`).
///
/// # Errors
/// [`CaseError::Machine`] when the buffers do not fit into host memory.
pub fn run(case: &Case, options: &Options) -> Result<Outcome, CaseError> {
    let module = Module::parse(&case.ptx);
    let mut seeds = Vec::new();
    let mut first: Vec<Vec<u8>> = Vec::new();
    let mut differs = Vec::new();
    for seed in options.first_seed..options.first_seed.saturating_add(options.seeds.max(1)) {
        let mut bytes = Vec::new();
        let result = match &module {
            Ok(module) => run_seed(case, module, options, seed, &mut bytes)?,
            Err(error) => empty_result(seed, vec![parse_finding(case, error, seed)]),
        };
        if first.is_empty() {
            first = bytes;
        } else {
            for ((output, a), b) in case.outputs.iter().zip(&first).zip(&bytes) {
                if a != b && !differs.contains(&output.buffer) {
                    differs.push(output.buffer.clone());
                }
            }
        }
        let clean = result.clean();
        seeds.push(result);
        if !clean {
            break;
        }
    }
    let classes: Vec<FindingClass> = seeds.iter().flat_map(|seed| &seed.findings).map(|found| found.class).collect();
    let outputs_match = seeds.iter().flat_map(|seed| &seed.outputs).all(|output| output.mismatch.is_none());
    Ok(Outcome {
        case: case.name.clone(),
        clean: classes.is_empty() && outputs_match,
        as_expected: case.expected.met(&classes, outputs_match),
        seeds,
        differs_between_seeds: differs,
    })
}

fn empty_result(seed: u64, findings: Vec<Finding>) -> SeedResult {
    SeedResult {
        seed,
        findings,
        tolerated: 0,
        dropped_findings: 0,
        outputs: Vec::new(),
        counters: Vec::new(),
        warp_instructions: 0,
    }
}

/// A finding that no instruction of a running kernel caused.
fn outside(class: FindingClass, entry: &str, line: u32, text: &str, message: String, seed: u64) -> Finding {
    Finding {
        class,
        place: Place {
            entry: entry.to_owned(),
            ptx_line: line,
            instruction: text.trim().to_owned(),
            source: None,
            block: [0; 3],
            warp: 0,
            lane: None,
        },
        address: None,
        other: None,
        message,
        seed,
        count: 1,
    }
}

fn parse_finding(case: &Case, error: &ParseError, seed: u64) -> Finding {
    let text = case.ptx.lines().nth(error.line.saturating_sub(1) as usize).unwrap_or("");
    let message = format!("{}: {error}", case.ptx_file);
    outside(FindingClass::Unsupported, "", error.line, text, message, seed)
}

fn launch_finding(case: &Case, launch: &Launch, error: &LaunchError, seed: u64) -> Finding {
    let line = if let LaunchError::Unsupported { line, .. } = error { *line } else { 0 };
    let text = case.ptx.lines().nth((line as usize).wrapping_sub(1)).unwrap_or("");
    outside(error.class(), &launch.entry, line, text, error.to_string(), seed)
}

fn machine_error(what: impl Into<String>) -> impl FnOnce(MemoryError) -> CaseError {
    let what = what.into();
    move |error| CaseError::Machine { what, problem: error.to_string() }
}

fn run_seed(
    case: &Case,
    module: &Module,
    options: &Options,
    seed: u64,
    bytes: &mut Vec<Vec<u8>>,
) -> Result<SeedResult, CaseError> {
    let mut config = MachineConfig {
        checks: options.checks,
        counters: options.counters,
        max_instructions: options.max_instructions,
        ..MachineConfig::checked(seed)
    };
    if let Some(mode) = options.async_mode {
        config.async_mode = mode;
    }
    let mut machine = Machine::new(config);
    let mut addresses = BTreeMap::new();
    for (name, buffer) in &case.buffers {
        let address = if buffer.bytes > DENSE_BYTES {
            machine.alloc_virtual(buffer.bytes, name)
        } else {
            machine.alloc(buffer.bytes, name)
        };
        let address = address.map_err(machine_error(format!("buffer `{name}`")))?;
        match &buffer.init {
            Init::Bytes(bytes) => machine.write(address, bytes),
            Init::Fill(value) => machine.fill(address, *value, buffer.bytes),
            Init::Uninit => Ok(()),
        }
        .map_err(machine_error(format!("buffer `{name}`")))?;
        addresses.insert(name.as_str(), address);
    }
    let mut result = empty_result(seed, Vec::new());
    for launch in &case.launches {
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            cluster: launch.cluster.unwrap_or([1; 3]),
            all_resident: launch.needs_all_resident,
        };
        let params = match module.entry(&launch.entry).map(|entry| parameters(entry, &launch.args, &addresses)) {
            Some(Ok(params)) => params,
            Some(Err(problem)) => {
                let bad = outside(FindingClass::BadLaunch, &launch.entry, 0, "", problem, seed);
                result.findings.push(bad);
                return Ok(result);
            }
            // The machine refuses the entry's name.
            None => Vec::new(),
        };
        match machine.launch(module, &launch.entry, &config, &params) {
            Ok(report) => {
                result.warp_instructions += report.warp_instructions;
                result.counters.extend(report.counters);
                result.dropped_findings += report.dropped_findings;
                for finding in report.findings {
                    if case.tolerated.iter().any(|entry| entry.covers(&finding)) {
                        result.tolerated += 1;
                    } else {
                        result.findings.push(finding);
                    }
                }
                // What follows a finding says nothing: later launches work on what this one left behind.
                if report.stopped || !result.findings.is_empty() {
                    break;
                }
            }
            Err(error) => {
                result.findings.push(launch_finding(case, launch, &error, seed));
                return Ok(result);
            }
        }
    }
    if result.findings.is_empty() {
        for output in &case.outputs {
            let (got, mismatch) = check_output(case, output, &machine, addresses[output.buffer.as_str()])?;
            bytes.push(got);
            result.outputs.push(OutputResult { buffer: output.buffer.clone(), mismatch });
        }
    }
    Ok(result)
}

/// The parameter buffer of an entry.
fn parameters(entry: &Entry, args: &[Arg], addresses: &BTreeMap<&str, u64>) -> Result<Vec<u8>, String> {
    if entry.params.len() != args.len() {
        return Err(format!("entry `{}` takes {} arguments, got {}", entry.name, entry.params.len(), args.len()));
    }
    let mut out = vec![0; entry.param_bytes as usize];
    for (index, (param, arg)) in entry.params.iter().zip(args).enumerate() {
        if param.size as usize != arg.bytes.len() {
            let (want, got) = (param.size, arg.bytes.len());
            return Err(format!("argument {} (`{}`) takes {want} bytes, got {got}", index + 1, param.name));
        }
        let start = param.offset as usize;
        out[start..start + arg.bytes.len()].copy_from_slice(&arg.bytes);
        for pointer in &arg.pointers {
            let address = addresses[pointer.buffer.as_str()].wrapping_add_signed(pointer.offset);
            let at = start + pointer.at;
            out[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
    }
    Ok(out)
}

fn check_output(
    case: &Case,
    output: &Output,
    machine: &Machine,
    address: u64,
) -> Result<(Vec<u8>, Option<Mismatch>), CaseError> {
    let buffer = &case.buffers[&output.buffer];
    let problem = || machine_error(format!("output `{}`", output.buffer));
    let mut got = vec![0; buffer.bytes as usize];
    machine.read(address, &mut got).map_err(problem())?;
    let mismatch = compare(buffer, &output.compare, &got, &output.expected);
    let unwritten = machine.first_unwritten(address, buffer.bytes).map_err(problem())?;
    let (None, Some(first)) = (&mismatch, unwritten) else {
        return Ok((got, mismatch));
    };
    // Bytes that nothing wrote match only where any value would: look again with another pattern in their place.
    // Exact comparison of floats takes the pattern of unwritten memory for an expected NaN, for one.
    let mut other = got.clone();
    let mut at = first;
    let mut steps = 0;
    loop {
        other[at as usize] = 0;
        at += 1;
        steps += 1;
        if at >= buffer.bytes || steps > 1 << 20 {
            break;
        }
        match machine.first_unwritten(address + at, buffer.bytes - at).map_err(problem())? {
            Some(next) => at += next,
            None => break,
        }
    }
    let mut mismatch = compare(buffer, &output.compare, &other, &output.expected);
    if matches!(output.compare, Compare::Multiset) && mismatch.is_none() {
        // Zeros among the expected elements would hide it.
        other[first as usize] = 1;
        mismatch = compare(buffer, &output.compare, &other, &output.expected);
    }
    if let Some(bad) = &mut mismatch {
        bad.got = format!("nothing, byte {first} of the buffer was never written");
    }
    Ok((got, mismatch))
}
