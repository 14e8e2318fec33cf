//! What a long run says on standard error: a bar on a terminal, elsewhere a line now and then.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Between two lines, and before the first.
const PAUSE: Duration = Duration::from_secs(5);

/// So many things to do.
pub(crate) struct Progress {
    what: String,
    bar: ProgressBar,
    /// When a line was written last; none on a terminal.
    said: Option<Mutex<Instant>>,
}

impl Progress {
    /// Nothing is done yet.
    pub(crate) fn new(what: impl Into<String>, len: usize) -> Self {
        Self::of(what.into(), len, std::io::stderr().is_terminal())
    }

    fn of(what: String, len: usize, terminal: bool) -> Self {
        let style = ProgressStyle::with_template("{prefix:>28} {wide_bar} {pos}/{len} {elapsed}");
        let bar = match terminal {
            true => ProgressBar::new(len as u64),
            false => ProgressBar::with_draw_target(Some(len as u64), indicatif::ProgressDrawTarget::hidden()),
        };
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_prefix(what.clone());
        Self { what, bar, said: (!terminal).then(|| Mutex::new(Instant::now())) }
    }

    /// One more is done.
    pub(crate) fn step(&self) {
        if let Some(line) = self.line(PAUSE) {
            // Nobody may be there to read it.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// Counts one, and says so if the last line is older than `pause`.
    fn line(&self, pause: Duration) -> Option<String> {
        self.bar.inc(1);
        let mut said = self.said.as_ref()?.lock().ok()?;
        if said.elapsed() < pause {
            return None;
        }
        *said = Instant::now();
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        Some(format!("{}: {done} of {all}, {} s", self.what, self.bar.elapsed().as_secs()))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_now_and_then_and_none_beside_a_bar() {
        let mut progress = Progress::of("cases".into(), 3, false);
        assert_eq!(progress.line(PAUSE), None);
        progress.said = Instant::now().checked_sub(PAUSE).map(Mutex::new);
        assert_eq!(progress.line(PAUSE).as_deref(), Some("cases: 2 of 3, 0 s"));
        assert_eq!(progress.line(PAUSE), None, "just said");
        let bar = Progress::of("cases".into(), 3, true);
        assert_eq!(bar.line(Duration::ZERO), None);
    }
}
