//! What the threads of one transport have in common, and how bytes get into and out of the arena.

use super::super::Bounds;
use super::faulty::Landing;
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

/// Bytes that may land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// None.
    Nothing,
    /// As long as this room is expected.
    Room(RoomKey),
    /// All.
    All,
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
                let page = &mut stage.0[filled..filled + part];
                self.arena.read(offset + at, page).map_err(io::Error::other)?;
                self.copy_fault(Range { offset, bytes }, page, at);
                (at, filled) = (at + part as u64, filled + part);
                if filled == STAGE_BYTES {
                    flush(&stage.0)?;
                    filled = 0;
                }
            }
        }
        flush(&stage.0[..filled])
    }

    /// Whether bytes land at this moment.
    pub(super) fn keeps(&self, keep: Keep) -> bool {
        match keep {
            Keep::Nothing => false,
            Keep::Room(tag) => self.expects(tag),
            Keep::All => true,
        }
    }

    /// Counts bytes that landed, or were dropped.
    pub(super) fn count(&self, bytes: u64, kept: bool) {
        let counter = if kept { &self.landed_bytes } else { &self.stale_bytes };
        // Release: who polls afterwards sees the bytes (the words themselves are relaxed).
        counter.fetch_add(bytes, Release);
    }

    /// Receives the bytes of `ranges`, which are inside pages, into the arena; or drops them where `keep` says no. Whether all
    /// were kept.
    pub(super) fn land(
        self: &Arc<Self>,
        socket: &mut impl Read,
        stage: &mut Stage,
        ranges: &[Range],
        keep: Keep,
    ) -> io::Result<bool> {
        let mut left: u64 = ranges.iter().map(|range| range.bytes).sum();
        let (mut kept_all, mut stage_at, mut filled) = (true, 0, 0);
        let mut pages = Vec::new();
        for &Range { offset, bytes } in ranges {
            let mut at = 0;
            let keeps = self.keeps(keep);
            let Landing { flip, mut late, twice } =
                if keeps { self.landing_fault(offset, bytes, keep) } else { Landing::default() };
            let now = keeps && (late.is_none() || twice);
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
                if let Some(byte) = flip.and_then(|flip| data.get_mut((flip % bytes).checked_sub(at)? as usize)) {
                    *byte ^= 0x10;
                }
                if let Some(late) = &mut late {
                    late.take(data);
                }
                if now {
                    self.arena.write(offset + at, data).map_err(io::Error::other)?;
                }
                (at, stage_at) = (at + part as u64, stage_at + part);
            }
            if now || !keeps {
                self.count(bytes, keeps);
            }
            kept_all &= keeps;
            pages.extend(late);
        }
        if !pages.is_empty() {
            self.write_late(pages)?;
        }
        Ok(kept_all)
    }

    /// A page that leaves late, or with a wrong byte.
    fn copy_fault(&self, Range { offset, bytes }: Range, page: &mut [u8], at: u64) {
        let Some(hit) = self.bounds.item(offset, bytes).and_then(|item| self.faults.at(Point::PageCopy, item)) else {
            return;
        };
        match hit.fault {
            Fault::Delay => std::thread::sleep(Duration::from_millis(hit.number)),
            Fault::Corrupt => {
                if let Some(byte) = (hit.random % bytes).checked_sub(at).and_then(|at| page.get_mut(at as usize)) {
                    *byte ^= 0x10;
                }
            }
            _ => {}
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
