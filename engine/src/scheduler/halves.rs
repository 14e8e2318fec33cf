//! Requests of which another engine does one half: prompts computed for somebody else, and texts that go on from a prompt
//! that somebody else computed.
//!
//! A **prefill-only** request is admitted and run like any other. With its first token it leaves the running ones, is reported
//! once ([`Scheduler::take_prefilled`]) and holds its pages until [`Scheduler::release`].
//!
//! A **remote** request gets its pages when it is admitted and is reported once ([`Scheduler::take_reserved`]). It takes part in
//! no step until [`Scheduler::start`] says that all of its prompt has landed in them; steps that write landed rows into them
//! are counted ([`Scheduler::filling`], [`Scheduler::filled`]), so that no page changes hands under such a step. When pages
//! run out it is preempted like a running one, by age. It is then an ordinary request: its text is computed here. Who waits
//! for its prompt learns that from [`Scheduler::take_preempted`].

use super::{AddError, Scheduler};
use crate::handover::Needed;
use crate::ids::{Generation, PageId, SequenceId, SlotIndex, TokenId};
use crate::sequence::{Event, Phase, Request, Role};
use crate::step::Sampled;
use std::collections::{BTreeSet, VecDeque};

/// A prompt that is computed, with its first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefilled {
    /// The request; it holds its pages until [`Scheduler::release`].
    pub sequence: SequenceId,
    /// What the other engine goes on with.
    pub first: FirstToken,
}

/// What follows a prompt, beside its cache rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FirstToken {
    /// The first generated token.
    pub token: TokenId,
    /// A guess of the one after it.
    pub draft: Option<TokenId>,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached_tokens: u32,
}

/// Pages of a prompt that somebody else computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The request.
    pub sequence: SequenceId,
    /// Tokens whose rows are here already.
    pub held: u32,
    /// What must come.
    pub needed: Needed,
    /// Compressed pages of the whole prompt.
    pub compressed: Vec<PageId>,
    /// Window pages of the whole prompt; those that nobody needs are missing.
    pub window: Vec<Option<PageId>>,
    /// The request's own ring, under the ring-per-request policy.
    pub request_slot: Option<SlotIndex>,
    /// Of the pages that must come.
    pub generation: Generation,
}

/// Queues of the other engines' halves.
#[derive(Debug, Default)]
pub(super) struct Halves {
    landing: BTreeSet<SequenceId>,
    held: BTreeSet<SequenceId>,
    reserved: VecDeque<Reserved>,
    prefilled: VecDeque<Prefilled>,
    preempted: VecDeque<SequenceId>,
    /// Steps in flight that fill pages.
    filling: u32,
}

impl Halves {
    pub(super) fn num_landing(&self) -> usize {
        self.landing.len()
    }

    pub(super) fn youngest_landing(&self) -> Option<SequenceId> {
        self.landing.last().copied()
    }

    pub(super) fn is_filling(&self) -> bool {
        self.filling > 0
    }

    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes a request out of the queues; true if it was landing.
    pub(super) fn remove(&mut self, id: SequenceId) -> bool {
        self.reserved.retain(|reserved| reserved.sequence != id);
        self.prefilled.retain(|prefilled| prefilled.sequence != id);
        self.held.remove(&id);
        self.landing.remove(&id)
    }

    pub(super) fn preempt(&mut self, id: SequenceId) {
        if self.remove(id) {
            self.preempted.push_back(id);
        }
    }
}

impl Scheduler {
    /// Queues a request of which only the prompt and the first token are computed here. `max_tokens` does not matter.
    ///
    /// # Errors
    /// As [`Scheduler::add`].
    pub fn add_prefill(&mut self, request: Request) -> Result<SequenceId, AddError> {
        self.add_as(Request { max_tokens: request.max_tokens.min(1), ..request }, Role::Prefill)
    }

    /// Queues a request whose prompt is computed elsewhere.
    ///
    /// # Errors
    /// As [`Scheduler::add`].
    pub fn add_remote(&mut self, request: Request) -> Result<SequenceId, AddError> {
        self.add_as(request, Role::Remote)
    }

    /// The next prompt that has been computed for somebody else.
    pub fn take_prefilled(&mut self) -> Option<Prefilled> {
        self.halves.prefilled.pop_front()
    }

    /// The next remote request that has got its pages.
    pub fn take_reserved(&mut self) -> Option<Reserved> {
        self.halves.reserved.pop_front()
    }

    /// The next remote request that lost its pages and will be computed here.
    pub fn take_preempted(&mut self) -> Option<SequenceId> {
        self.halves.preempted.pop_front()
    }

    /// Computes the prompt of a remote request here after all, if nothing of it has landed yet.
    ///
    /// # Panics
    /// A step fills its pages.
    pub fn compute_here(&mut self, id: SequenceId) {
        if self.halves.remove(id) {
            self.give_way(id);
        }
    }

    /// Lets a computed prompt go. Nothing happens if it has ended.
    pub fn release(&mut self, id: SequenceId) {
        if self.sequences.get(&id).is_some_and(|sequence| sequence.phase == Phase::Held) {
            self.end(id);
        }
    }

    /// A step that writes landed rows into the pages of a remote request is handed over. False if it is not landing any more:
    /// the pages may be somebody else's.
    pub fn filling(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|s| s.phase == Phase::Landing) else { return false };
        sequence.in_flight += 1;
        self.halves.filling += 1;
        true
    }

    /// Such a step is done, well or not.
    ///
    /// # Panics
    /// There was none.
    pub fn filled(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("a request stays while a step fills its pages");
        sequence.in_flight -= 1;
        self.halves.filling -= 1;
        if sequence.phase == Phase::Ended {
            self.end(id);
        }
    }

    /// The whole prompt of a remote request has landed: it goes on from its first token. Nothing happens if it is not landing
    /// any more.
    ///
    /// # Panics
    /// A step still fills its pages.
    pub fn start(&mut self, id: SequenceId, first: &FirstToken) -> Vec<Event> {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|s| s.phase == Phase::Landing) else {
            return Vec::new();
        };
        assert_eq!(sequence.in_flight, 0, "request {id} starts while a step fills its pages");
        self.halves.remove(id);
        self.running.insert(id);
        (sequence.phase, sequence.role) = (Phase::Running, Role::Whole);
        (sequence.scheduled, sequence.committed) = (sequence.prompt_tokens, sequence.prompt_tokens);
        sequence.cached_tokens = sequence.cached_tokens.max(Some(first.cached_tokens));
        // Of the boundaries behind the cached beginning, only the last one can have its window page here.
        let page = self.shape.page_tokens;
        let (pages, before) = (sequence.committed / page, sequence.published);
        if pages > before {
            let window = (pages * page / self.shape.window_page_tokens) as usize - 1;
            sequence.published = pages - u32::from(sequence.window[window].is_some());
            sequence.node = sequence.node.filter(|_| sequence.published == before);
        }
        let (event, ended) = sequence.push(first.token);
        sequence.draft = first.draft.filter(|_| self.config.speculation);
        let usage = sequence.usage();
        self.publish(id);
        let mut events = vec![event];
        if let Some(reason) = ended {
            events.push(Event::Finished { sequence: id, reason, usage });
            self.end(id);
        }
        events
    }

    /// A remote request has its pages: what must come is reported.
    pub(super) fn land(&mut self, id: SequenceId, held: u32, needed: Needed) {
        let sequence = self.sequences.get_mut(&id).expect("admitted sequences exist");
        sequence.phase = Phase::Landing;
        self.halves.landing.insert(id);
        self.halves.reserved.push_back(Reserved {
            sequence: id,
            held,
            needed,
            compressed: sequence.compressed.iter().map(|page| page.id()).collect(),
            window: sequence.window.iter().map(|page| page.as_ref().map(|page| page.id())).collect(),
            request_slot: sequence.request_slot.as_ref().map(|slot| SlotIndex(slot.id().0)),
            generation: sequence.generation,
        });
    }

    /// The first token of a prefill-only request: it leaves the running ones and keeps its pages.
    pub(super) fn hold(&mut self, id: SequenceId, sampled: &Sampled) {
        let sequence = self.sequences.get_mut(&id).expect("committed sequences exist");
        let cached_tokens = sequence.cached_tokens.unwrap_or(0);
        sequence.tokens.push(sampled.token);
        sequence.phase = Phase::Held;
        self.running.remove(&id);
        self.halves.held.insert(id);
        self.publish(id);
        let first = FirstToken { token: sampled.token, draft: sampled.next_draft, cached_tokens };
        self.halves.prefilled.push_back(Prefilled { sequence: id, first });
    }
}
