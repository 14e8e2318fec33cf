//! `inspect` and `make-checkpoint`.

use crate::cli::{InspectArgs, MakeCheckpointArgs, StoreKind};
use crate::report::table;
use engine::checkpoint::make::{Make, Store};
use engine::checkpoint::{CheckpointError, Problems, Survey, survey};
use engine::config::{LayerKind, ModelConfig};
use engine::geometry::CacheShape;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a checkpoint holds.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// The folder.
    pub dir: String,
    /// `official`, `transformers`, `hybrid`
    pub naming: &'static str,
    /// `config.json` with DeepSeek's field names.
    pub config: serde_json::Value,
    /// One letter per layer of the trunk: S window only, C ratio 4 with picks, H ratio 128.
    pub schedule: String,
    /// Weight files and their bytes.
    pub files: Vec<(String, u64)>,
    /// Tensors by kind.
    pub kinds: Vec<KindRow>,
    /// Tensors of a draft network that the configuration does not run.
    pub ignored: usize,
    /// Whether the values were looked at too.
    pub values_read: bool,
    /// Problems in all.
    pub num_problems: usize,
    /// The first of them.
    pub problems: Vec<String>,
}

/// Tensors that differ in nothing but layer and expert.
#[derive(Debug, Serialize)]
pub struct KindRow {
    /// Name with `*` for numbers.
    pub name: String,
    /// Shape.
    pub shape: Vec<u32>,
    /// Storage.
    pub storage: &'static str,
    /// How many.
    pub count: usize,
    /// Bytes with the scales.
    pub bytes: u64,
}

fn bar(bytes: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:40} {binary_bytes} / {binary_total_bytes} {binary_bytes_per_sec} {eta}");
    ProgressBar::new(bytes).with_style(style.expect("a constant template"))
}

/// Looks at a checkpoint. An error only if there is nothing to look at.
pub fn inspect(args: &InspectArgs) -> Result<Inspection, CheckpointError> {
    let Survey { checkpoint, problems, ignored } = survey(&args.dir)?;
    let config = checkpoint.config();
    let mut kinds: BTreeMap<(String, Vec<u32>, &str), (usize, u64)> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let star = |part| if str::parse::<u32>(part).is_ok() { "*" } else { part };
        let name: Vec<&str> = tensor.name.split('.').map(star).collect();
        let entry = kinds.entry((name.join("."), tensor.shape.to_vec(), tensor.storage.name())).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.total_bytes());
    }
    let kinds = kinds.into_iter().map(|((name, shape, storage), (count, bytes))| KindRow {
        name,
        shape,
        storage,
        count,
        bytes,
    });
    let values = if args.values {
        let bar = bar(checkpoint.bytes());
        let values = checkpoint.check_values(|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        values
    } else {
        Problems::default()
    };
    let letter = |kind: &LayerKind| match kind {
        LayerKind::Swa => 'S',
        LayerKind::Csa => 'C',
        LayerKind::Hca => 'H',
    };
    let cache = unheld(config);
    Ok(Inspection {
        dir: args.dir.display().to_string(),
        naming: checkpoint.naming().name(),
        config: serde_json::from_str(&config.to_json()).expect("written by this program"),
        schedule: config.layers.iter().map(letter).collect(),
        files: checkpoint.files().map(|(name, bytes)| (name.to_owned(), bytes)).collect(),
        kinds: kinds.collect(),
        ignored: ignored.len(),
        values_read: args.values,
        num_problems: problems.count() + values.count() + cache.iter().count(),
        problems: (problems.kept().iter().chain(values.kept()).map(ToString::to_string)).chain(cache).collect(),
    })
}

/// What the cache does not hold of a model that is whole otherwise.
fn unheld(config: &ModelConfig) -> Option<String> {
    let unheld = CacheShape::ring_per_request(config.window, config.mtp_layers > 0).check().err()?;
    Some(format!("sliding_window {}: {unheld}", config.window))
}

/// Bytes in the largest binary unit of which there is at least one.
fn binary(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

impl Inspection {
    /// For reading.
    pub fn text(&self) -> String {
        let total: u64 = self.kinds.iter().map(|row| row.bytes).sum();
        let count: usize = self.kinds.iter().map(|row| row.count).sum();
        let field = |name: &str| self.config[name].to_string();
        let mut text = format!(
            "{}: {} naming, {count} tensors (scales not counted), {}, weight files: {}\n",
            self.dir,
            self.naming,
            binary(total),
            self.files.len()
        );
        let layers = |letter| self.schedule.matches(letter).count();
        text += &format!(
            "schedule {} ({} SWA, {} CSA, {} HCA), {} MTP, first {} layers route by token\n",
            self.schedule,
            layers('S'),
            layers('C'),
            layers('H'),
            field("num_nextn_predict_layers"),
            field("num_hash_layers")
        );
        text += &format!(
            "hidden {}, heads {} x {} ({} rotary), index heads {} x {}, top {}, window {}, vocabulary {}\n",
            field("hidden_size"),
            field("num_attention_heads"),
            field("head_dim"),
            field("qk_rope_head_dim"),
            field("index_n_heads"),
            field("index_head_dim"),
            field("index_topk"),
            field("sliding_window"),
            field("vocab_size")
        );
        text += &format!(
            "experts {} of {} x {}, latents: q {}, o {} x {}\n\n",
            field("num_experts_per_tok"),
            field("n_routed_experts"),
            field("moe_intermediate_size"),
            field("q_lora_rank"),
            field("o_groups"),
            field("o_lora_rank")
        );
        let rows = self.kinds.iter().map(|row| {
            let shape: Vec<String> = row.shape.iter().map(u32::to_string).collect();
            let (name, storage) = (row.name.clone(), row.storage.to_owned());
            [name, row.count.to_string(), shape.join(" x "), storage, binary(row.bytes)]
        });
        text += &table(["tensor", "count", "shape", "storage", "bytes"], rows);
        if self.ignored > 0 {
            text += &format!("{} tensors of a draft network are not read\n", self.ignored);
        }
        text
    }

    /// An error that lists what is wrong.
    pub fn verdict(&self) -> Result<(), String> {
        if self.num_problems == 0 {
            return Ok(());
        }
        let more = self.num_problems - self.problems.len();
        let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
        Err(format!("{}: problems: {}\n  {}{more}", self.dir, self.num_problems, self.problems.join("\n  ")))
    }
}

/// Writes a checkpoint and says what it is.
pub fn make(args: &MakeCheckpointArgs) -> Result<String, CheckpointError> {
    let config = ModelConfig::preset(&args.preset).ok_or_else(|| CheckpointError::Refused {
        what: "--preset".to_owned(),
        expected: ModelConfig::PRESETS.to_owned(),
        got: args.preset.clone(),
    })?;
    let store = match args.store {
        StoreKind::Fp32 => Store::Fp32,
        StoreKind::Bf16 => Store::Bf16,
        StoreKind::Fp8fp4 => Store::Fp8Fp4,
    };
    let make = Make { config: &config, seed: args.seed, store, shard_bytes: args.shard_mib << 20 };
    let bar = bar(make.bytes());
    let made = make.run(&args.dir, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let (dir, size) = (args.dir.display(), binary(made.bytes));
    let cleared = if made.cleared { " (what an earlier run had left unfinished was removed)" } else { "" };
    Ok(format!(
        "{dir}: {}, seed {}, {} tensors with scales, {size}, weight files: {}{cleared}",
        args.preset, args.seed, made.tensors, made.files
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_no_page_holds_is_a_problem() {
        let config = |window| ModelConfig { window, ..ModelConfig::tiny() };
        assert_eq!(unheld(&config(256)), None);
        let problem = unheld(&config(257)).expect("no page holds it");
        assert!(problem.starts_with("sliding_window 257: "), "{problem}");
    }
    use reference::golden::GoldenDir;
    use std::path::Path;

    fn look(dir: &Path) -> Inspection {
        inspect(&InspectArgs { dir: dir.to_owned(), values: true, json: None }).expect("there is a configuration")
    }

    #[test]
    fn golden_model() {
        let inspection = look(&GoldenDir::model());
        inspection.verdict().expect("nothing is wrong");
        assert_eq!(inspection.schedule, "SCHC");
        let kind = |name: &str| inspection.kinds.iter().find(|row| row.name == name).expect("such tensors");
        let experts = kind("layers.*.ffn.experts.*.w1.weight");
        // 4 layers x 6 experts of 64 x 128: two codes per byte and a scale per 32.
        assert_eq!((experts.count, experts.bytes), (24, 24 * 64 * (64 + 4)));
        let text = inspection.text();
        assert!(text.contains("schedule SCHC (1 SWA, 2 CSA, 1 HCA), 0 MTP, first 2 layers route by token"), "{text}");
        assert!(text.contains("experts 3 of 6 x 64, latents: q 32, o 2 x 16"), "{text}");
    }

    #[test]
    fn made_and_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("tiny");
        let (preset, store) = ("tiny".to_owned(), StoreKind::Fp8fp4);
        let args = MakeCheckpointArgs { dir: dir.clone(), preset, seed: 7, store, shard_mib: 1 };
        let said = make(&args).expect("a new folder");
        assert!(said.contains("tiny, seed 7,"), "{said}");
        let inspection = look(&dir);
        inspection.verdict().expect("nothing is wrong");
        assert!(inspection.files.len() > 2);
        std::fs::remove_file(dir.join(&inspection.files[1].0)).expect("a weight file");
        let inspection = look(&dir);
        let verdict = inspection.verdict().expect_err("a file is gone");
        assert!(verdict.contains("problems: 1\n") && verdict.contains("expected a readable file"), "{verdict}");
        let wrong = make(&MakeCheckpointArgs { preset: "flash-44-layers".to_owned(), ..args }).expect_err("no preset");
        assert!(wrong.to_string().starts_with("--preset: expected tiny, mini,"), "{wrong}");
    }
}
