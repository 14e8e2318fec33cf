//! Faults of a client's connection, as [`Point::Http`] has them: what a slow or broken network does to reads and writes.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use transfer::fault::{Fault, Faults, Point};

/// A connection and what happens to it.
#[derive(Debug)]
pub(crate) struct Faulty {
    stream: TcpStream,
    read: Option<Course>,
    write: Option<Course>,
}

/// What happens in one direction.
#[derive(Debug)]
enum Course {
    /// Nothing moves before this.
    Stalled(Pin<Box<Sleep>>),
    /// Closed behind so many bytes.
    Closing(u64),
}

impl Course {
    fn of(faults: &Faults, direction: &str) -> Option<Self> {
        let hit = faults.at(Point::Http, direction)?;
        match hit.fault {
            Fault::Stall => Some(Self::Stalled(Box::pin(sleep(Duration::from_millis(hit.number))))),
            Fault::Close => Some(Self::Closing(hit.number)),
            _ => None,
        }
    }

    /// Bytes that may move now at most.
    fn allowed(course: &mut Option<Self>, cx: &mut Context<'_>) -> Poll<Result<u64, Error>> {
        match course {
            None => return Poll::Ready(Ok(u64::MAX)),
            Some(Self::Closing(0)) => return Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
            Some(Self::Closing(left)) => return Poll::Ready(Ok(*left)),
            Some(Self::Stalled(until)) => ready!(until.as_mut().poll(cx)),
        }
        *course = None;
        Poll::Ready(Ok(u64::MAX))
    }

    fn moved(course: &mut Option<Self>, bytes: usize) {
        if let Some(Self::Closing(left)) = course {
            *left -= bytes as u64;
        }
    }
}

impl Faulty {
    /// A new connection; each is an occurrence of either direction.
    pub(crate) fn new(stream: TcpStream, faults: &Faults) -> Self {
        let (read, write) = (Course::of(faults, "read"), Course::of(faults, "write"));
        Self { stream, read, write }
    }
}

impl AsyncRead for Faulty {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<(), Error>> {
        let this = &mut *self;
        let allowed = ready!(Course::allowed(&mut this.read, cx))?;
        let most = usize::try_from(allowed).unwrap_or(usize::MAX).min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut part))?;
        let bytes = part.filled().len();
        buf.advance(bytes);
        Course::moved(&mut this.read, bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Faulty {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize, Error>> {
        let this = &mut *self;
        let allowed = ready!(Course::allowed(&mut this.write, cx))?;
        let most = usize::try_from(allowed).unwrap_or(usize::MAX).min(buf.len());
        let bytes = ready!(Pin::new(&mut this.stream).poll_write(cx, &buf[..most]))?;
        Course::moved(&mut this.write, bytes);
        Poll::Ready(Ok(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        match self.write {
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
            Some(_) => {
                let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
                self.poll_write(cx, first)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
