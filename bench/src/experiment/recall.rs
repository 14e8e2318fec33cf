//! `sm120 experiment recall`: beginnings that the device always loses, with host memory and without. How long until the first
//! token, and is it the same text?

use super::{Answer, ExperimentError, stage};
use crate::serving::{HostArgs, HostBytes, IndexK, ModelArgs, Serving, parse_host_bytes};
use clap::Args;
use engine::host_cache::HostStats;
use engine::ids::TokenId;
use engine::sequence::{Event, Request};
use engine::step::Sampling;
use reference::rng::Rng;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of `experiment recall`.
#[derive(Debug, Clone, Args)]
pub struct RecallArgs {
    /// Model and device. At most one request runs at once, so that the device holds one text.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Prompts that are asked for in turn.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4_096))]
    pub prompts: u32,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_048_576))]
    pub prompt_tokens: u32,
    /// Tokens that are generated.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_tokens: u32,
    /// Times that every prompt is asked for; the first is not measured.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000))]
    pub rounds: u32,
    /// Folder of the report.
    #[arg(long, default_value = "results/local/experiment", value_name = "DIR")]
    pub report: PathBuf,
}

/// What one engine answered.
struct Run {
    /// Until the first token, every request behind the first round.
    first: Vec<Duration>,
    texts: Vec<Vec<TokenId>>,
    /// Of those requests' prompts, found rather than computed.
    found: u64,
    host: HostStats,
}

impl Run {
    fn p50_ms(&self) -> f64 {
        let mut sorted = self.first.clone();
        sorted.sort();
        sorted.get(sorted.len() / 2).map_or(0.0, |first| first.as_secs_f64() * 1e3)
    }
}

/// Runs it.
///
/// # Errors
/// An engine that does not start, or a step that fails.
pub(super) fn run(args: &RecallArgs) -> Result<Answer, ExperimentError> {
    let mut answer = Answer::default();
    let mut figures = Vec::new();
    for (index_k, name) in [(IndexK::Bf16, "bf16"), (IndexK::Fp8, "fp8")] {
        stage(&format!("index K {name}: without host cache, then with it"));
        let without = ask(args, index_k, HostBytes::Off)?;
        let bytes = match args.model.host.host_cache {
            HostBytes::Off => parse_host_bytes("1GiB").map_err(ExperimentError::Server)?,
            bytes => bytes,
        };
        let with = ask(args, index_k, bytes)?;
        let whole = u64::from(args.prompts) * u64::from(args.rounds - 1) * u64::from(args.prompt_tokens);
        let rate = |run: &Run| format!("{:.1} %", 100.0 * run.found as f64 / whole as f64);
        answer.tell(&format!("index K {name}: TTFT p50 without host cache"), format!("{:.2} ms", without.p50_ms()));
        answer.tell(&format!("index K {name}: TTFT p50 with it"), format!("{:.2} ms", with.p50_ms()));
        answer.tell(&format!("index K {name}: prompt tokens found without it"), rate(&without));
        answer.tell(&format!("index K {name}: prompt tokens found with it"), rate(&with));
        let HostStats { hits, loads_failed, saved, .. } = with.host;
        let seen = format!("{hits} hits, {loads_failed} failed, {saved} pages saved");
        answer.judge(&format!("index K {name}: copies back"), seen, hits > 0 && loads_failed == 0);
        let equal = with.texts.iter().zip(&without.texts).filter(|(with, without)| with == without).count();
        let seen = format!("{equal} of {} texts", without.texts.len());
        answer.judge(&format!("index K {name}: greedy texts equal"), seen, equal == without.texts.len());
        figures.push(format!("{name} {:.2} ms instead of {:.2} ms", with.p50_ms(), without.p50_ms()));
    }
    answer.figure = format!("time to first token, p50, with index keys in {}", figures.join(", in "));
    Ok(answer)
}

fn ask(args: &RecallArgs, index_k: IndexK, host_cache: HostBytes) -> Result<Run, ExperimentError> {
    let failed = |error: &dyn std::fmt::Display| ExperimentError::Server(error.to_string());
    let host = HostArgs { host_cache, ..args.model.host.clone() };
    let model = ModelArgs { index_k: Some(index_k), max_running: 1, host, ..args.model.clone() };
    let checkpoint = model.checkpoint().map_err(|error| failed(&error))?;
    let vocab = u64::from(checkpoint.config().vocab_size);
    let context = args.prompt_tokens + args.max_tokens;
    let Serving { mut engine, .. } = model.start(checkpoint, context, true).map_err(|error| failed(&error))?;
    let mut run = Run { first: Vec::new(), texts: Vec::new(), found: 0, host: HostStats::default() };
    for round in 0..args.rounds {
        let before = engine.scheduler().stats().cached_tokens;
        for prompt in 0..args.prompts {
            let mut rng = Rng::named(u64::from(prompt), "recall");
            let prompt = (0..args.prompt_tokens).map(|_| TokenId(rng.below(vocab) as u32)).collect();
            let (max_tokens, stop) = (args.max_tokens, Vec::new());
            engine
                .add(Request { prompt, max_tokens, stop, sampling: Sampling::GREEDY })
                .map_err(|error| failed(&error))?;
            let (start, mut first, mut text, mut events) = (Instant::now(), None, Vec::new(), Vec::new());
            while engine.has_work() {
                engine.turn(&mut events).map_err(|error| failed(&error))?;
                for event in events.drain(..) {
                    if let Event::Token { token, .. } = event {
                        first.get_or_insert_with(|| start.elapsed());
                        text.push(token);
                    }
                }
            }
            if round > 0 {
                run.first.extend(first);
            }
            run.texts.push(text);
        }
        if round > 0 {
            run.found += engine.scheduler().stats().cached_tokens - before;
        }
    }
    run.host = engine.scheduler().host_stats();
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::experiment::Question;
    use crate::serving::HostCachePolicy;
    use clap::Parser;
    use engine::checkpoint::make::{Make, Store};
    use engine::config::ModelConfig;
    use tempfile::TempDir;

    fn made() -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let config = ModelConfig::tiny();
        let make = Make { config: &config, seed: 1, store: Store::Fp8Fp4, shard_bytes: u64::MAX };
        make.run(folder.path().join("model"), |_| ()).expect("written");
        folder
    }

    fn parse(folder: &TempDir, line: &str) -> RecallArgs {
        let model = folder.path().join("model");
        let line = format!("sm120 experiment recall --device host --model {} {line}", model.display());
        match Cli::try_parse_from(line.split_whitespace()).expect("options").command {
            Some(Command::Experiment(args)) => match args.question {
                Question::Recall(args) => args,
                other => unreachable!("{other:?}"),
            },
            _ => unreachable!("an experiment"),
        }
    }

    /// Whether a text is saved at first sight or last, with drafts or without.
    #[test]
    fn texts_come_out_of_host_memory_unchanged() {
        let folder = made();
        for options in ["write-through --verify-host-cache", "write-back", "write-back --mtp"] {
            let sizes = "--prompts 3 --prompt-tokens 560 --max-tokens 4 --rounds 2 --host-cache 64MiB";
            let args = parse(&folder, &format!("{sizes} --host-cache-policy {options}"));
            let answer = run(&args).expect("an answer");
            assert!(answer.passes(), "{options}:\n{}", answer.table());
        }
    }

    /// Nothing is saved that is not hit twice, and nothing is hit that is always lost.
    #[test]
    fn a_selective_tier_has_nothing_to_give_here() {
        let folder = made();
        let policy = HostCachePolicy::WriteThroughSelective;
        let args = parse(&folder, "--prompts 3 --prompt-tokens 300 --max-tokens 2 --rounds 2");
        let host = HostArgs { host_cache_policy: policy, ..args.model.host.clone() };
        let args = RecallArgs { model: ModelArgs { host, ..args.model }, ..args };
        let run = ask(&args, IndexK::Fp8, HostBytes::Bytes(64 << 20)).expect("an answer");
        assert_eq!((run.host.saved, run.host.hits), (0, 0));
    }
}
