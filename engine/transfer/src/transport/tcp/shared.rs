//! What the threads of one transport have in common, and how bytes get into and out of the arena.

use super::super::Bounds;
use super::wire::Range;
use crate::arena::Arena;
use crate::fault::{Fault, Faults, Point};
use crate::ids::{PeerId, RoomKey, Ticket};
use crate::transport::End;
use std::collections::HashSet;
use std::io::{self, IoSlice, Read, Write};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, Release},
};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Bytes that are moved per call of the system: large against its cost, small against the second-level cache.
const STAGE_BYTES: usize = 256 << 10;

/// What threads tell [`super::Tcp::poll`].
#[derive(Debug)]
pub(super) enum Event {
    Ended { peer: PeerId, ticket: Ticket, end: End },
    Lost { peer: PeerId, reason: String },
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) arena: Arc<Arena>,
    pub(super) bounds: Bounds,
    /// This incarnation.
    pub(super) token: u64,
    pub(super) faults: Arc<Faults>,
    pub(super) admitted: RwLock<HashSet<RoomKey>>,
    pub(super) sent_bytes: AtomicU64,
    pub(super) landed_bytes: AtomicU64,
    pub(super) stale_bytes: AtomicU64,
    pub(super) malformed: AtomicU64,
}

/// Memory for bytes between socket and arena. Arena words are atomic, so the system cannot read them in place: pages are
/// gathered here, many small ones per call.
pub(super) struct Stage(Box<[u8]>);

impl Stage {
    pub(super) fn new() -> Self {
        Self(vec![0; STAGE_BYTES].into())
    }
}

impl Shared {
    pub(super) fn expects(&self, tag: RoomKey) -> bool {
        self.admitted.read().unwrap_or_else(PoisonError::into_inner).contains(&tag)
    }

    /// Sends `head` and then ranges of the arena. `stop` ends it between two stages.
    pub(super) fn send(
        &self,
        socket: &mut impl Write,
        stage: &mut Stage,
        head: &[u8],
        ranges: impl Iterator<Item = Range>,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let (mut head, mut filled) = (head, 0);
        let mut flush = |stage: &[u8]| {
            if stop.load(Relaxed) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.sent_bytes.fetch_add(stage.len() as u64, Relaxed);
            write_both(socket, std::mem::take(&mut head), stage)
        };
        for Range { offset, bytes } in ranges {
            let mut at = 0;
            while at < bytes {
                let part = (bytes - at).min((STAGE_BYTES - filled) as u64) as usize;
                self.arena.read(offset + at, &mut stage.0[filled..filled + part]).map_err(io::Error::other)?;
                (at, filled) = (at + part as u64, filled + part);
                if filled == STAGE_BYTES {
                    flush(&stage.0)?;
                    filled = 0;
                }
            }
        }
        flush(&stage.0[..filled])
    }

    /// Receives the bytes of `ranges`, which are inside pages, into the arena; or drops them where `keep` says no. Whether all
    /// were kept.
    pub(super) fn land(
        &self,
        socket: &mut impl Read,
        stage: &mut Stage,
        ranges: &[Range],
        mut keep: impl FnMut() -> bool,
    ) -> io::Result<bool> {
        let mut left: u64 = ranges.iter().map(|range| range.bytes).sum();
        let (mut kept_all, mut stage_at, mut filled) = (true, 0, 0);
        for &Range { offset, bytes } in ranges {
            let mut at = 0;
            let keeps = keep();
            let flip = if keeps { self.landing_fault(offset, bytes) } else { None };
            while at < bytes {
                if stage_at == filled {
                    let want = left.min(STAGE_BYTES as u64) as usize;
                    filled = socket.read(&mut stage.0[..want])?;
                    if filled == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    (stage_at, left) = (0, left - filled as u64);
                }
                let part = (bytes - at).min((filled - stage_at) as u64) as usize;
                let data = &mut stage.0[stage_at..stage_at + part];
                if keeps {
                    if let Some(byte) = flip.and_then(|flip| data.get_mut((flip % bytes).checked_sub(at)? as usize)) {
                        *byte ^= 0x10;
                    }
                    self.arena.write(offset + at, data).map_err(io::Error::other)?;
                }
                (at, stage_at) = (at + part as u64, stage_at + part);
            }
            let counter = if keeps { &self.landed_bytes } else { &self.stale_bytes };
            // Release: who polls afterwards sees the bytes (the words themselves are relaxed).
            counter.fetch_add(bytes, Release);
            kept_all &= keeps;
        }
        Ok(kept_all)
    }

    /// A page that lands late, or with a wrong byte: which.
    fn landing_fault(&self, offset: u64, bytes: u64) -> Option<u64> {
        let hit = self.faults.at(Point::Landing, self.bounds.item(offset, bytes)?)?;
        match hit.fault {
            Fault::Delay => {
                std::thread::sleep(Duration::from_millis(hit.number));
                None
            }
            Fault::Corrupt => Some(hit.random),
            _ => None,
        }
    }
}

/// One vectored write where the system takes it whole.
fn write_both(socket: &mut impl Write, mut head: &[u8], mut body: &[u8]) -> io::Result<()> {
    while !head.is_empty() || !body.is_empty() {
        let written = match socket.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_head = written.min(head.len());
        head = &head[of_head..];
        body = &body[written - of_head..];
    }
    Ok(())
}
