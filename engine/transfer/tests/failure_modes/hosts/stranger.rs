//! Others who connect to control ports: one that sends what nobody should, one that never reads.

use crate::chance::Rng;
use crate::endpoints::network::noise as bytes;
use crate::words::hello;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use transfer::frame::{Body, Frame, NO_ROOM, encode};
use transfer::hello::{Hello, Side};
use turmoil::net::TcpStream;

/// Until that time: connections that stay for up to 200 ms, with noise on them, and that read or do not.
pub(crate) async fn noise(targets: Vec<String>, mut rng: Rng, until: Duration) -> turmoil::Result {
    while turmoil::sim_elapsed().is_some_and(|now| now < until) {
        let target = targets[rng.below(targets.len() as u64) as usize].as_str();
        let stay = rng.between(1, 200);
        let connected = tokio::time::timeout(stay, TcpStream::connect(target)).await;
        // Nobody listens, or nobody answers: another time.
        let Ok(Ok(mut stream)) = connected else {
            tokio::time::sleep(stay).await;
            continue;
        };
        for _ in 0..rng.below(6) {
            if stream.write_all(&bytes(&mut rng)).await.is_err() {
                break;
            }
        }
        let mut reply = [0; 256];
        if rng.chance(500) {
            // Whatever comes, or nothing.
            let _ = tokio::time::timeout(stay, stream.read(&mut reply)).await;
        }
        tokio::time::sleep(stay).await;
    }
    Ok(())
}

/// A hello that fits, then questions that are answered, until that time or the end of the connection. Nothing is read.
pub(crate) async fn mute(target: String, until: Duration) -> turmoil::Result {
    let name = "mute".to_owned();
    let hello =
        Hello { name, transport: "in-process".into(), blob: b"in-process:0:1".into(), ..hello(Side::Decode, 9, 0, 9) };
    let mut stream = TcpStream::connect(target.as_str()).await?;
    let mut body = Body::Hello(Box::new(hello));
    for sequence in 1.. {
        let frame = encode(&Frame { key: NO_ROOM, sequence, body })?;
        if stream.write_all(&frame).await.is_err() || turmoil::sim_elapsed().is_none_or(|now| now > until) {
            return Ok(());
        }
        body = Body::Fence { upto: 0 };
        if sequence.is_multiple_of(50) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}
