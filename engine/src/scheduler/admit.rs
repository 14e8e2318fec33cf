//! Admissions: a waiting sequence gets what it starts with.

use super::Scheduler;
use crate::handover::Needed;
use crate::host_cache::HostHit;
use crate::ids::{Generation, SequenceId};
use crate::sequence::{Phase, Role};
use std::ops::Range;

/// What a sequence need not compute.
struct Beginning {
    /// Its tokens.
    tokens: u32,
    /// Copies that bring it, if not all of it is on the device.
    load: Option<HostHit>,
}

impl Scheduler {
    /// Gives a waiting sequence what it starts with: the pages of a cached beginning, compressed pages for its whole
    /// text, a slot for its rings. One page per running sequence is left over, so that the next steps need not take
    /// these pages away again.
    pub(super) fn admit(&mut self, id: SequenceId) -> bool {
        let generation = Generation(self.next_generation);
        let running = self.num_occupied() as u32;
        let Some(Beginning { tokens: cached, load }) = self.find_beginning(id) else { return false };
        let sequence = &self.sequences[&id];
        let tokens = sequence.tokens.len() as u32;
        let remote = (sequence.role == Role::Remote).then(|| Needed::at(&self.shape, cached, tokens));
        let compressed = self.shape.compressed_pages(tokens) - sequence.compressed.len() as u32;
        let windows = self.shape.max_window_pages(1) - u32::from(cached > 0 && load.is_none());
        let at_once = u32::from(load.is_some()) + remote.as_ref().map_or(0, |needed| needed.window.len() as u32);
        let slot = if self.shape.has_request_slots() { self.pools.requests.alloc_for(generation) } else { None };
        let fits = slot.is_some() == self.shape.has_request_slots()
            && self.available_compressed(compressed + running)
            && self.available_windows(windows.max(at_once) + running)
            && self.reserve_compressed(compressed)
            && self.reserve_windows(at_once) >= at_once;
        let sequence = self.sequences.get_mut(&id).expect("waiting sequences exist");
        sequence.request_slot = slot;
        if !fits {
            sequence.release(&mut self.pools);
            self.unpin(load);
            return false;
        }
        let on_device = sequence.compressed.len();
        sequence.compressed.extend((0..compressed).map_while(|_| self.pools.compressed.alloc_for(generation)));
        sequence.phase = Phase::Running;
        sequence.generation = generation;
        let resumed_from = sequence.node.filter(|_| load.is_none());
        self.next_generation += 1;
        self.stats.admitted += 1;
        self.waiting.remove(&id);
        resumed_from.into_iter().for_each(|node| self.resumed_from(node));
        if load.is_some() {
            let last = cached / self.shape.window_page_tokens - 1;
            self.take_windows(id, last..last + 1);
        }
        if let Some(needed) = &remote {
            if load.is_none() {
                self.leave_unread_window(id, cached, needed.window.start);
            }
            self.take_windows(id, needed.window.clone());
        }
        match (load, remote) {
            (Some(hit), _) => self.begin_load(id, hit, on_device),
            (None, remote) => self.go_on(id, cached, remote),
        }
        true
    }

    /// Shares what the device has of a text, and pins what host memory has beyond it. `None` if no further copy may be under way:
    /// nothing is shared or pinned then.
    fn find_beginning(&mut self, id: SequenceId) -> Option<Beginning> {
        let full = self.loads_are_full();
        let sequence = self.sequences.get_mut(&id).expect("waiting sequences exist");
        let (tokens, page) = (sequence.tokens.len() as u32, self.shape.page_tokens);
        let hit = match self.config.prefix_cache {
            true => self.prefix.lookup(&sequence.tokens, tokens - 1, &mut self.pools),
            false => None,
        };
        let on_device = hit.as_ref().map_or(0, |hit| hit.tokens);
        let pages = (on_device / page) as usize;
        let cache = self.host.as_mut().map(|host| &mut host.cache);
        let load = cache.and_then(|cache| cache.lookup(&sequence.tokens, tokens - 1, on_device, pages));
        let cached = load.as_ref().map_or(on_device, |load| load.tokens);
        if let Some(hit) = hit {
            sequence.compressed = hit.compressed;
            sequence.node = Some(hit.node);
            match load {
                // Only the window before the boundary is read, and that one comes.
                Some(_) => _ = self.pools.window.release(hit.window),
                None => {
                    let first = hit.tokens / self.shape.window_page_tokens - 1;
                    sequence.window.resize_with(first as usize, || None);
                    sequence.window.push(Some(hit.window));
                }
            }
        }
        (sequence.scheduled, sequence.committed, sequence.published) = (cached, cached, cached / page);
        if load.is_some() {
            // The last boundary is published once it is here; those before it have no window page here.
            sequence.published -= 1;
            sequence.node = sequence.node.filter(|_| sequence.published == pages as u32);
            if full {
                sequence.release(&mut self.pools);
                self.unpin(load);
                return None;
            }
        }
        Some(Beginning { tokens: cached, load })
    }

    /// A sequence has the rows of `cached` tokens: it runs from there, or waits for what another engine computes.
    pub(super) fn go_on(&mut self, id: SequenceId, cached: u32, remote: Option<Needed>) {
        let sequence = self.sequences.get_mut(&id).expect("admitted sequences exist");
        sequence.cached_tokens.get_or_insert(cached);
        self.stats.cached_tokens += u64::from(cached);
        match remote {
            Some(needed) => self.land(id, cached, needed),
            None => {
                sequence.phase = Phase::Running;
                self.running.insert(id);
            }
        }
    }

    /// Window pages for these places of a sequence; places before them that have none stay empty. They were counted before.
    fn take_windows(&mut self, id: SequenceId, places: Range<u32>) {
        let sequence = self.sequences.get_mut(&id).expect("admitted sequences exist");
        sequence.window.resize_with(places.start as usize, || None);
        for _ in places {
            sequence.window.extend(self.pools.window.alloc_for(sequence.generation).map(Some));
        }
    }

    /// Gives back the window page before the cached boundary of a landing text whose first window page is further on: nobody
    /// reads it.
    pub(super) fn leave_unread_window(&mut self, id: SequenceId, cached: u32, first: u32) {
        let end = (cached / self.shape.window_page_tokens) as usize;
        if first as usize > end {
            let sequence = self.sequences.get_mut(&id).expect("admitted sequences exist");
            let unread = sequence.window.iter_mut().take(end).filter_map(Option::take);
            unread.for_each(|page| _ = self.pools.window.release(page));
        }
    }
}
