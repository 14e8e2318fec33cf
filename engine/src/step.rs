//! What one forward does and what came out of it: the records between scheduler, model and back.

use crate::ids::{Generation, PageId, Position, SequenceId, SlotIndex, TokenId};

/// A token that a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputToken {
    /// Its id is known.
    Known(TokenId),
    /// What the step before samples in this row (see [`StepPlan::sample_row`]); that step has not been committed yet.
    FromStep {
        /// Row of the samples of the step before.
        row: u32,
    },
}

/// How the next token is picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Noise of a token depends on this and on the token's position alone, so neither batching nor preemption changes
    /// it.
    pub seed: u64,
}

impl Sampling {
    /// The largest logit.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, seed: 0 };
}

/// A sequence's part of a step. The tables are those of this step: later changes of the sequence do not touch them.
#[derive(Debug, Clone, PartialEq)]
pub struct StepEntry {
    /// Whose tokens.
    pub sequence: SequenceId,
    /// Position of the first token.
    pub start: Position,
    /// Consecutive tokens, at least one.
    pub tokens: Vec<InputToken>,
    /// A guess of the token after `tokens`; it runs behind them, and its logits are wanted too.
    pub draft: Option<TokenId>,
    /// The token after `tokens` where the text already has it (a chunk that is not the last).
    pub next: Option<TokenId>,
    /// Whether a token is sampled after the last of `tokens`.
    pub emits: bool,
    /// How.
    pub sampling: Sampling,
    /// Window page of positions `i * window_page_tokens ..`; `None` where all of them fell out of the window.
    pub window_table: Vec<Option<PageId>>,
    /// Compressed page of positions `i * page_tokens ..`.
    pub compressed_table: Vec<PageId>,
    /// The request's own compressor ring, under the ring-per-request policy.
    pub request_slot: Option<SlotIndex>,
    /// Who was given these pages.
    pub generations: Generations,
}

/// Who was given the pages of an entry's tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generations {
    /// The entry's own: of every page that it writes, and of its ring.
    pub own: Generation,
    /// Of the compressed table.
    pub compressed: Vec<Generation>,
    /// Of the window table; nobody's where it has no page.
    pub window: Vec<Generation>,
}

impl Generations {
    /// All pages of one generation.
    pub fn uniform(own: Generation, compressed: usize, window: usize) -> Self {
        Self { own, compressed: vec![own; compressed], window: vec![own; window] }
    }
}

impl StepEntry {
    /// Tokens that run, the draft included.
    pub fn num_tokens(&self) -> u32 {
        self.tokens.len() as u32 + u32::from(self.draft.is_some())
    }

    /// Rows of logits: one per entry that emits, one more behind a draft.
    pub fn num_samples(&self) -> u32 {
        u32::from(self.emits) + u32::from(self.draft.is_some())
    }
}

/// One forward: which sequences run which tokens. Decode entries (the last token of a text, and its draft) stand first.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    /// Number of the step, from 0, without gaps.
    pub step: u64,
    /// Leading entries that are decode entries.
    pub num_decode: usize,
    /// The entries, at least one.
    pub entries: Vec<StepEntry>,
}

impl StepPlan {
    /// Tokens of the step.
    pub fn num_tokens(&self) -> u32 {
        self.entries.iter().map(StepEntry::num_tokens).sum()
    }

    /// Row of the samples where the first sample of entry `entry` stands; rows follow the entries.
    pub fn sample_row(&self, entry: usize) -> u32 {
        self.entries[..entry].iter().map(StepEntry::num_samples).sum()
    }

    /// Rows of samples.
    pub fn num_samples(&self) -> u32 {
        self.sample_row(self.entries.len())
    }
}

/// What an entry that emits brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled {
    /// The sampled token.
    pub token: TokenId,
    /// The token sampled behind the draft; only where the draft equals `token`.
    pub after_draft: Option<TokenId>,
    /// A guess of the token after these, for the next step.
    pub next_draft: Option<TokenId>,
}

/// What a step brought: one entry per [`StepEntry`] that emits, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepOutput {
    /// The samples.
    pub sampled: Vec<Sampled>,
    /// Those among them that stand for no token: no logit was a number above -inf. In rising order.
    pub undefined: Vec<usize>,
}
