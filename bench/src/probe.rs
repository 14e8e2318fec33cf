//! Questions to a server about itself: one GET each, and sums over its metrics.

use std::io::{Error, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Status and text of an answer, its head included, and how long it took.
///
/// # Errors
/// A server that cannot be reached or is silent for `patience`; an answer that is no HTTP.
pub(crate) fn get(server: SocketAddr, path: &str, patience: Duration) -> std::io::Result<(u16, String, Duration)> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&server, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| Error::other("expected a status line"))?;
    Ok((status, text, start.elapsed()))
}

/// The sum of all samples whose line in `/metrics` begins with `name`.
///
/// # Errors
/// There is none.
pub(crate) fn sum(text: &str, name: &str) -> std::io::Result<f64> {
    let samples = text.lines().filter(|line| line.starts_with(name));
    let values: Vec<f64> = samples.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
    match values.is_empty() {
        true => Err(Error::other(format!("no metric {}", name.trim_end_matches('{')))),
        false => Ok(values.iter().sum()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_all_ranks_are_added() {
        let text = "# HELP x\nsm120_transfer_bytes_total{rank=\"0\"} 5\nsm120_transfer_bytes_total{rank=\"1\"} 7\n";
        assert_eq!(sum(text, "sm120_transfer_bytes_total{").ok(), Some(12.0));
        assert!(sum(text, "sm120_transfer_moving_seconds_total{").is_err());
    }
}
