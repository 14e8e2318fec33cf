//! Two recorded runs side by side.

use super::{E2eError, Run};
use crate::report::table;
use serde::Deserialize;
use std::path::Path;

/// The part of a JSON report that comparisons need.
#[derive(Debug, Deserialize)]
struct Recorded {
    runs: Vec<Run>,
}

/// Two recorded runs side by side, B over A.
pub fn compare(a: &Path, b: &Path) -> Result<String, E2eError> {
    let read = |path: &Path| -> Result<Recorded, E2eError> {
        let wrong = |message: String| E2eError::File { path: path.to_path_buf(), message };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        serde_json::from_str(&text).map_err(|e| wrong(format!("expected a report of `sm120 e2e --json`: {e}")))
    };
    let (first, second) = (read(a)?, read(b)?);
    let pairs: Vec<(&Run, &Run)> = first
        .runs
        .iter()
        .filter_map(|run| Some((run, second.runs.iter().find(|other| other.concurrency == run.concurrency)?)))
        .collect();
    if pairs.is_empty() {
        let message = format!("expected a run with the concurrency of one in {}, got none", a.display());
        return Err(E2eError::File { path: b.to_path_buf(), message });
    }
    let ratio = |a: f64, b: f64| match a > 0.0 {
        true => format!("{a:.1} -> {b:.1} ({:.2}x)", b / a),
        false => format!("{a:.1} -> {b:.1}"),
    };
    let tokens = |a: &Run, b: &Run| match (a.requests, a.prompt_tokens) == (b.requests, b.prompt_tokens) {
        true if a.checksum == b.checksum => "equal",
        true => "DIFFERENT",
        false => "of other requests",
    };
    let rows = pairs.into_iter().map(|(a, b)| {
        [
            a.concurrency.to_string(),
            ratio(a.output_tokens_per_s, b.output_tokens_per_s),
            ratio(a.ttft_ms.p50, b.ttft_ms.p50),
            ratio(a.tpot_ms.p50, b.tpot_ms.p50),
            ratio(a.itl_ms.p99, b.itl_ms.p99),
            tokens(a, b).into(),
        ]
    });
    Ok(table(["C", "output tok/s", "TTFT p50 ms", "TPOT p50 ms", "ITL p99 ms", "tokens"], rows))
}
