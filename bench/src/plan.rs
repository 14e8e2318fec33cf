//! `sm120 plan`: what the cache of a model takes, and what fits into a card.

use crate::cli::{PlanArgs, PolicyChoice, WeightBytes};
use crate::halves::arena_sizes;
use crate::report::table;
use crate::serving::{self, HostBytes};
use engine::checkpoint::make::{Make, Store};
use engine::config::{ConfigError, ModelConfig};
use engine::geometry::{CacheGeometry, CacheShape, PoolName};
use engine::handover::layout;
use engine::host_cache::HostSizes;
use engine::host_tier::HostTierConfig;
use engine::model::{Limits, Numerics, RankBytes, RankShape};
use engine::plan::{MemoryPlan, PlanRequest, Term, WindowSizing};
use serde::Serialize;
use std::fmt::Write;

/// A plan with what it was made for.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// Preset, or the configuration file.
    pub model: String,
    /// Format of window and compressed rows.
    pub kv: &'static str,
    /// Format of index keys.
    pub index_k: &'static str,
    /// Page and ring policy.
    pub policy: &'static str,
    /// Ranks; each holds the whole cache and its part of the weights.
    pub tp: u32,
    /// Bytes of all weights, as a checkpoint stores them.
    pub weights: u64,
    /// What a rank takes beside its cache.
    pub rank: RankBytes,
    /// What was left for everything else.
    pub reserve: u64,
    /// Tokens of the sequences that are counted.
    pub context: u32,
    /// Sequences of that length that fit.
    pub sequences: u32,
    /// Pool that ends it.
    pub limited_by: PoolName,
    /// Bytes per token of context without page padding.
    pub bytes_per_token: f64,
    /// Page padding per token of context.
    pub padding_per_token: f64,
    /// Of both, what grows with a text without bound.
    pub growth_per_token: f64,
    /// The plan of one rank.
    pub plan: MemoryPlan,
    /// Host memory under the prefix cache of one rank.
    pub host: Option<HostPlan>,
    /// Memory of one rank in which pages stand on their way between prefill and decode, the same on both sides.
    pub arena: Option<ArenaPlan>,
}

/// A host cache.
#[derive(Debug, Serialize)]
pub struct HostPlan {
    /// Slots.
    pub slots: HostSizes,
    /// Bytes of slots and staging buffers.
    pub bytes: u64,
    /// Slots in a file.
    pub on_disk: HostSizes,
    /// Bytes of the file.
    pub disk_bytes: u64,
    /// Tokens whose compressed pages fit, in memory and on disk.
    pub tokens: u64,
}

/// An arena.
#[derive(Debug, Serialize)]
pub struct ArenaPlan {
    /// Texts of the length that is counted.
    pub texts: u32,
    /// Bytes.
    pub bytes: u64,
}

fn host_plan(args: &PlanArgs, geometry: &CacheGeometry) -> Result<Option<HostPlan>, Failure> {
    let HostBytes::Bytes(budget) = args.host_cache else { return Ok(None) };
    let disk = args.host_cache_disk.as_ref().map(|disk| disk.within(geometry)).transpose()?;
    let tier = HostTierConfig { disk, ..serving::within(budget, geometry)? };
    let tokens = u64::from(tier.slots().compressed_slots) * u64::from(geometry.shape.page_tokens);
    let (bytes, disk_bytes) = (tier.bytes(geometry)?, tier.disk_bytes(geometry)?);
    Ok(Some(HostPlan { slots: tier.sizes, bytes, on_disk: tier.on_disk(), disk_bytes, tokens }))
}

fn arena_plan(args: &PlanArgs, geometry: &CacheGeometry) -> Result<Option<ArenaPlan>, Failure> {
    let texts = args.arena_texts;
    if texts == 0 {
        return Ok(None);
    }
    let layout = layout(geometry, arena_sizes(texts, geometry, args.context))?;
    Ok(Some(ArenaPlan { texts, bytes: layout.bytes() }))
}

type Failure = Box<dyn std::error::Error>;

/// Number of bytes from `123`, `96GiB`, `1.5 GB`: binary units with an i, decimal ones without.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("expected a number of bytes such as 96GiB, 24GB or 1048576, got `{text}`");
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.trim().parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(wrong);
    }
    let bytes = number.trim().parse::<f64>().map_err(|_| wrong())? * unit as f64;
    if (0.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Makes the plan.
///
/// # Errors
/// The configuration cannot be read, the formats do not fit it, or the memory holds no sequence.
pub fn plan(args: &PlanArgs) -> Result<PlanReport, Failure> {
    let (model, config) = match &args.config {
        None => (args.preset.clone(), serving::preset(&args.preset)?),
        Some(path) => {
            let config = ModelConfig::read(path);
            let shown = path.display();
            let named = config.map_err(|error| match error {
                // Its message names the file.
                error @ ConfigError::Io { .. } => error.to_string(),
                error => format!("{shown}: {error}"),
            });
            (shown.to_string(), named?)
        }
    };
    let shape = match args.policy {
        PolicyChoice::RingPerPage => CacheShape::ring_per_page(config.window, args.speculation),
        PolicyChoice::RingPerRequest => CacheShape::ring_per_request(config.window, args.speculation),
    };
    let (kv, index_k) = (args.kv.format(&config), args.index_k.format(&config));
    let draft_layers = if args.speculation { config.mtp_layers } else { 0 };
    let geometry = CacheGeometry::new(&config, shape, kv, index_k, draft_layers)?;
    let make = Make { config: &config, seed: 0, store: Store::Fp8Fp4, shard_bytes: u64::MAX };
    // Every rank has as much as the first.
    let shape = RankShape::new(&config, 0, args.tp)?;
    let numerics = Numerics { kv, index_k, ..Numerics::device() };
    let limits = Limits {
        tokens: args.max_batch_tokens,
        logits_rows: args.max_requests * if args.speculation { 2 } else { 1 },
        context: args.context,
    };
    let counted = RankBytes::new(&make, &numerics, &shape, &limits, args.speculation);
    let rank = match args.weights {
        WeightBytes::Auto => counted,
        WeightBytes::Bytes(weights) => RankBytes { weights, ..counted },
    };
    let not_cache = rank.sum().saturating_add(args.reserve);
    if not_cache >= args.memory {
        return Err(format!(
            "--memory: expected more than {not_cache} B ({}: {} of weights for each of {} ranks, {} of tables and workspace, and \
             the reserve), got {} B ({}); more ranks (--tp) divide most of the weights",
            gib(not_cache),
            gib(rank.weights),
            args.tp,
            gib(rank.tables + rank.workspace),
            args.memory,
            gib(args.memory)
        )
        .into());
    }
    let request = PlanRequest {
        memory: args.memory,
        not_cache,
        max_requests: args.max_requests,
        max_batch_tokens: args.max_batch_tokens,
        window: if args.request_cap { WindowSizing::PerRequest } else { WindowSizing::Ratio(args.window_ratio) },
    };
    let plan = MemoryPlan::new(&geometry, request)?;
    let (sequences, limited_by) = plan.sequences(args.context);
    Ok(PlanReport {
        model,
        kv: kv.name(),
        index_k: index_k.name(),
        policy: args.policy.name(),
        tp: args.tp,
        weights: make.bytes(),
        rank,
        reserve: args.reserve,
        context: args.context,
        sequences,
        limited_by,
        bytes_per_token: plan.bytes_per_token(),
        padding_per_token: plan.padding_per_token(),
        growth_per_token: plan.growth_per_token(),
        plan,
        host: host_plan(args, &geometry)?,
        arena: arena_plan(args, &geometry)?,
    })
}

/// `12,345.60`
fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

fn gib(bytes: u64) -> String {
    format!("{:.3} GiB", bytes as f64 / f64::from(1 << 30))
}

fn pool_name(pool: PoolName) -> String {
    match pool {
        PoolName::Compressed => "compressed",
        PoolName::Window => "window",
        PoolName::Request => "request",
    }
    .to_owned()
}

impl PlanReport {
    /// The plan as text: terms, pools, totals, what fits.
    pub fn render(&self) -> String {
        let plan = &self.plan;
        let term = |t: &Term| {
            [
                t.buffer.name().to_owned(),
                pool_name(t.pool),
                t.layers.to_string(),
                grouped(t.row_bytes_per_page as f64, 0),
                grouped(t.padding_per_page as f64, 0),
                grouped(t.bytes_per_token, 2),
                grouped(t.padding_per_token, 2),
            ]
        };
        let head = ["term", "pool", "layers", "rows B/page", "padding B/page", "rows B/token", "padding B/token"];
        let mut text = format!(
            "{}: KV {}, index K {}, {}; one of {} ranks (the cache is whole on each, of the weights heads and experts are divided)\n\n",
            self.model, self.kv, self.index_k, self.policy, self.tp
        );
        text.push_str(&table(head, plan.terms.iter().map(term)));
        let pools = plan.pools.iter().filter(|pool| pool.pages > 0);
        let pools = pools.map(|pool| {
            let bytes = grouped(pool.bytes as f64, 0);
            [pool_name(pool.pool), grouped(f64::from(pool.pages), 0), grouped(pool.page_bytes as f64, 0), bytes]
        });
        let pools = table(["pool", "pages", "B/page, all layers", "bytes"], pools);
        let sum = self.bytes_per_token + self.padding_per_token;
        let lines = [
            ("bytes per token", grouped(self.bytes_per_token, 2)),
            ("with page padding", grouped(sum, 2)),
            ("of it growing with the text", format!("{} (padding not counted)", grouped(self.growth_per_token, 2))),
            ("fixed per decoding request", format!("{} B", grouped(plan.fixed_per_request as f64, 0))),
            ("memory", gib(plan.memory)),
            ("weights, all of them", gib(self.weights)),
            ("weights of a rank", gib(self.rank.weights)),
            ("tables and workspace", gib(self.rank.tables + self.rank.workspace)),
            (
                "reserve (--reserve)",
                format!("{} for what is not counted: driver, code, scratch of launches, NCCL", gib(self.reserve)),
            ),
            ("not cache", gib(plan.not_cache)),
            ("cache", format!("{} ({} B)", gib(plan.cache_bytes), grouped(plan.cache_bytes as f64, 0))),
            ("unused", gib(plan.memory.saturating_sub(plan.not_cache + plan.cache_bytes))),
            ("tokens that fit", grouped(plan.tokens as f64, 0)),
            (
                "sequences that fit",
                format!("{} of {} tokens ({} pool)", self.sequences, self.context, pool_name(self.limited_by)),
            ),
        ];
        _ = write!(text, "\n{pools}\n");
        let host = self.host.as_ref().map(|host| {
            let slots =
                |of: HostSizes| format!("{} compressed and {} window slots", of.compressed_slots, of.window_slots);
            let disk = match host.disk_bytes {
                0 => String::new(),
                bytes => format!("; on disk {} ({bytes} B): {}", gib(bytes), slots(host.on_disk)),
            };
            let HostPlan { slots: in_memory, bytes, tokens, .. } = host;
            ("host cache", format!("{} ({bytes} B): {}{disk}, {tokens} tokens", gib(*bytes), slots(*in_memory)))
        });
        let arena = self.arena.as_ref().map(|arena| {
            let ArenaPlan { texts, bytes } = arena;
            ("arena, either half", format!("{} ({bytes} B) of host memory for {texts} texts", gib(*bytes)))
        });
        for (name, value) in lines.into_iter().chain(host).chain(arena) {
            _ = writeln!(text, "{name:<28} {value}");
        }
        text
    }
}

impl PolicyChoice {
    const fn name(self) -> &'static str {
        match self {
            PolicyChoice::RingPerPage => "ring-per-page",
            PolicyChoice::RingPerRequest => "ring-per-request",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use reference::ops::{IndexKFormat, KvFormat};

    fn run(line: &str) -> Result<PlanReport, String> {
        let words = ["sm120", "plan"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).map_err(|e| e.to_string())?.command {
            Some(Command::Plan(args)) => plan(&args).map_err(|e| e.to_string()),
            _ => unreachable!("the word plan is a subcommand"),
        }
    }

    /// The published coefficients, from the command line on.
    #[test]
    fn published_figures_are_printed() {
        for (line, figure) in [
            ("--policy ring-per-page", "bytes per token              15,897.45\n"),
            ("--policy ring-per-page --index-k bf16", "bytes per token              16,548.45\n"),
            ("--policy ring-per-page --index-k fp4", "bytes per token              15,561.45\n"),
            ("--policy ring-per-request", "with page padding            7,086.75\n"),
            ("--policy ring-per-request --index-k bf16", "with page padding            7,737.75\n"),
            ("--policy ring-per-request --index-k fp4", "with page padding            6,750.75\n"),
            ("--policy ring-per-request --request-cap", "with page padding            3,899.25\n"),
            ("--preset v4-pro --memory 2TiB", "of it growing with the text  5,511.44 ("),
            ("", "of it growing with the text  3,850.25 ("),
        ] {
            let text = run(&format!("--tp 4 {line}")).unwrap().render();
            assert!(text.contains(figure), "{line}: expected {figure:?} in\n{text}");
        }
    }

    /// Weights as released: the files of Flash take 148.66 GiB, of which the headers of 69,187 tensors at 100 to 200 B
    /// each are not weights.
    #[test]
    fn weights_are_those_of_the_released_files() {
        let flash = run("--tp 4").unwrap().weights;
        let files = 148.66 * f64::from(1 << 30);
        let headers = files - flash as f64;
        assert!((6.9e6..20e6).contains(&headers), "{flash} B of weights, {headers} B of headers");
        let pro = run("--preset v4-pro --memory 2TiB").unwrap().weights as f64 / f64::from(1 << 30);
        assert!((800.0..805.5).contains(&pro), "{pro} GiB");
    }

    /// Embedding, head, gates, compressors, indexers and the latent projections are whole on every rank. Of them embedding and head
    /// alone are two matrices of 129,280 x 4,096 in bf16.
    #[test]
    fn ranks_do_not_divide_everything() {
        let rank = |tp: u64| run(&format!("--memory 1TiB --tp {tp}")).unwrap().rank;
        let one = rank(1);
        // Without the draft layer, which is not loaded; small tensors are wider than they are stored.
        let flash = run("--tp 4").unwrap().weights;
        assert!((0.95..1.0).contains(&(one.weights as f64 / flash as f64)), "{one:?} of {flash}");
        let mut last = one;
        for tp in [2, 4, 8] {
            let of = rank(tp);
            let whole = (tp * of.weights - one.weights) / (tp - 1);
            assert!((2 * 129_280 * 4_096 * 2..5 << 30).contains(&whole), "{tp} ranks: {whole} B on every rank");
            assert!(of.weights < last.weights && of.workspace < last.workspace && of.tables == one.tables, "{of:?}");
            last = of;
        }
        let more = run("--tp 4 --context 1048576 --max-batch-tokens 8192").unwrap();
        assert!(more.rank.workspace > 15 * rank(4).workspace, "index logits of every token");
        assert_eq!(more.plan.not_cache, more.rank.sum());
        let reserved = run("--tp 4 --reserve 2GiB").unwrap();
        assert_eq!(reserved.plan.not_cache, rank(4).sum() + (2 << 30));
        let told = run("--tp 4 --weights 30GiB").unwrap();
        assert_eq!(told.rank, RankBytes { weights: 30 << 30, ..rank(4) });
    }

    #[test]
    fn small_presets_files_and_refusals() {
        for preset in ["tiny", "mini"] {
            for formats in ["--kv f32 --index-k f32", "--kv bf16 --index-k bf16", "--kv v4_fp8 --index-k fp8"] {
                for policy in ["ring-per-page", "ring-per-request --speculation"] {
                    let line = format!("--preset {preset} {formats} --policy {policy} --memory 1GiB --max-requests 4");
                    assert!(run(&line).unwrap().sequences > 0, "{line}");
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, ModelConfig::v4_flash().to_json()).unwrap();
        let of_file = run(&format!("--tp 4 --config {}", path.display())).unwrap();
        assert_eq!(of_file.plan, run("--tp 4").unwrap().plan);
        let small = run("--memory 96GiB").unwrap_err();
        let said = "of weights for each of 1 ranks, ";
        assert!(small.starts_with("--memory: expected more than ") && small.contains(said), "{small}");
        let small = run("--preset mini --memory 174MB").unwrap_err();
        assert!(small.starts_with("cache: expected at least "), "{small}");
        let uneven = run("--tp 3").unwrap_err();
        assert_eq!(uneven, "tensor parallelism over 3 ranks: num_attention_heads is 64, which does not divide evenly");
        std::fs::write(&path, "{").unwrap();
        let broken = run(&format!("--config {}", path.display())).unwrap_err();
        assert!(broken.starts_with(&format!("{}: config.json: expected", path.display())), "{broken}");
        let none = run("--config /nonexistent/config.json").unwrap_err();
        assert_eq!(none.matches("/nonexistent/config.json").count(), 1, "{none}");
        assert!(run("--memory 96Gi").unwrap_err().contains("expected a number of bytes such as 96GiB"));
        assert!(run("--window-ratio 0").unwrap_err().contains("above 0"));
        assert!(run("--config a --preset tiny").is_err(), "one of the two");
    }

    /// What is planned beside the pools is what is taken, whatever the format of index keys.
    #[test]
    fn host_memory_is_what_is_allocated() {
        use engine::host_tier::HostTier;
        use transfer::arena::Arena;
        for (index_k, format) in [("bf16", IndexKFormat::Bf16), ("fp8", IndexKFormat::Fp8)] {
            for speculation in [false, true] {
                let flag = if speculation { "--speculation" } else { "" };
                let line = format!(
                    "--preset tiny --index-k {index_k} --memory 1GiB {flag} --context 600 --host-cache 48MiB --arena-texts 3"
                );
                let report = run(&line).unwrap();
                let (host, arena) = (report.host.unwrap(), report.arena.unwrap());
                let config = serving::preset("tiny").unwrap();
                let shape = CacheShape::ring_per_request(config.window, speculation);
                let geometry =
                    CacheGeometry::new(&config, shape, KvFormat::V4Fp8, format, u32::from(speculation)).unwrap();
                let tier = HostTier::new(&geometry, &HostTierConfig::new(host.slots)).unwrap();
                assert_eq!(host.bytes, tier.bytes(), "{line}");
                assert!(host.bytes <= 48 << 20, "{line}");
                // One slot more is too much, so that the budget is used.
                let more = HostSizes::of_pages(host.slots.compressed_slots + 1);
                assert!(HostTierConfig::new(more).bytes(&geometry).unwrap() > 48 << 20, "{line}");
                let texts = layout(&geometry, arena_sizes(3, &geometry, 600)).unwrap();
                assert_eq!(arena.bytes, Arena::new(texts.bytes()).unwrap().bytes(), "{line}");
                assert_eq!(
                    report.plan,
                    run(&format!("--preset tiny --index-k {index_k} --memory 1GiB {flag} --context 600")).unwrap().plan
                );
            }
        }
        let small = run("--preset tiny --memory 1GiB --host-cache 1KiB").unwrap_err();
        assert!(small.starts_with("--host-cache: expected at least ") && small.ends_with("got 1024 B"), "{small}");
        assert!(run("--host-cache some").unwrap_err().contains("or `off`"));
        assert!(run("--tp 4").unwrap().host.is_none());
    }

    #[test]
    fn bytes_are_read_with_units() {
        assert_eq!(parse_bytes("96GiB"), Ok(96 << 30));
        assert_eq!(parse_bytes("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(parse_bytes("12"), Ok(12));
        assert!(
            ["", "GiB", "-1", "1e400", "3 apples", "99999999TiB", "nan"].iter().all(|text| parse_bytes(text).is_err())
        );
        assert_eq!(grouped(1_234_567.891, 2), "1,234,567.89");
        assert_eq!(
            (grouped(0.5, 2), grouped(123.0, 0), grouped(1000.0, 0)),
            ("0.50".into(), "123".into(), "1,000".into())
        );
    }
}
