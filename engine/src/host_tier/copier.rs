//! The copy engine: the thread that touches slots.
//!
//! A job first, then a step of a load: the next part of the load whose next unit comes first, if there is a buffer for it; else
//! the sums of the next part of a load that is not checked. Nothing here waits for the rank.

use super::disk::Check;
use super::parts::Parts;
use super::slots::Slots;
use crate::engine::Bell;
use crate::progress;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};
use transfer::exchange::CopyId;
use transfer::fault::{Fault, Point};
use transfer::ids::Unit;
use transfer::reason::Reason;

/// A staging buffer.
pub(super) type Buffer = Box<[u8]>;

/// What the rank hands over.
#[derive(Debug)]
pub(super) enum Job {
    /// Pages of a save.
    Store { id: CopyId, parts: Arc<Parts>, part: usize, buffer: Buffer },
    /// A load.
    Load { id: CopyId, parts: Arc<Parts> },
    /// A buffer whose pages are in the cache.
    Return(Buffer),
    /// A load that nobody wants any more.
    Stop(CopyId),
}

/// What the copy engine says.
#[derive(Debug)]
pub(super) enum News {
    /// A part of a save is in its slots, or is not.
    Stored { id: CopyId, buffer: Buffer, end: Result<(), Reason> },
    /// Every page of a load is what was saved.
    Checked(CopyId),
    /// A load will not arrive.
    Failed(CopyId, Reason),
    /// A part of a load is in a buffer.
    Staged { id: CopyId, part: usize, buffer: Buffer },
}

#[derive(Debug)]
struct Load {
    id: CopyId,
    parts: Arc<Parts>,
    check: Check,
    /// Parts whose sums were compared, where that comes first.
    checked: usize,
    waiting: VecDeque<usize>,
    /// Parts that a fault holds back, and until when.
    late: Vec<(Instant, usize)>,
}

impl Load {
    fn is_checked(&self) -> bool {
        self.check != Check::Before || self.checked == self.parts.list.len()
    }

    /// The part to stage next.
    fn next(&self) -> Option<(Unit, usize)> {
        let part = *self.waiting.front().filter(|_| self.is_checked())?;
        Some((self.parts.list[part].unit, part))
    }
}

/// A step of a load, by its place.
enum Step {
    Stage(usize),
    Check(usize),
}

#[derive(Debug)]
pub(super) struct Copier {
    slots: Slots,
    /// In the order in which they came.
    loads: Vec<Load>,
    free: Vec<Buffer>,
    jobs: Receiver<Job>,
    news: Sender<News>,
    bell: Bell,
    /// Saves and loads that were handed over: those of a load wait until its last page is staged.
    part: Arc<progress::Part>,
}

impl Copier {
    pub(super) fn new(
        slots: Slots,
        free: Vec<Buffer>,
        jobs: Receiver<Job>,
        (news, bell): (Sender<News>, Bell),
        part: Arc<progress::Part>,
    ) -> Self {
        Self { slots, loads: Vec::new(), free, jobs, news, bell, part }
    }

    /// Until the rank is gone.
    pub(super) fn run(mut self) {
        loop {
            self.wake_late();
            let step = self.next_step();
            let job = match (&step, self.next_late()) {
                (Some(_), _) => self.jobs.try_recv(),
                (None, Some(wait)) => self.jobs.recv_timeout(wait).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                (None, None) => self.jobs.recv().map_err(|_| TryRecvError::Disconnected),
            };
            match (job, step) {
                (Ok(job), _) => self.take(job),
                (Err(TryRecvError::Disconnected), _) => return,
                (Err(TryRecvError::Empty), Some(Step::Stage(load))) => self.stage(load),
                (Err(TryRecvError::Empty), Some(Step::Check(load))) => self.check(load),
                (Err(TryRecvError::Empty), None) => {}
            }
        }
    }

    fn next_step(&self) -> Option<Step> {
        let next = |(at, load): (usize, &Load)| load.next().map(|(unit, _)| (unit, at));
        let stage = self.loads.iter().enumerate().filter_map(next).min().filter(|_| !self.free.is_empty());
        let check = || self.loads.iter().position(|load| !load.is_checked());
        stage.map(|(_, at)| Step::Stage(at)).or_else(|| check().map(Step::Check))
    }

    /// The rank may be gone; then there will be no next job.
    fn say(&self, news: News) {
        let _ = self.news.send(news);
        self.bell.ring();
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Store { id, parts, part, mut buffer } => {
                let of = &parts.list[part];
                let slots = parts.pages(of).iter().map(|pages| pages.arena);
                let end = self.slots.write(of.item, slots, &mut buffer[..of.bytes]);
                self.part.leave();
                self.say(News::Stored { id, buffer, end });
            }
            Job::Load { id, parts } => self.begin(id, parts),
            Job::Return(buffer) => self.free.push(buffer),
            Job::Stop(id) => self.leave(id),
        }
    }

    fn begin(&mut self, id: CopyId, parts: Arc<Parts>) {
        let (check, waiting) = (self.slots.kinds.check(&parts.moves), (0..parts.list.len()).collect());
        let mut load = Load { id, parts, check, checked: 0, waiting, late: Vec::new() };
        let injected = self.inject(&mut load);
        self.loads.push(load);
        if let Err(reason) = injected {
            self.fail(id, reason);
        }
    }

    /// A load is over.
    fn leave(&mut self, id: CopyId) {
        let before = self.loads.len();
        self.loads.retain(|load| load.id != id);
        if self.loads.len() < before {
            self.part.leave();
        }
    }

    /// Faults of a load, part by part.
    fn inject(&mut self, load: &mut Load) -> Result<(), Reason> {
        for (at, part) in load.parts.list.iter().enumerate() {
            let Some(fault) = self.slots.fault(Point::HostLoad, part.item) else { continue };
            let slot = load.parts.pages(part)[0].arena;
            match fault.fault {
                Fault::Delay => {
                    load.waiting.retain(|&waiting| waiting != at);
                    load.late.push((Instant::now() + Duration::from_millis(fault.number), at));
                }
                Fault::Corrupt => self.slots.corrupt(part.item, slot, fault.random)?,
                _ => return Err(self.slots.reason(part.item, slot, "injected fault")),
            }
        }
        Ok(())
    }

    /// Time until the first held part may go on.
    fn next_late(&self) -> Option<Duration> {
        let first = self.loads.iter().flat_map(|load| &load.late).map(|(until, _)| *until).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    fn wake_late(&mut self) {
        for load in self.loads.iter_mut().filter(|load| !load.late.is_empty()) {
            let now = Instant::now();
            let waiting = &mut load.waiting;
            load.late.retain(|&(until, part)| {
                if until <= now {
                    waiting.push_front(part);
                }
                until > now
            });
            load.waiting.make_contiguous().sort_unstable();
        }
    }

    fn check(&mut self, at: usize) {
        let Self { slots, loads, .. } = self;
        let load = &mut loads[at];
        let part = &load.parts.list[load.checked];
        let same = load.parts.pages(part).iter().try_for_each(|pages| slots.check(part.item, pages.arena));
        load.checked += 1;
        self.part.tick();
        let (id, whole) = (load.id, load.is_checked());
        match same {
            Ok(()) if whole => self.say(News::Checked(id)),
            Ok(()) => {}
            Err(reason) => self.fail(id, reason),
        }
    }

    fn stage(&mut self, at: usize) {
        let Self { slots, loads, free, .. } = self;
        let load = &mut loads[at];
        let (Some((_, nth)), Some(mut buffer)) = (load.next(), free.pop()) else { return };
        load.waiting.pop_front();
        let part = &load.parts.list[nth];
        let mut pages = load.parts.pages(part).iter().zip(buffer.chunks_exact_mut(slots.page_bytes(part.item)));
        let behind = load.check == Check::Behind;
        let read = pages.try_for_each(|(pages, page)| {
            slots.read(part.item, pages.arena, page)?;
            if behind { slots.compare(part.item, pages.arena, page) } else { Ok(()) }
        });
        let id = load.id;
        self.part.tick();
        if load.waiting.is_empty() && load.late.is_empty() && read.is_ok() {
            self.leave(id);
        }
        match read {
            Ok(()) => self.say(News::Staged { id, part: nth, buffer }),
            Err(reason) => {
                self.free.push(buffer);
                self.fail(id, reason);
            }
        }
    }

    fn fail(&mut self, id: CopyId, reason: Reason) {
        self.leave(id);
        self.say(News::Failed(id, reason));
    }
}
