//! Durations and byte counts as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// A duration on the command line: a number and its unit, `500ms`, `2.5s`, `10m`, `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected a time from 1ms to 24h such as 500ms, 2.5s, 10m or 1h, got `{0}`")]
pub struct SpanError(String);

/// Units from the largest, in milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const MOST_MS: f64 = 86_400_000.0;

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let wrong = || SpanError(text.to_owned());
        let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(unit_at);
        let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let ms = number * *unit_ms as f64;
        match (1.0..=MOST_MS).contains(&ms) {
            true => Ok(Self(Duration::from_micros((ms * 1e3).round() as u64))),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_micros() as f64 / 1e3;
        let whole = |unit_ms: u64| ms >= unit_ms as f64 && ms % unit_ms as f64 == 0.0;
        let (name, unit_ms) = UNITS.iter().find(|(_, unit_ms)| whole(*unit_ms)).unwrap_or(&UNITS[3]);
        write!(f, "{}{name}", ms / *unit_ms as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_write_them() {
        let ms = |text: &str| text.parse::<Span>().map(|span| span.0.as_micros() as f64 / 1e3);
        for (text, expected) in
            [("500ms", 500.0), ("2.5s", 2_500.0), ("0.5s", 500.0), ("10m", 600_000.0), ("1h", 3.6e6), ("24h", 8.64e7)]
        {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for text in ["", "5", "s", "0s", "-1s", "1d", "1 s", "25h", "inf s", "infs", "nans", "1e3s", "5S", "0.1ms"] {
            assert_eq!(ms(text), Err(SpanError(text.into())));
        }
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for (ms, text) in
            [(1, "1ms"), (500, "500ms"), (1_000, "1s"), (1_500, "1500ms"), (60_000, "1m"), (7_200_000, "2h")]
        {
            let span = Span(Duration::from_millis(ms));
            assert_eq!((span.to_string().as_str(), span.to_string().parse()), (text, Ok(span)));
        }
    }
}
