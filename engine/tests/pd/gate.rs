//! A model reads no row that has not landed, whoever asks for it.

use crate::pair::{Setup, TINY};
use engine::collective::Solo;
use engine::ids::{Generation, PageId, Position, SequenceId, SlotIndex, TokenId};
use engine::runner::RankRunner;
use engine::step::{Generations, InputToken, Sampling, StepEntry, StepPlan};
use kernel_bindings::host::HostOps;

/// `tokens` tokens from `start` on in pages 3, 4, ... of every pool.
fn plan(start: u32, tokens: u32, generation: u64) -> StepPlan {
    let pages = (start + tokens).div_ceil(256);
    let entry = StepEntry {
        sequence: SequenceId(1),
        start: Position(start),
        tokens: (start..start + tokens).map(|i| InputToken::Known(TokenId(i % 251))).collect(),
        draft: None,
        next: None,
        emits: true,
        sampling: Sampling::GREEDY,
        window_table: (0..pages).map(|i| Some(PageId(3 + i))).collect(),
        compressed_table: (0..pages).map(|i| PageId(3 + i)).collect(),
        request_slot: Some(SlotIndex(2)),
        generations: Generations::uniform(Generation(generation), pages as usize, pages as usize),
    };
    StepPlan { step: 0, num_decode: usize::from(tokens == 1), entries: vec![entry] }
}

#[test]
fn rows_that_nobody_wrote_are_refused() {
    let setup = Setup::new(&TINY);
    let model = setup.model(0, Box::new(Solo), setup.sizes(8)).expect("fits");
    let mut rank: RankRunner<HostOps> = RankRunner::new(model, setup.shape(), 0);
    // The text of 40 tokens was never computed: its window page is nobody's.
    let error = rank.run(&plan(40, 1, 7)).expect_err("refused").to_string();
    assert!(error.contains("page 3 of class compressed: expected room 7 epoch 1"), "{error}");
    rank.run(&plan(0, 40, 7)).expect("a prompt reads nothing that was there before");
    rank.run(&plan(40, 1, 7)).expect("its own rows");
    // The same pages in other hands: the rows of admission 7 are not those of admission 8.
    let error = rank.run(&plan(41, 1, 8)).expect_err("refused").to_string();
    assert!(error.contains("expected room 8 epoch 1") && error.contains("room 7 epoch 1"), "{error}");
    // Computed again, they are.
    rank.run(&plan(0, 41, 8)).expect("a prompt");
    rank.run(&plan(41, 1, 8)).expect("its own rows");
    let error = rank.run(&plan(41, 1, 7)).expect_err("refused").to_string();
    assert!(error.contains("expected room 7 epoch 1"), "{error}");
}
