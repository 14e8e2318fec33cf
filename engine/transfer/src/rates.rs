//! What a plain socket moves on this machine: the measure that a transport stands beside.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

/// Bytes per call.
const CALL_BYTES: usize = 256 << 10;

/// Median of `runs` rates.
///
/// # Panics
/// No run.
pub fn median(runs: impl IntoIterator<Item = f64>) -> f64 {
    let mut rates: Vec<f64> = runs.into_iter().collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Rates of `runs` times `bytes` over one connection of 127.0.0.1, 256 KiB per call into one buffer, in bytes per nanosecond
/// (= GB/s, decimal); the reader answers when it has all. Both ends share this machine's cores.
///
/// # Errors
/// A socket.
pub fn plain_socket(bytes: usize, runs: usize) -> std::io::Result<Vec<f64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut writer = TcpStream::connect(listener.local_addr()?)?;
    writer.set_nodelay(true)?;
    let (mut reader, _) = listener.accept()?;
    reader.set_nodelay(true)?;
    let receiving = std::thread::spawn(move || (0..runs).try_for_each(|_| receive(&mut reader, bytes)));
    let buffer = vec![7; CALL_BYTES];
    let run = |_| {
        let start = Instant::now();
        let mut left = bytes;
        while left > 0 {
            let part = left.min(CALL_BYTES);
            writer.write_all(&buffer[..part])?;
            left -= part;
        }
        writer.read_exact(&mut [0])?;
        Ok(bytes as f64 / start.elapsed().as_nanos().max(1) as f64)
    };
    let rates = (0..runs).map(run).collect();
    drop(writer);
    // Its errors are those of the writer, which waits for its answers.
    let _ = receiving.join();
    rates
}

fn receive(reader: &mut TcpStream, bytes: usize) -> std::io::Result<()> {
    let mut buffer = vec![0; CALL_BYTES];
    let mut left = bytes;
    while left > 0 {
        let want = left.min(buffer.len());
        reader.read_exact(&mut buffer[..want])?;
        left -= want;
    }
    reader.write_all(&[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_a_rate() {
        let rates = plain_socket(3 * CALL_BYTES + 5, 3).expect("sockets");
        assert!(rates.len() == 3 && rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "{rates:?}");
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([5.0]), 5.0);
    }
}
