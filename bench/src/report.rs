//! Rows of the reports and the files made of them: Markdown, CSV, JSON.

use crate::e2e::E2eReport;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// Outcome of one case on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ParityRow {
    /// Device and variant, e.g. `emulated sm_89`.
    pub device: String,
    /// Operation.
    pub operation: String,
    /// Case.
    pub case: String,
    /// Schedule seeds run; 1 where there is no schedule to vary.
    pub seeds: u32,
    /// Largest error over its bound over all outputs; above 1 is a failure. 0 where bytes must be equal and are.
    pub error_over_bound: f64,
    /// The output that the figure above belongs to.
    pub worst_output: String,
    /// Wall time, milliseconds, all seeds.
    pub wall_ms: f64,
    /// What went wrong; empty when nothing did.
    pub failure: String,
    /// Why the device does not offer the case; empty when it was run.
    pub skipped: String,
}

impl ParityRow {
    /// A device that was there and then failed as a whole.
    pub fn device_failed(device: &str, error: &dyn std::error::Error) -> Self {
        Self {
            device: device.to_owned(),
            operation: "all".into(),
            case: "all".into(),
            seeds: 0,
            error_over_bound: f64::NAN,
            worst_output: String::new(),
            wall_ms: 0.0,
            failure: error.to_string(),
            skipped: String::new(),
        }
    }

    /// The case was run and passed.
    pub fn passed(&self) -> bool {
        self.failure.is_empty() && self.skipped.is_empty()
    }
}

/// Recall of the exact top-512 by an index-K format.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecallRow {
    /// `bf16`, `fp8`, `fp8pow2`
    pub format: String,
    /// Index rows in the context.
    pub rows: u32,
    /// Share of the exact fp32 top-512 that the format selects, mean over the queries.
    pub recall: f64,
    /// The worst query.
    pub worst: f64,
    /// Share of the summed exact scores of the exact picks that the picks reach: what the lost rows cost.
    pub score_kept: f64,
}

/// Wall time of a real shape on the emulator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShapeRow {
    /// Operation.
    pub operation: String,
    /// Variant.
    pub variant: String,
    /// Shape in words.
    pub shape: String,
    /// `off` or `full`.
    pub checks: String,
    /// Seconds.
    pub seconds: f64,
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// Matrix instructions executed.
    pub mma: u64,
    /// Bytes that global loads, stores and copies moved.
    pub global_bytes: u64,
    /// Shared-memory wavefronts.
    pub shared_wavefronts: u64,
    /// Of those, beyond what the access widths need.
    pub bank_conflicts: u64,
    /// Worst error over bound of the sampled rows.
    pub error_over_bound: f64,
}

/// Everything that one run found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Command line.
    pub command: String,
    /// Facts about the machine.
    pub machine: Vec<(String, String)>,
    /// Parity.
    pub parity: Vec<ParityRow>,
    /// Recall.
    pub recall: Vec<RecallRow>,
    /// Real shapes.
    pub shapes: Vec<ShapeRow>,
    /// End-to-end runs of the mini model on the default device.
    pub e2e: Option<E2eReport>,
    /// The same through a router, a prefill server and a decode server, each a process of this machine.
    pub halves: Option<E2eReport>,
    /// Devices that could not be judged, and why.
    pub absent: Vec<(String, String)>,
    /// Wall time of the whole run, seconds.
    pub seconds: f64,
}

impl Report {
    /// Cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &ParityRow> {
        self.parity.iter().filter(|row| !row.failure.is_empty())
    }

    /// Device, why it does not offer cases, and how many; in order of first appearance.
    pub fn not_offered(&self) -> Vec<(&str, &str, usize)> {
        let mut reasons: Vec<(&str, &str, usize)> = Vec::new();
        for row in self.parity.iter().filter(|row| !row.skipped.is_empty()) {
            match reasons.iter_mut().find(|(device, why, _)| *device == row.device && *why == row.skipped) {
                Some((.., count)) => *count += 1,
                None => reasons.push((&row.device, &row.skipped, 1)),
            }
        }
        reasons
    }

    /// (device, operation) -> (passed, total, worst error over bound, milliseconds), in order of first appearance.
    pub fn summary(&self) -> Vec<SummaryRow> {
        let mut rows: Vec<SummaryRow> = Vec::new();
        for row in &self.parity {
            let known = rows.iter_mut().find(|s| s.device == row.device && s.operation == row.operation);
            let summary = match known {
                Some(summary) => summary,
                None => {
                    rows.push(SummaryRow {
                        device: row.device.clone(),
                        operation: row.operation.clone(),
                        ..SummaryRow::default()
                    });
                    rows.last_mut().expect("a row was pushed")
                }
            };
            summary.total += 1;
            summary.passed += u32::from(row.passed());
            summary.skipped += u32::from(!row.skipped.is_empty());
            summary.seeds = summary.seeds.max(row.seeds);
            summary.worst = summary.worst.max(row.error_over_bound);
            summary.wall_ms += row.wall_ms;
        }
        rows
    }

    /// Writes `README.md`, `parity.csv`, `recall.csv`, `shapes.csv`, `report.json` and the plots into `folder`.
    pub fn write(&self, folder: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)?)?;
        fs::write(folder.join("parity.csv"), csv(&self.parity)?)?;
        fs::write(folder.join("recall.csv"), csv(&self.recall)?)?;
        fs::write(folder.join("shapes.csv"), csv(&self.shapes)?)?;
        if !self.parity.is_empty() {
            crate::plots::error_by_case(&self.parity, &folder.join("error-by-case.svg"))?;
        }
        if !self.recall.is_empty() {
            crate::plots::recall(&self.recall, &folder.join("recall.svg"))?;
        }
        let readme = folder.join("README.md");
        fs::write(&readme, self.markdown())?;
        Ok(readme)
    }

    /// The report as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let failures = self.failures().count();
        let verdict = match (self.parity.len(), failures) {
            (0, _) => "No parity case was run.".to_owned(),
            (total, 0) => format!("All {total} parity cases passed."),
            (total, failed) => format!("**{failed} of {total} parity cases failed.**"),
        };
        let _ = writeln!(text, "# {}\n\n{verdict} {:.1} s in all.\n", self.command, self.seconds);
        for (name, value) in &self.machine {
            let _ = writeln!(text, "* {name}: {value}");
        }
        for (device, reason) in &self.absent {
            let _ = writeln!(text, "* not judged: {device}: {reason}");
        }
        let _ = writeln!(text, "\n## Parity against the reference\n");
        text.push_str(&self.parity_table());
        if failures > 0 {
            let _ = writeln!(text, "\n### Failures\n");
            for row in self.failures() {
                let _ = writeln!(text, "* {} `{}` on {}: {}", row.operation, row.case, row.device, row.failure);
            }
        }
        let skipped: Vec<&ParityRow> = self.parity.iter().filter(|row| !row.skipped.is_empty()).collect();
        if !skipped.is_empty() {
            let _ = writeln!(text, "\n### Not offered\n");
            for row in skipped {
                let _ = writeln!(text, "* {} `{}` on {}: {}", row.operation, row.case, row.device, row.skipped);
            }
        }
        let _ = writeln!(
            text,
            "\n*error / bound*: the largest error of any element of any output divided by its bound; bytes and integers \
             must be equal and count as 0.\n\n![error by case](error-by-case.svg)"
        );
        if !self.recall.is_empty() {
            let _ = writeln!(text, "\n## Recall of the exact top-512 by index-K format\n");
            text.push_str(&self.recall_table());
            let _ = writeln!(text, "\n![recall](recall.svg)");
        }
        if !self.shapes.is_empty() {
            let _ = writeln!(text, "\n## Real shapes on the emulator\n");
            text.push_str(&self.shapes_table());
        }
        if let Some(e2e) = &self.e2e {
            let _ = writeln!(text, "\n## End to end\n\n{}\n\n{}", e2e.headline(), e2e.table());
        }
        if let Some(halves) = &self.halves {
            let _ = writeln!(text, "\n## Prefill and decode apart\n\n{}\n\n{}", halves.headline(), halves.table());
        }
        text
    }

    /// Summary table by device and operation.
    pub fn parity_table(&self) -> String {
        let rows = self.summary().into_iter().map(|s| {
            let verdict = match (s.total - s.passed - s.skipped, s.skipped) {
                (0, 0) => "pass".to_owned(),
                (0, skipped) => format!("pass, {skipped} not offered"),
                (failed, _) => format!("FAIL ({failed})"),
            };
            [
                s.device,
                s.operation,
                format!("{} / {}", s.passed, s.total),
                s.seeds.to_string(),
                format!("{:.3}", s.worst),
                format!("{:.2}", s.wall_ms / 1e3),
                verdict,
            ]
        });
        table(["device", "operation", "passed", "seeds", "error / bound", "s", ""], rows)
    }

    /// Recall table.
    pub fn recall_table(&self) -> String {
        let rows = self.recall.iter().map(|r| {
            [
                r.format.clone(),
                r.rows.to_string(),
                format!("{:.4}", r.recall),
                format!("{:.4}", r.worst),
                format!("{:.5}", r.score_kept),
            ]
        });
        table(["index K", "rows", "recall@512", "worst query", "score kept"], rows)
    }

    /// Table of real shapes.
    pub fn shapes_table(&self) -> String {
        let rows = self.shapes.iter().map(|r| {
            [
                r.operation.clone(),
                r.variant.clone(),
                r.shape.clone(),
                r.checks.clone(),
                format!("{:.2}", r.seconds),
                format!("{:.1}", r.warp_instructions as f64 / 1e6),
                format!("{:.2}", r.mma as f64 / 1e6),
                format!("{:.1}", r.global_bytes as f64 / 1e6),
                format!("{:.1} %", 100.0 * r.bank_conflicts as f64 / r.shared_wavefronts.max(1) as f64),
                format!("{:.3}", r.error_over_bound),
            ]
        });
        table(
            [
                "operation",
                "variant",
                "shape",
                "checks",
                "s",
                "M warp instr.",
                "M mma",
                "global MB",
                "conflicts",
                "error / bound",
            ],
            rows,
        )
    }
}

/// One line of [`Report::summary`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SummaryRow {
    /// Device.
    pub device: String,
    /// Operation.
    pub operation: String,
    /// Cases that passed.
    pub passed: u32,
    /// Cases that the device does not offer.
    pub skipped: u32,
    /// Cases.
    pub total: u32,
    /// Seeds per case.
    pub seeds: u32,
    /// Worst error over bound.
    pub worst: f64,
    /// Wall time, milliseconds.
    pub wall_ms: f64,
}

/// A Markdown table whose columns are padded, so that it reads on a terminal too.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.into_iter().collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&head.map(str::to_owned));
    text.push_str(&line(&widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>()));
    for row in &rows {
        text.push_str(&line(row));
    }
    text
}

/// CSV of serialisable rows with one line of column names. Text fields are quoted.
fn csv<T: Serialize>(rows: &[T]) -> io::Result<String> {
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let serde_json::Value::Object(fields) = serde_json::to_value(row)? else {
            return Err(io::Error::other("a CSV row is a record"));
        };
        if number == 0 {
            text.push_str(&fields.keys().map(String::as_str).collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        let cells: Vec<String> = fields
            .values()
            .map(|value| match value {
                serde_json::Value::String(s) => format!("\"{}\"", s.replace('"', "\"\"")),
                other => other.to_string(),
            })
            .collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    Ok(text)
}

/// Facts that a figure is worthless without: CPU, threads, system, compiler, date, load, and the last commit before this binary was
/// built.
pub fn machine_facts() -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
    fact("CPU", model.map_or_else(|| std::env::consts::ARCH.to_owned(), |m| m.trim().to_owned()));
    fact("threads", std::thread::available_parallelism().map_or(1, usize::from).to_string());
    fact("system", std::env::consts::OS.to_owned());
    fact("version", format!("{}, revision {}", env!("CARGO_PKG_VERSION"), env!("SM120_REVISION")));
    fact("compiler", env!("SM120_RUSTC").to_owned());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    fact("date", date(now));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<_> = load.split_whitespace().take(3).collect();
    fact("load average of 1, 5, 15 minutes", if load.is_empty() { "unknown".into() } else { load.join(", ") });
    facts
}

/// `2026-11-30 22:24 UTC` of seconds since 1970, by the proleptic Gregorian calendar: days since 0000-03-01 in eras of 400 years.
fn date(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds % 86_400 / 60);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, failure: &str) -> ParityRow {
        ParityRow {
            device: "host".into(),
            operation: "topk_select".into(),
            case: case.into(),
            seeds: 1,
            error_over_bound: 0.25,
            worst_output: "topk_positions".into(),
            wall_ms: 2.0,
            failure: failure.into(),
            skipped: String::new(),
        }
    }

    #[test]
    fn facts_say_when_and_of_what() {
        let at = [0, 951_782_399, 951_782_400, 951_868_800, 1_796_077_440, 4_102_444_799].map(date);
        let expected = ["1970-01-01 00:00", "2000-02-28 23:59", "2000-02-29 00:00", "2000-03-01 00:00"];
        assert_eq!(at[..4], expected.map(|date| format!("{date} UTC")));
        assert_eq!(at[4..], ["2026-11-30 22:24 UTC", "2099-12-31 23:59 UTC"]);
        let facts = machine_facts();
        for name in ["CPU", "version", "compiler", "date", "load average of 1, 5, 15 minutes"] {
            assert!(facts.iter().any(|(fact, value)| fact == name && !value.is_empty()), "{name} in {facts:?}");
        }
    }

    #[test]
    fn a_failure_is_visible_in_every_form() {
        let report =
            Report { parity: vec![row("a", ""), row("b", "row 3: expected 7, got \"8\"")], ..Report::default() };
        assert_eq!(report.failures().count(), 1);
        let text = report.markdown();
        assert!(text.contains("**1 of 2 parity cases failed.**"), "{text}");
        assert!(text.contains("| 1 / 2"), "{text}");
        assert!(text.contains("FAIL"), "{text}");
        assert!(text.contains("row 3: expected 7"), "{text}");
        let csv = csv(&report.parity).expect("rows serialise");
        assert!(csv.starts_with("case,device,"), "{csv}");
        assert!(csv.contains(r#""row 3: expected 7, got ""8""""#), "{csv}");
    }

    #[test]
    fn an_empty_report_does_not_claim_success() {
        assert!(Report::default().markdown().contains("No parity case was run."));
    }

    #[test]
    fn the_report_folder_is_complete() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let recall = [(2048, 0.99), (8192, 0.98)].map(|(rows, recall)| RecallRow {
            format: "fp8".into(),
            rows,
            recall,
            worst: recall - 0.01,
            score_kept: 0.999,
        });
        let report = Report { parity: vec![row("a", "")], recall: recall.to_vec(), ..Report::default() };
        report.write(folder.path()).expect("the folder is writable");
        for file in ["README.md", "parity.csv", "recall.csv", "report.json", "error-by-case.svg", "recall.svg"] {
            let bytes = fs::read(folder.path().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert!(bytes.len() > 40, "{file} is nearly empty");
        }
    }
}
