//! End-to-end runs: closed-loop clients against an engine, latencies and throughput, compared across runs.

mod compare;
mod graphs;
pub(crate) mod http;
mod transfer;

pub use compare::compare;
pub use graphs::GraphFigures;
pub use transfer::Transfer;

use crate::report::table;
use crate::serving::{ModelArgs, Serving, ServingError, Setup, progress_bar};
use clap::Args;
use engine::config::ModelConfig;
use engine::engine::EngineError;
use engine::ids::{SequenceId, TokenId};
use engine::scheduler::{AddError, SchedulerStats};
use engine::sequence::{Event, FinishReason, Request};
use engine::step::Sampling;
use engine::tokenizer::{Tokenizer, TokenizerError};
use reference::rng::Rng;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;
use thiserror::Error;

/// Options of `e2e`.
#[derive(Debug, Clone, Args)]
pub struct E2eArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Clients that each keep one request going, comma-separated: one run per number.
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub concurrency: Vec<u32>,
    /// Tokens of a prompt, or a range `FROM..TO` (end excluded) from which each request draws.
    #[arg(long, default_value = "64..192", value_name = "N|FROM..TO", value_parser = parse_range)]
    pub prompt_tokens: (u32, u32),
    /// Tokens to generate per request.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub new_tokens: u32,
    /// Requests of a run; default: one per client, at least 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests: Option<u32>,
    /// Run everything once before it is measured, on other prompts.
    #[arg(long)]
    pub warm_up: bool,
    /// Prompts from this text, consecutive pieces, instead of random tokens.
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Ask a server at http://HOST:PORT (`sm120 serve`, or another that knows `return_token_ids`) instead of an engine of this
    /// process; --preset or --model say which tokens there are. To compare, serve with --no-prefix-cache: runs share prompts.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Prefill servers behind --url, whose metrics say how many pages move and how fast.
    #[arg(long, value_delimiter = ',', value_name = "IP:PORT", requires = "url")]
    pub prefill_servers: Vec<SocketAddr>,
    /// Seed of prompts and sampling.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Randomness of sampling; 0 takes the likeliest token.
    #[arg(long, default_value_t = 0.0, value_name = "T", value_parser = parse_temperature)]
    pub temperature: f32,
    /// Go on behind end-of-text tokens.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Folder of the report.
    #[arg(long, default_value = "results/local/e2e", value_name = "DIR")]
    pub report: PathBuf,
    /// Also write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print two earlier runs (files of --json) side by side and stop.
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub compare: Option<Vec<PathBuf>>,
}

impl E2eArgs {
    /// Options as they would stand on the command line.
    ///
    /// # Panics
    /// If they do not parse.
    pub fn parse(options: &[&str]) -> Self {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: E2eArgs,
        }
        let words = std::iter::once(&"e2e").chain(options);
        <Command as clap::Parser>::try_parse_from(words).expect("options that parse").args
    }
}

fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("expected a number or FROM..TO with 1 <= FROM < TO, got `{text}`");
    let number = |part: &str| part.parse::<u32>().map_err(|_| wrong());
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(text)?, number(text)?.checked_add(1).ok_or_else(wrong)?),
    };
    if from >= 1 && from < to { Ok((from, to)) } else { Err(wrong()) }
}

/// A temperature on the command line.
pub(crate) fn parse_temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(t) if t.is_finite() && t >= 0.0 => Ok(t),
        _ => Err(format!("expected a finite number from 0, got `{text}`")),
    }
}

/// Why a run did not happen.
#[derive(Debug, Error)]
pub enum E2eError {
    /// No engine.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// A step failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A request was refused.
    #[error("request {number}: {source}")]
    Refused {
        /// Its number.
        number: usize,
        /// Why.
        source: AddError,
    },
    /// Tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A server.
    #[error("{url}: {message}")]
    Server {
        /// Where.
        url: String,
        /// What is wrong.
        message: String,
    },
    /// A file.
    #[error("{}: {message}", path.display())]
    File {
        /// Path.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// Percentiles of a latency, milliseconds; 0 where nothing was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
}

impl Percentiles {
    /// Nearest-rank percentiles.
    pub fn of(values: &mut [f64]) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| match values.len() {
            0 => 0.0,
            n => values[((share * n as f64).ceil() as usize).clamp(1, n) - 1],
        };
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Clients.
    pub concurrency: u32,
    /// Requests.
    pub requests: usize,
    /// Requests that did not finish.
    pub errors: usize,
    /// Prompt tokens, those from the prefix cache included.
    pub prompt_tokens: u64,
    /// Prompt tokens that the prefix cache had.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// First submission to last token, seconds.
    pub seconds: f64,
    /// `output_tokens / seconds`.
    pub output_tokens_per_s: f64,
    /// All tokens, prompts included, per second.
    pub total_tokens_per_s: f64,
    /// Time to first token.
    pub ttft_ms: Percentiles,
    /// Time per output token of a request, the first excluded.
    pub tpot_ms: Percentiles,
    /// Time between two tokens of a request.
    pub itl_ms: Percentiles,
    /// Steps.
    pub steps: u64,
    /// Requests that lost their pages and started again.
    pub preempted: u64,
    /// Hash of all generated tokens, in the order of the requests: equal for equal texts.
    pub checksum: String,
}

/// All runs of a command.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct E2eReport {
    /// What ran.
    pub setup: Setup,
    /// Machine.
    pub machine: Vec<(String, String)>,
    /// Runs.
    pub runs: Vec<Run>,
    /// Decode steps as graphs, all runs together.
    pub graphs: GraphFigures,
    /// Pages that prefill servers sent meanwhile, where those are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
}

/// Prompts of a run, one after the other.
fn prompts(
    args: &E2eArgs,
    config: &ModelConfig,
    model: &Path,
) -> Result<impl Iterator<Item = Vec<TokenId>> + use<>, E2eError> {
    let (from, to) = args.prompt_tokens;
    let mut rng = Rng::named(args.seed, "prompts");
    let vocab = config.vocab_size;
    let text = match &args.text {
        None => None,
        Some(path) => {
            let wrong = |message: String| E2eError::File { path: path.clone(), message };
            let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
            let tokens = Tokenizer::open(model, config)?.encode(&text)?;
            if tokens.is_empty() {
                return Err(wrong("expected text, got none".into()));
            }
            Some(tokens)
        }
    };
    let mut at = 0;
    Ok(std::iter::repeat_with(move || {
        let len = from + rng.below(u64::from(to - from)) as u32;
        (0..len)
            .map(|_| match &text {
                None => TokenId(rng.below(u64::from(vocab)) as u32),
                Some(tokens) => {
                    at += 1;
                    tokens[(at - 1) % tokens.len()]
                }
            })
            .collect()
    }))
}

/// A request as its client saw it; seconds since the run began.
#[derive(Debug, Default)]
struct Seen {
    number: usize,
    prompt_tokens: usize,
    submitted: f64,
    /// Tokens and when they came.
    tokens: Vec<(u32, f64)>,
    cached: u32,
    failed: bool,
}

/// The figures of a run, but for what only an engine knows.
fn figures(concurrency: u32, seen: &[Seen]) -> Run {
    let mut texts = vec![Vec::new(); seen.len()];
    let (mut ttft, mut tpot, mut itl) = (Vec::new(), Vec::new(), Vec::new());
    let mut last: f64 = 0.0;
    for request in seen {
        let times: Vec<f64> = request.tokens.iter().map(|(_, at)| *at).collect();
        if let (Some(first), Some(end)) = (times.first(), times.last()) {
            last = last.max(*end);
            ttft.push(1e3 * (first - request.submitted));
            if times.len() > 1 {
                tpot.push(1e3 * (end - first) / (times.len() - 1) as f64);
            }
        }
        itl.extend(times.windows(2).map(|pair| 1e3 * (pair[1] - pair[0])));
        texts[request.number] = request.tokens.iter().map(|(token, _)| *token).collect();
    }
    let output_tokens: u64 = texts.iter().map(|text| text.len() as u64).sum();
    let prompt_tokens: u64 = seen.iter().map(|request| request.prompt_tokens as u64).sum();
    Run {
        concurrency,
        requests: seen.len(),
        errors: seen.iter().filter(|request| request.failed).count(),
        prompt_tokens,
        cached_tokens: seen.iter().map(|request| u64::from(request.cached)).sum(),
        output_tokens,
        seconds: last,
        output_tokens_per_s: output_tokens as f64 / last.max(1e-9),
        total_tokens_per_s: (output_tokens + prompt_tokens) as f64 / last.max(1e-9),
        ttft_ms: Percentiles::of(&mut ttft),
        tpot_ms: Percentiles::of(&mut tpot),
        itl_ms: Percentiles::of(&mut itl),
        steps: 0,
        preempted: 0,
        checksum: checksum(&texts),
    }
}

/// FNV-1a over 64 bits.
fn checksum(texts: &[Vec<u32>]) -> String {
    let bytes = texts.iter().flat_map(|text| text.iter().copied().chain([u32::MAX])).flat_map(u32::to_le_bytes);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// Requests of a run.
fn num_requests(args: &E2eArgs, concurrency: u32) -> usize {
    args.requests.map_or((concurrency as usize).max(8), |n| n as usize)
}

/// Closed-loop clients: each submits its next request when the one before has ended.
pub fn run(serving: &mut Serving, args: &E2eArgs, concurrency: u32, quiet: bool) -> Result<Run, E2eError> {
    let requests = num_requests(args, concurrency);
    let prompts = prompts(args, &serving.config, Path::new(&serving.setup.model))?;
    let stop =
        if args.ignore_eos { Vec::new() } else { serving.config.eos_ids.iter().map(|&id| TokenId(id)).collect() };
    // A run does not profit from the one before.
    serving.engine.clear_prefix();
    let before: SchedulerStats = serving.engine.scheduler().stats();
    let bar = progress_bar(requests as u64 * u64::from(args.new_tokens), "tokens", !quiet);
    let start = Instant::now();
    let now = || start.elapsed().as_secs_f64();

    let mut waiting = prompts.take(requests).enumerate();
    let mut running: HashMap<SequenceId, Seen> = HashMap::new();
    let mut submit = |serving: &mut Serving, running: &mut HashMap<SequenceId, Seen>, at: f64| {
        let Some((number, prompt)) = waiting.next() else { return Ok(()) };
        let prompt_tokens = prompt.len();
        let request = Request {
            prompt,
            max_tokens: args.new_tokens,
            stop: stop.clone(),
            sampling: Sampling { temperature: args.temperature, seed: args.seed.wrapping_add(number as u64) },
        };
        let id = serving.engine.add(request).map_err(|source| E2eError::Refused { number, source })?;
        running.insert(id, Seen { number, prompt_tokens, submitted: at, ..Seen::default() });
        Ok::<(), E2eError>(())
    };
    for _ in 0..concurrency {
        submit(serving, &mut running, now())?;
    }
    let (mut seen, mut events) = (Vec::new(), Vec::new());
    while serving.engine.has_work() {
        serving.engine.turn(&mut events)?;
        let at = now();
        for event in events.drain(..) {
            match event {
                Event::Token { sequence, token, .. } => {
                    bar.inc(1);
                    running.get_mut(&sequence).expect("a client's request").tokens.push((token.0, at));
                }
                Event::Finished { sequence, reason, usage } => {
                    let mut request = running.remove(&sequence).expect("a client's request");
                    request.failed = matches!(
                        reason,
                        FinishReason::Failed(_) | FinishReason::Cancelled | FinishReason::Unavailable(_)
                    );
                    request.cached = usage.cached_tokens;
                    seen.push(request);
                    submit(serving, &mut running, at)?;
                }
            }
        }
    }
    bar.finish_and_clear();
    let after = serving.engine.scheduler().stats();
    let run = figures(concurrency, &seen);
    Ok(Run { steps: after.steps - before.steps, preempted: after.preempted - before.preempted, ..run })
}

/// The model's options with room for every client, and in a step as many tokens of prompts as of running texts.
fn roomy(args: &E2eArgs) -> ModelArgs {
    let mut model = args.model.clone();
    model.max_running = model.max_running.max(args.concurrency.iter().copied().max().unwrap_or(1));
    let decode = model.max_running * if model.mtp { 2 } else { 1 };
    model.max_batch_tokens = model.max_batch_tokens.max(2 * decode);
    model
}

/// Every run of the command.
pub fn all(args: &E2eArgs, quiet: bool) -> Result<E2eReport, E2eError> {
    let checkpoint = args.model.checkpoint()?;
    if let Some(url) = &args.url {
        return http::all(args, url, &checkpoint, quiet);
    }
    let context = (args.prompt_tokens.1 - 1).saturating_add(args.new_tokens);
    let mut serving = roomy(args).start(checkpoint, context, quiet)?;
    let mut runs = Vec::new();
    for &concurrency in &args.concurrency {
        if args.warm_up {
            run(&mut serving, &E2eArgs { seed: !args.seed, ..args.clone() }, concurrency, true)?;
        }
        runs.push(run(&mut serving, args, concurrency, quiet)?);
    }
    let graphs = GraphFigures::of(&serving.graphs);
    Ok(E2eReport { setup: serving.setup, machine: crate::report::machine_facts(), runs, graphs, transfer: None })
}

impl E2eReport {
    /// Throughput and latencies, one line per run.
    pub fn table(&self) -> String {
        let of = |p: &Percentiles| format!("{:.1} / {:.1} / {:.1}", p.p50, p.p90, p.p99);
        let rows = self.runs.iter().map(|r| {
            [
                r.concurrency.to_string(),
                r.requests.to_string(),
                r.errors.to_string(),
                format!("{:.1}", r.output_tokens_per_s),
                format!("{:.1}", r.total_tokens_per_s),
                of(&r.ttft_ms),
                of(&r.tpot_ms),
                of(&r.itl_ms),
                r.checksum.clone(),
            ]
        });
        let head = [
            "C",
            "requests",
            "errors",
            "output tok/s",
            "all tok/s",
            "TTFT ms p50 / p90 / p99",
            "TPOT ms p50 / p90 / p99",
            "ITL ms p50 / p90 / p99",
            "token checksum",
        ];
        table(head, rows)
    }

    /// One line that says what ran.
    pub fn headline(&self) -> String {
        match (&self.setup.url, &self.transfer) {
            (Some(_), Some(transfer)) => format!("{}; {transfer}", self.setup.headline()),
            (Some(_), None) => self.setup.headline(),
            (None, _) => format!("{}; {}", self.setup.headline(), self.graphs),
        }
    }

    /// Writes README.md, runs.json and plots; the README's path.
    pub fn write(&self, folder: &Path, command: &str) -> Result<PathBuf, E2eError> {
        let wrong = |path: &Path| {
            let path = path.to_path_buf();
            move |error: std::io::Error| E2eError::File { path, message: error.to_string() }
        };
        std::fs::create_dir_all(folder).map_err(wrong(folder))?;
        let mut text = format!("# End-to-end run\n\n```\n{command}\n```\n\n{}\n\n{}\n", self.headline(), self.table());
        for (fact, value) in &self.machine {
            text.push_str(&format!("* {fact}: {value}\n"));
        }
        text.push_str("\n![output tokens per second](throughput.svg)\n![latencies](latency.svg)\n");
        let readme = folder.join("README.md");
        std::fs::write(&readme, text).map_err(wrong(&readme))?;
        let json = folder.join("runs.json");
        std::fs::write(&json, self.json() + "\n").map_err(wrong(&json))?;
        let bars = |points: Vec<(String, Vec<f64>)>, series: &[&str], caption, y, file: &str| {
            let path = folder.join(file);
            crate::plots::bars(caption, y, series, &points, &path).map_err(wrong(&path))
        };
        let label = |run: &Run| format!("C={}", run.concurrency);
        let throughput = self.runs.iter().map(|r| (label(r), vec![r.output_tokens_per_s, r.total_tokens_per_s]));
        let series = ["output", "output and prompt"];
        bars(throughput.collect(), &series, "throughput", "tokens per second", "throughput.svg")?;
        let latency = self.runs.iter().map(|r| {
            (label(r), vec![r.ttft_ms.p50, r.ttft_ms.p99, r.tpot_ms.p50, r.tpot_ms.p99, r.itl_ms.p50, r.itl_ms.p99])
        });
        let series = ["TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "ITL p50", "ITL p99"];
        bars(latency.collect(), &series, "latencies", "milliseconds", "latency.svg")?;
        Ok(readme)
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data")
    }

    /// Whether every request of every run finished, and, on the host, all runs of equal prompts gave equal texts. Kernels have one
    /// form for few tokens and one for many, so that elsewhere a near tie may fall either way.
    pub fn passes(&self) -> bool {
        let host = self.setup.device == "host";
        let equal = |a: &Run, b: &Run| !host || a.requests != b.requests || a.checksum == b.checksum;
        self.runs.iter().all(|run| run.errors == 0) && self.runs.windows(2).all(|pair| equal(&pair[0], &pair[1]))
    }
}

#[cfg(test)]
mod tests;
