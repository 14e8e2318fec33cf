//! Frames out of a stream of bytes.

use super::{Decoded, Frame, FrameError, decode};

/// Cuts the bytes of a connection into frames.
///
/// Holds at most one unfinished frame beside what was pushed last. After an error that loses the stream it stays silent.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    lost: bool,
}

impl FrameReader {
    /// A reader at the start of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes as they came from the socket.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.lost {
            self.buffer.drain(..self.start);
            self.start = 0;
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Next frame or error; `None` until more bytes come, or for good once the stream is lost.
    pub fn next_frame(&mut self) -> Option<Result<Frame, FrameError>> {
        if self.lost {
            return None;
        }
        match decode(&self.buffer[self.start..]) {
            Decoded::NeedMore => None,
            Decoded::Frame { frame, used } => {
                self.start += used;
                Some(Ok(frame))
            }
            Decoded::Skip { error, used } => {
                self.start += used;
                Some(Err(error))
            }
            Decoded::Lost(error) => {
                *self = Self { lost: true, ..Self::default() };
                Some(Err(error))
            }
        }
    }
}
