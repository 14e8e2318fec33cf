//! Counts and latencies, in Prometheus' text format.

use crate::backend::{Figure, FigureKind};
use engine::progress::PartState;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Upper bounds, seconds; what lies above the last is counted in `+Inf`.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Durations by size.
#[derive(Debug, Default)]
struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, text: &mut Text, name: &str, help: &str) {
        text.family(name, "histogram", help);
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]).zip(&self.counts) {
            below += count.load(Ordering::Relaxed);
            text.sample(&format!("{name}_bucket"), &[("le", bound)], below as f64);
        }
        text.sample(&format!("{name}_sum"), &[], self.sum_us.load(Ordering::Relaxed) as f64 / 1e6);
        text.sample(&format!("{name}_count"), &[], below as f64);
    }
}

/// Samples in the text format.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: f64) {
        self.0 += name;
        for (at, (label, text)) in labels.iter().enumerate() {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{escaped}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn figure(&mut self, figure: &Figure, first: bool) {
        if first {
            let kind = if figure.kind == FigureKind::Counter { "counter" } else { "gauge" };
            self.family(figure.name, kind, figure.help);
        }
        self.sample(figure.name, &figure.labels, figure.value);
    }
}

/// What the server counts.
#[derive(Debug, Default)]
pub struct Metrics {
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    /// By endpoint and outcome.
    requests: Mutex<BTreeMap<(&'static str, String), u64>>,
    prompt_tokens: AtomicU64,
    output_tokens: AtomicU64,
    connections: AtomicI64,
    next: AtomicU64,
    /// Requests without a token yet, by number.
    unserved: Mutex<BTreeMap<u64, Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counts are whole whoever panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Metrics {
    /// Counts a request that ended, or was refused, with this outcome.
    pub fn outcome(&self, endpoint: &'static str, outcome: &str) {
        *lock(&self.requests).entry((endpoint, outcome.to_owned())).or_default() += 1;
    }

    /// Counts a connection until it is dropped.
    pub fn connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Everything as text.
    pub fn render(&self, figures: &[Figure], parts: &[PartState], in_flight: usize) -> String {
        let mut text = Text::default();
        self.ttft.write(&mut text, "sm120_time_to_first_token_seconds", "Request read to first token.");
        self.itl.write(&mut text, "sm120_inter_token_latency_seconds", "Between two tokens of a request.");
        self.e2e.write(&mut text, "sm120_request_seconds", "Request read to last token.");
        text.family("sm120_requests_total", "counter", "Requests by endpoint and outcome, refused ones included.");
        for ((endpoint, outcome), count) in lock(&self.requests).iter() {
            let labels = [("endpoint", (*endpoint).to_owned()), ("outcome", outcome.clone())];
            text.sample("sm120_requests_total", &labels, *count as f64);
        }
        let oldest = lock(&self.unserved).values().next().map_or(0.0, |since| since.elapsed().as_secs_f64());
        let single = |name, help, kind, value| Figure { name, help, kind, labels: Vec::new(), value };
        let (counter, gauge) = (FigureKind::Counter, FigureKind::Gauge);
        let tokens = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let connections = self.connections.load(Ordering::Relaxed) as f64;
        let own = [
            single("sm120_prompt_tokens_total", "Prompt tokens.", counter, tokens(&self.prompt_tokens)),
            single("sm120_output_tokens_total", "Generated tokens.", counter, tokens(&self.output_tokens)),
            single("sm120_requests_in_flight", "Texts taken and not ended.", gauge, in_flight as f64),
            single("sm120_oldest_unserved_seconds", "Age of the oldest text without a token.", gauge, oldest),
            single("sm120_connections", "Open connections.", gauge, connections),
        ];
        let of_part = |name, help, kind, value: fn(&PartState) -> f64| {
            let figure = move |part: &PartState| Figure {
                name,
                help,
                kind,
                labels: vec![("part", part.name.clone())],
                value: value(part),
            };
            parts.iter().map(figure).collect::<Vec<_>>()
        };
        let parts = [
            of_part("sm120_part_waiting", "Work that a thread or queue has.", gauge, |part| part.waiting as f64),
            of_part("sm120_part_done_total", "Units of work done.", counter, |part| part.done as f64),
            of_part("sm120_part_still_seconds", "Age of the last progress, with work.", gauge, |part| {
                part.still.as_secs_f64()
            }),
        ]
        .concat();
        let mut last = "";
        for figure in own.iter().chain(figures).chain(&parts) {
            text.figure(figure, figure.name != last);
            last = figure.name;
        }
        text.0
    }
}

/// Counts one connection while it lives.
#[derive(Debug)]
pub struct OpenConnection(Arc<Metrics>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The times of one text; dropped without an outcome, nobody wants it any more: its client went away, or another text of the
/// request failed.
#[derive(Debug)]
pub struct Record {
    metrics: Arc<Metrics>,
    endpoint: &'static str,
    number: u64,
    since: Instant,
    last: Option<Instant>,
    ended: bool,
}

impl Record {
    /// A text that begins now.
    pub fn new(metrics: &Arc<Metrics>, endpoint: &'static str, prompt_tokens: usize) -> Self {
        let (number, since) = (metrics.next.fetch_add(1, Ordering::Relaxed), Instant::now());
        metrics.prompt_tokens.fetch_add(prompt_tokens as u64, Ordering::Relaxed);
        lock(&metrics.unserved).insert(number, since);
        Self { metrics: Arc::clone(metrics), endpoint, number, since, last: None, ended: false }
    }

    /// A token came.
    pub fn token(&mut self) {
        let now = Instant::now();
        match self.last {
            None => {
                self.metrics.ttft.add(now - self.since);
                lock(&self.metrics.unserved).remove(&self.number);
            }
            Some(last) => self.metrics.itl.add(now - last),
        }
        self.last = Some(now);
        self.metrics.output_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// The text ended so.
    pub fn end(&mut self, outcome: &str) {
        if !self.ended {
            self.ended = true;
            if let Some(last) = self.last {
                self.metrics.e2e.add(last - self.since);
            }
            lock(&self.metrics.unserved).remove(&self.number);
            self.metrics.outcome(self.endpoint, outcome);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.end("abandoned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_format() {
        let metrics = Arc::new(Metrics::default());
        let mut record = Record::new(&metrics, "chat", 3);
        assert!(metrics.render(&[], &[], 1).contains("sm120_requests_in_flight 1\n"));
        record.token();
        record.token();
        record.end("stop");
        drop(record);
        drop(Record::new(&metrics, "chat", 4));
        metrics.ttft.add(Duration::from_millis(3));
        metrics.ttft.add(Duration::from_secs(400));
        let pool = |pool: &str, value| Figure {
            name: "sm120_pool_pages",
            help: "Pages.",
            kind: FigureKind::Gauge,
            labels: vec![("pool", pool.to_owned()), ("kind", "a".to_owned())],
            value,
        };
        let text = metrics.render(&[pool("a\"\\\n", 2.0), pool("b", 0.5)], &[], 0);
        for line in [
            "# TYPE sm120_time_to_first_token_seconds histogram",
            "sm120_time_to_first_token_seconds_bucket{le=\"0.001\"} 1",
            "sm120_time_to_first_token_seconds_bucket{le=\"0.0025\"} 1",
            "sm120_time_to_first_token_seconds_bucket{le=\"0.005\"} 2",
            "sm120_time_to_first_token_seconds_bucket{le=\"300\"} 2",
            "sm120_time_to_first_token_seconds_bucket{le=\"+Inf\"} 3",
            "sm120_time_to_first_token_seconds_count 3",
            "sm120_inter_token_latency_seconds_count 1",
            "sm120_requests_total{endpoint=\"chat\",outcome=\"abandoned\"} 1",
            "sm120_requests_total{endpoint=\"chat\",outcome=\"stop\"} 1",
            "sm120_prompt_tokens_total 7",
            "sm120_output_tokens_total 2",
            "sm120_oldest_unserved_seconds 0",
            "sm120_pool_pages{pool=\"a\\\"\\\\\\n\",kind=\"a\"} 2",
            "sm120_pool_pages{pool=\"b\",kind=\"a\"} 0.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert_eq!(text.matches("# TYPE sm120_pool_pages ").count(), 1);
    }
}
