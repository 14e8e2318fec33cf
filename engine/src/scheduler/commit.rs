//! What a finished step changes.

use super::Scheduler;
use crate::ids::SequenceId;
use crate::sequence::{Event, FinishReason, Phase, Role, Sequence};
use crate::step::{Sampled, StepEntry, StepOutput, StepPlan};
use thiserror::Error;

/// A step that is not the one in turn, or an output that is not its own.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitError {
    /// Steps are committed in order.
    #[error("commit: expected step {expected:?} (the oldest in flight), got step {got}")]
    OutOfTurn {
        /// The oldest step in flight, if any.
        expected: Option<u64>,
        /// The plan's step.
        got: u64,
    },
    /// One sample per entry that emits.
    #[error("output of step {step}: expected {expected} samples, got {got}")]
    Samples {
        /// The step.
        step: u64,
        /// Entries that emit.
        expected: usize,
        /// Samples given.
        got: usize,
    },
    /// A token behind a draft that was not accepted, or that there was not.
    #[error("output of step {step}: sample {row} has a token behind a draft that it does not equal")]
    Draft {
        /// The step.
        step: u64,
        /// Which sample.
        row: usize,
    },
}

/// Why a text ends for which there is no next token.
const UNDEFINED: &str = "logits: expected numbers, got NaN or -inf for every token of the vocabulary; \
                         `sm120 inspect --values` finds damaged weights";

impl Scheduler {
    /// Takes in what a step brought: tokens, ends, finished pages for the prefix cache, pages that nobody reads any
    /// more.
    ///
    /// # Errors
    /// The step is not the oldest in flight, or the output is not its own; nothing is changed then.
    pub fn commit(&mut self, plan: &StepPlan, output: &StepOutput) -> Result<Vec<Event>, CommitError> {
        let step = plan.step;
        self.check_turn(step)?;
        let emitting = || plan.entries.iter().filter(|entry| entry.emits);
        let (expected, got) = (emitting().count(), output.sampled.len());
        if expected != got {
            return Err(CommitError::Samples { step, expected, got });
        }
        let wrong = |(entry, sampled): (&StepEntry, &Sampled)| {
            sampled.after_draft.is_some() && entry.draft != Some(sampled.token)
        };
        if let Some(row) = emitting().zip(&output.sampled).position(wrong) {
            return Err(CommitError::Draft { step, row });
        }
        self.in_flight.pop_front();
        let speculation = self.config.speculation;
        let mut events = Vec::new();
        let mut samples = output.sampled.iter().enumerate();
        for entry in &plan.entries {
            let sampled = if entry.emits { samples.next() } else { None };
            let Some(sequence) = self.arrive(entry) else { continue };
            sequence.committed = entry.start.0 + entry.tokens.len() as u32;
            let mut ended = None;
            if sampled.is_some_and(|(index, _)| output.undefined.contains(&index)) {
                let (reason, usage) = (FinishReason::Failed(UNDEFINED.to_owned()), sequence.usage());
                events.push(Event::Finished { sequence: entry.sequence, reason, usage });
                self.end(entry.sequence);
                continue;
            }
            let sampled = sampled.map(|(_, sampled)| sampled);
            if let Some(sampled) = sampled.filter(|_| sequence.role == Role::Prefill) {
                sequence.pending -= 1;
                self.hold(entry.sequence, sampled);
                continue;
            }
            if let Some(sampled) = sampled {
                sequence.pending -= 1;
                if sampled.after_draft.is_some() {
                    sequence.committed += 1;
                    sequence.scheduled = sequence.committed;
                }
                for token in [Some(sampled.token), sampled.after_draft].into_iter().flatten() {
                    if ended.is_none() {
                        let (event, reason) = sequence.push(token);
                        events.push(event);
                        ended = reason;
                    }
                }
                sequence.draft = sampled.next_draft.filter(|_| speculation);
            }
            let usage = sequence.usage();
            self.publish(entry.sequence);
            if let Some(reason) = ended {
                events.push(Event::Finished { sequence: entry.sequence, reason, usage });
                self.end(entry.sequence);
            }
        }
        Ok(events)
    }

    /// Ends every request of a step that could not be run. Later steps in flight lose them too when they are committed.
    ///
    /// # Errors
    /// The step is not the oldest in flight.
    pub fn fail(&mut self, plan: &StepPlan, why: &str) -> Result<Vec<Event>, CommitError> {
        self.check_turn(plan.step)?;
        self.in_flight.pop_front();
        let mut events = Vec::new();
        for entry in &plan.entries {
            if let Some(sequence) = self.arrive(entry) {
                let (reason, usage) = (FinishReason::Failed(why.to_owned()), sequence.usage());
                events.push(Event::Finished { sequence: entry.sequence, reason, usage });
                self.end(entry.sequence);
            }
        }
        Ok(events)
    }

    fn check_turn(&self, got: u64) -> Result<(), CommitError> {
        let expected = self.in_flight.front().copied();
        if expected == Some(got) { Ok(()) } else { Err(CommitError::OutOfTurn { expected, got }) }
    }

    /// One step less contains this entry's sequence. `None` if the sequence has ended: its part is dropped.
    fn arrive(&mut self, entry: &StepEntry) -> Option<&mut Sequence> {
        self.stats.computed_tokens += u64::from(entry.num_tokens());
        let sequence = self.sequences.get_mut(&entry.sequence)?;
        sequence.in_flight -= 1;
        if sequence.phase == Phase::Ended {
            self.stats.discarded_tokens += u64::from(entry.num_tokens());
            self.end(entry.sequence);
            return None;
        }
        self.sequences.get_mut(&entry.sequence)
    }

    /// Offers the pages that have become full to the prefix cache, then gives back the window pages that fell out.
    pub(super) fn publish(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("committed sequences exist");
        if sequence.load.is_some() {
            // What still comes must not be shared before it is here.
            return;
        }
        let mut nodes = Vec::new();
        let (page, window_page) = (self.shape.page_tokens, self.shape.window_page_tokens);
        while self.config.prefix_cache && (sequence.published + 1) * page <= sequence.committed {
            let pages = sequence.published + 1;
            let end = pages * page;
            let Some(window) = &sequence.window[(end / window_page - 1) as usize] else {
                unreachable!("the window page before a boundary leaves after the boundary was committed")
            };
            let tokens = &sequence.tokens[..end as usize];
            let compressed = &sequence.compressed[..pages as usize];
            sequence.node = self.prefix.insert(sequence.node, tokens, compressed, window, &mut self.pools);
            sequence.published = pages;
            nodes.extend(sequence.node.map(|node| (node, end)));
        }
        sequence.leave_window(&self.shape, &mut self.pools);
        let prompt_tokens = sequence.prompt_tokens;
        nodes.into_iter().for_each(|(node, end)| self.published(node, end, prompt_tokens));
    }
}
