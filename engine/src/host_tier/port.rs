//! The rank's end of the copy engine: jobs out, news in, and what is known of every copy.

use super::copier::{Buffer, Copier, Job, News};
use super::copy::Copy;
use super::parts::Parts;
use super::slots::Slots;
use super::{HostTierConfig, HostTierError};
use crate::progress::Part;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transfer::exchange::{CopyId, CopySeen};
use transfer::ids::{Class, Unit};

/// Jobs that wait for the copy engine at most; it never waits for the rank, so that a full queue moves.
const QUEUE: usize = 64;
/// Pause before a full queue is tried again.
const FULL: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(super) struct CopierPort {
    /// `None` once the port is dropped.
    jobs: Option<SyncSender<Job>>,
    news: Receiver<News>,
    thread: Option<JoinHandle<()>>,
    pub(super) part: Arc<Part>,
    deadline: Duration,
    /// Empty buffers for saves.
    free: Vec<Buffer>,
    /// Parts of loads that are not in the cache yet.
    staged: VecDeque<(CopyId, usize, Buffer)>,
    /// Every copy that was ordered and not dropped.
    pub(super) copies: BTreeMap<CopyId, Copy>,
    /// Slots that hold a whole page.
    pub(super) filled: HashSet<(Class, u32)>,
}

/// A save between two pages.
#[derive(Debug, Default)]
pub(super) struct Filling {
    part: usize,
    bytes: usize,
    buffer: Option<Buffer>,
}

impl CopierPort {
    /// Starts the thread, with `buffers` buffers each way.
    pub(super) fn start(
        slots: Slots,
        buffers: u32,
        buffer_bytes: usize,
        config: &HostTierConfig,
    ) -> Result<Self, HostTierError> {
        let make = || (0..buffers).map(|_| vec![0; buffer_bytes].into_boxed_slice()).collect::<Vec<_>>();
        let (jobs, inbox) = sync_channel(QUEUE);
        let (outbox, news) = channel();
        let part = Part::new(&*config.name, Vec::new());
        let copier = Copier::new(slots, make(), inbox, (outbox, config.bell.clone()), Arc::clone(&part));
        let thread = std::thread::Builder::new().name(config.name.clone());
        let thread = thread.spawn(move || copier.run()).map_err(HostTierError::Thread)?;
        Ok(Self {
            jobs: Some(jobs),
            news,
            thread: Some(thread),
            part,
            deadline: config.deadline,
            free: make(),
            staged: VecDeque::new(),
            copies: BTreeMap::new(),
            filled: HashSet::new(),
        })
    }

    /// Hands a job over; what the copy engine says while the queue is full is taken note of.
    pub(super) fn send(&mut self, mut job: Job) -> Result<(), HostTierError> {
        if matches!(job, Job::Store { .. } | Job::Load { .. }) {
            self.part.arrive();
        }
        let until = self.until();
        loop {
            match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
                Some(Ok(())) => return Ok(()),
                Some(Err(TrySendError::Full(back))) if Instant::now() < until => job = back,
                Some(Err(TrySendError::Full(_))) => return Err(HostTierError::Full(self.deadline)),
                Some(Err(TrySendError::Disconnected(_))) | None => return Err(HostTierError::Stopped),
            }
            self.hear();
            std::thread::sleep(FULL);
        }
    }

    /// How long a wait that begins now may take.
    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Takes note of everything that the copy engine has said.
    pub(super) fn hear(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            self.note(news);
        }
    }

    /// Waits for the copy engine to say something.
    pub(super) fn wait(
        &mut self,
        until: Instant,
        (id, unit, what): (CopyId, Unit, &'static str),
    ) -> Result<(), HostTierError> {
        match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(news) => self.note(news),
            Err(RecvTimeoutError::Disconnected) => return Err(HostTierError::Stopped),
            Err(RecvTimeoutError::Timeout) => {
                return Err(HostTierError::Deadline { id, unit, what, waited: self.deadline });
            }
        }
        Ok(())
    }

    /// Parts that could be taken in now.
    pub(super) fn num_staged(&self) -> usize {
        self.staged.len()
    }

    pub(super) fn next_staged(&mut self) -> Option<(CopyId, usize, Buffer)> {
        self.staged.pop_front()
    }

    fn note(&mut self, news: News) {
        let Self { free, staged, copies, filled, .. } = self;
        match news {
            News::Stored { id, buffer, end } => {
                free.push(buffer);
                if let Some(copy) = copies.get_mut(&id) {
                    copy.stored(end, filled);
                }
            }
            News::Checked(id) => {
                if let Some(copy) = copies.get_mut(&id).filter(|copy| copy.seen == CopySeen::Moving) {
                    copy.seen = CopySeen::Checked;
                }
            }
            News::Failed(id, reason) => {
                if let Some(copy) = copies.get_mut(&id) {
                    copy.seen = CopySeen::Failed(reason);
                }
            }
            News::Staged { id, part, buffer } => staged.push_back((id, part, buffer)),
        }
    }

    /// Adds a page to a save; full buffers go to the copy engine.
    pub(super) fn put(
        &mut self,
        id: CopyId,
        parts: &Arc<Parts>,
        filling: &mut Filling,
        page: &[u8],
    ) -> Result<(), HostTierError> {
        let part = &parts.list[filling.part];
        let mut buffer = match filling.buffer.take() {
            Some(buffer) => buffer,
            None => self.empty_buffer((id, part.unit, "stored"))?,
        };
        buffer[filling.bytes..filling.bytes + page.len()].copy_from_slice(page);
        filling.bytes += page.len();
        if filling.bytes < part.bytes {
            filling.buffer = Some(buffer);
            return Ok(());
        }
        self.send(Job::Store { id, parts: Arc::clone(parts), part: filling.part, buffer })?;
        *filling = Filling { part: filling.part + 1, ..Filling::default() };
        Ok(())
    }

    fn empty_buffer(&mut self, why: (CopyId, Unit, &'static str)) -> Result<Buffer, HostTierError> {
        let until = self.until();
        loop {
            if let Some(buffer) = self.free.pop() {
                return Ok(buffer);
            }
            self.wait(until, why)?;
        }
    }
}

impl Copy {
    /// A part of a save has reached its slots, or has not.
    fn stored(&mut self, end: Result<(), transfer::reason::Reason>, filled: &mut HashSet<(Class, u32)>) {
        self.left -= 1;
        match end {
            Err(reason) if self.seen == CopySeen::Moving => self.seen = CopySeen::Failed(reason),
            Ok(()) if self.left == 0 && self.seen == CopySeen::Moving => {
                self.seen = CopySeen::Done;
                filled.extend(self.parts.moves.iter().map(|pages| (pages.class, pages.arena)));
            }
            _ => {}
        }
    }
}

impl Drop for CopierPort {
    /// Ends the copy engine behind the jobs that it has.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of its own has been seen as a channel that ended.
            let _ = thread.join();
        }
    }
}
