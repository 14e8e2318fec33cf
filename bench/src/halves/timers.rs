//! Times of rooms and connections on the command line.

use crate::serve::ServeError;
use crate::span::Span;
use clap::Args;
use std::time::Duration;
use transfer::room::Timers;

/// How long a half waits for what. Every one has its own reason in an error.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Times (500ms, 2.5s, 10m, 1h)")]
pub struct TimerArgs {
    /// From a request to the other half's first answer, and from a connection to its hello.
    #[arg(long, default_value_t = Span(Timers::default().handshake), value_name = "TIME")]
    pub handshake: Span,
    /// From beat to beat that names the request, until its first layer, and from the last to the end of sending.
    #[arg(long, default_value_t = Span(Timers::default().lease), value_name = "TIME")]
    pub lease: Span,
    /// From layer to layer once layers come.
    #[arg(long, default_value_t = Span(Timers::default().progress), value_name = "TIME")]
    pub layer_timeout: Span,
    /// From the last layer until the request goes on.
    #[arg(long, default_value_t = Span(Timers::default().taken), value_name = "TIME")]
    pub taken_timeout: Span,
    /// From the end of sending to its acknowledgement.
    #[arg(long, default_value_t = Span(Timers::default().acknowledge), value_name = "TIME")]
    pub acknowledge: Span,
    /// From a failure to the proof that nobody writes any more; then the connection is torn down.
    #[arg(long, default_value_t = Span(Timers::default().drain), value_name = "TIME")]
    pub tear_down: Span,
    /// Between two repetitions of what was not answered.
    #[arg(long, default_value_t = Span(Timers::default().retry), value_name = "TIME")]
    pub repeat: Span,
    /// Between two signs of life.
    #[arg(long, default_value_t = Span(Timers::default().beat), value_name = "TIME")]
    pub beat: Span,
    /// Beats without a sign of life after which the other half is lost.
    #[arg(long, default_value_t = Timers::default().misses, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub missed_beats: u32,
    /// For a connection to come about, and between two attempts.
    #[arg(long, default_value_t = Span(Duration::from_millis(200)), value_name = "TIME")]
    pub reconnect: Span,
    /// For all ranks to answer a step; then the process ends and names the missing one.
    #[arg(long, default_value_t = Span(Duration::from_secs(60)), value_name = "TIME")]
    pub step_timeout: Span,
}

impl TimerArgs {
    /// Those of rooms and connections.
    ///
    /// # Errors
    /// Two that contradict each other.
    pub fn of_rooms(&self) -> Result<Timers, ServeError> {
        let timers = Timers {
            handshake: self.handshake.0,
            lease: self.lease.0,
            progress: self.layer_timeout.0,
            taken: self.taken_timeout.0,
            acknowledge: self.acknowledge.0,
            drain: self.tear_down.0,
            retry: self.repeat.0,
            beat: self.beat.0,
            misses: self.missed_beats,
        };
        timers.check().map_err(|error| {
            let option = match error.timer {
                "silence" => "--missed-beats times --beat".to_owned(),
                "progress" => "--layer-timeout".to_owned(),
                "taken" => "--taken-timeout".to_owned(),
                "drain" => "--tear-down".to_owned(),
                "retry" => "--repeat".to_owned(),
                same => format!("--{same}"),
            };
            let (at_least, got) = (Span(error.at_least), Span(error.got));
            ServeError::Times(format!("{option}: expected at least {at_least} ({}), got {got}", error.why))
        })?;
        Ok(timers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        times: TimerArgs,
    }

    fn timers(line: &[&str]) -> Result<Timers, String> {
        let line = Line::try_parse_from([&["x"], line].concat()).map_err(|error| error.to_string())?;
        line.times.of_rooms().map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_usual_ones() {
        assert_eq!(timers(&[]), Ok(Timers::default()));
    }

    #[test]
    fn every_option_arrives_where_it_belongs() {
        let ms = Duration::from_millis;
        let line = "--handshake 7s --lease 11s --layer-timeout 6s --taken-timeout 12s --acknowledge 8s --tear-down 9s \
                    --repeat 900ms --beat 400ms --missed-beats 6";
        let expected = Timers {
            handshake: ms(7_000),
            lease: ms(11_000),
            progress: ms(6_000),
            taken: ms(12_000),
            acknowledge: ms(8_000),
            drain: ms(9_000),
            retry: ms(900),
            beat: ms(400),
            misses: 6,
        };
        assert_eq!(timers(&line.split_whitespace().collect::<Vec<_>>()), Ok(expected));
    }

    #[test]
    fn contradictions_are_refused_by_the_name_of_the_option() {
        let refused = |line: &[&str]| timers(line).expect_err("refused");
        let lease = refused(&["--lease", "900ms"]);
        assert_eq!(lease, "--lease: expected at least 1s (two beats: one may be late), got 900ms");
        let silence = refused(&["--missed-beats", "1"]);
        assert!(silence.starts_with("--missed-beats times --beat: expected at least 1s"), "{silence}");
        let drain = refused(&["--tear-down", "1s"]);
        assert!(drain.starts_with("--tear-down: expected at least 2s"), "{drain}");
        assert!(refused(&["--beat", "5"]).contains("such as 500ms"), "a unit is needed");
    }
}
