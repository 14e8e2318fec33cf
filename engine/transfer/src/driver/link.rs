//! The two tasks of a control connection.

use crate::ids::PeerId;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// Reads of one connection that wait for the loop; its reader waits beyond. So a peer that floods the loop has no more of it than
/// the others.
const READS: usize = 2;

/// How long a connection that is torn down may take for what is already queued.
const LINGER: Duration = Duration::from_millis(200);

/// What the tasks tell the loop.
#[derive(Debug)]
pub(super) enum Event<S> {
    /// A stream to the target of this number, or why there is none.
    Connected(usize, std::io::Result<S>),
    /// Bytes as they came; the permit is dropped when they have been dealt with.
    Bytes(PeerId, Vec<u8>, OwnedSemaphorePermit),
    /// So many bytes of one frame went into the socket.
    Sent(PeerId, usize),
    /// The stream ended.
    Closed(PeerId),
}

/// A connection. Dropped, it stops reading at once and writes what is queued, if that goes quickly.
#[derive(Debug)]
pub(super) struct Link {
    frames: UnboundedSender<Vec<u8>>,
    reader: JoinHandle<()>,
}

impl Link {
    /// Starts both tasks.
    pub(super) fn start<S>(peer: PeerId, stream: S, events: Sender<Event<S>>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (read, write) = tokio::io::split(stream);
        let (frames, queue) = unbounded_channel();
        let reader = tokio::spawn(read_all(peer, read, events.clone()));
        tokio::spawn(write_all(peer, write, queue, events));
        Self { frames, reader }
    }

    /// Queues a frame. The endpoint bounds what is queued.
    pub(super) fn send(&self, frame: Vec<u8>) {
        // A writer that has ended has said so.
        let _ = self.frames.send(frame);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_all<S, R: AsyncRead + Unpin>(peer: PeerId, mut read: R, events: Sender<Event<S>>) {
    let mut buffer = vec![0; READ_BYTES];
    let reads = Arc::new(Semaphore::new(READS));
    // Nobody closes it.
    while let Ok(permit) = Arc::clone(&reads).acquire_owned().await {
        let event = match read.read(&mut buffer).await {
            Ok(0) | Err(_) => Event::Closed(peer),
            Ok(bytes) => Event::Bytes(peer, buffer[..bytes].to_vec(), permit),
        };
        let over = matches!(event, Event::Closed(_));
        if events.send(event).await.is_err() || over {
            return;
        }
    }
}

async fn write_all<S, W: AsyncWrite + Unpin>(
    peer: PeerId,
    mut write: W,
    mut queue: UnboundedReceiver<Vec<u8>>,
    events: Sender<Event<S>>,
) {
    while let Some(frame) = queue.recv().await {
        let written = match queue.is_closed() {
            // The connection is being torn down: what is left must go quickly or not at all.
            true => tokio::time::timeout(LINGER, write.write_all(&frame)).await.is_ok_and(|written| written.is_ok()),
            false => write.write_all(&frame).await.is_ok(),
        };
        let event = if written { Event::Sent(peer, frame.len()) } else { Event::Closed(peer) };
        if events.send(event).await.is_err() || !written {
            break;
        }
    }
    // The other side may be gone.
    let _ = tokio::time::timeout(LINGER, write.shutdown()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use tokio::sync::mpsc::channel;

    /// Whatever one peer sends, the word of another is not far behind.
    #[tokio::test]
    async fn a_peer_that_floods_waits_for_its_turn() {
        const FLOOD: usize = 1 << 20;
        let (events, mut happened) = channel(256);
        let ((mut loud, first), (mut quiet, second)) = (tokio::io::duplex(FLOOD), tokio::io::duplex(FLOOD));
        let _links = [Link::start(PeerId(1), first, events.clone()), Link::start(PeerId(2), second, events)];
        loud.write_all(&[7; FLOOD]).await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        quiet.write_all(&[8]).await.unwrap();
        let mut waiting = VecDeque::new();
        loop {
            match happened.recv().await.unwrap() {
                Event::Bytes(PeerId(2), bytes, _) => break assert_eq!(bytes, [8]),
                event => waiting.push_back(event),
            }
        }
        assert_eq!(waiting.len(), READS);
        // Dealt with one by one, all of it comes.
        let mut left = FLOOD;
        while left > 0 {
            let event = match waiting.pop_front() {
                Some(event) => event,
                None => happened.recv().await.unwrap(),
            };
            let Event::Bytes(PeerId(1), bytes, _) = event else { panic!("{event:?}") };
            left -= bytes.len();
        }
    }
}
