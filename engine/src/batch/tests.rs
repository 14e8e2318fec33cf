use super::*;
use crate::ids::{Generation, Position, SlotIndex, TokenId};
use crate::step::{Generations, Sampling};

/// Pages of 16 tokens (4 CSA rows, 2 HCA rows), window pages of 8.
const SHAPE: CacheShape = CacheShape {
    page_tokens: 16,
    window_page_tokens: 8,
    window: 4,
    csa_ratio: 4,
    hca_ratio: 8,
    csa_ring_rows: 8,
    hca_ring_rows: 8,
    hca_state: HcaState::PerWindowPage,
};

fn known(ids: &[u32]) -> Vec<InputToken> {
    ids.iter().map(|&id| InputToken::Known(TokenId(id))).collect()
}

/// A decode token at position 17 with a draft behind it, then the chunk 6..9 of a prompt that goes on with token 49.
fn plan() -> StepPlan {
    let decode = StepEntry {
        sequence: SequenceId(5),
        start: Position(17),
        tokens: vec![InputToken::FromStep { row: 3 }],
        draft: Some(TokenId(77)),
        next: None,
        emits: true,
        sampling: Sampling { temperature: 0.5, seed: 9 },
        window_table: vec![None, Some(PageId(6)), Some(PageId(2))],
        compressed_table: vec![PageId(4), PageId(1)],
        request_slot: Some(SlotIndex(3)),
        generations: Generations::uniform(Generation(2), 2, 3),
    };
    let prefill = StepEntry {
        sequence: SequenceId(8),
        start: Position(6),
        tokens: known(&[46, 47, 48]),
        draft: None,
        next: Some(TokenId(49)),
        emits: false,
        sampling: Sampling::GREEDY,
        window_table: vec![Some(PageId(0)), Some(PageId(5))],
        compressed_table: vec![PageId(7)],
        request_slot: Some(SlotIndex(0)),
        generations: Generations::uniform(Generation(3), 1, 2),
    };
    StepPlan { step: 12, num_decode: 1, entries: vec![decode, prefill] }
}

#[test]
fn arrays_of_a_mixed_step() {
    let batch = Batch::new(&plan(), &SHAPE).unwrap();
    assert_eq!((batch.t, batch.b, batch.num_decode_entries, batch.num_decode_tokens), (5, 2, 1, 2));
    assert_eq!(batch.ids, [-1, 77, 46, 47, 48]);
    assert_eq!(batch.id_rows, [3, -1, -1, -1, -1]);
    assert_eq!(batch.next_ids, [-1, -1, 47, 48, 49]);
    assert_eq!(batch.positions, [17, 18, 6, 7, 8]);
    assert_eq!(batch.seq, [0, 0, 1, 1, 1]);
    assert_eq!(batch.cu_seqlens, [0, 2, 5]);
    // position 17 is row 1 of its window page 2; position 8 row 0 of page 5
    assert_eq!(batch.window_mapping, [17, 18, 6, 7, 40]);
    assert_eq!(batch.window_slots[..8], [54, 55, 16, 17, 55, 16, 17, 18]);
    assert_eq!(batch.window_slots[8..], [3, 4, 5, 6, 4, 5, 6, 7, 5, 6, 7, 40]);
    assert_eq!(batch.window_table, [-1, 6, 2, 0, 5, -1]);
    assert_eq!(batch.block_table, [4, 1, 7, -1]);
    assert_eq!(batch.hca_state_table, batch.window_table);
    // position 7 completes CSA row 1 and HCA row 0, in page 7
    assert_eq!((&batch.csa.row_tokens[..], &batch.hca.row_tokens[..]), (&[3][..], &[3][..]));
    assert_eq!((&batch.csa.slot_mapping[..], &batch.hca.slot_mapping[..]), (&[29][..], &[14][..]));
    assert_eq!((&batch.csa.row_positions[..], &batch.hca.row_positions[..]), (&[4][..], &[0][..]));
    assert_eq!(batch.csa.num_rows, [4, 4, 1, 2, 2]);
    assert_eq!(batch.hca.num_rows, [2, 2, 0, 1, 1]);
    assert_eq!(batch.hca_width, 2);
    assert_eq!(batch.hca_slots, [8, 9, 8, 9, -1, -1, 14, -1, 14, -1]);
    assert_eq!(batch.logits_rows, [0, 1], "the last token and its draft; a chunk in the middle wants none");
    assert_eq!(batch.temperature, [0.5, 0.5]);
    assert_eq!(batch.seeds[..2], noise_key(9, 17));
    assert_ne!(batch.seeds[..2], batch.seeds[2..]);
}

#[test]
fn a_ring_per_request_has_a_table_of_one_column() {
    let shape = CacheShape { hca_state: HcaState::PerRequest, ..SHAPE };
    let batch = Batch::new(&plan(), &shape).unwrap();
    assert_eq!((batch.hca_state_columns, &batch.hca_state_table[..]), (1, &[3, 0][..]));
    let mut without = plan();
    without.entries[1].request_slot = None;
    let error = Batch::new(&without, &shape).unwrap_err().to_string();
    assert_eq!(error, "sequence 8: expected a request page for position 6, got none");
}

#[test]
fn a_missing_page_is_named() {
    let mut window = plan();
    window.entries[0].window_table[1] = None;
    let error = Batch::new(&window, &SHAPE).unwrap_err().to_string();
    assert_eq!(error, "sequence 5: expected a window page for position 14, got none");
    let mut compressed = plan();
    compressed.entries[1].compressed_table.clear();
    let error = Batch::new(&compressed, &SHAPE).unwrap_err().to_string();
    assert_eq!(error, "sequence 8: expected a compressed page for position 0, got none");
}

/// The noise of a token is a function of seed and position: what stands beside it in the batch does not matter.
#[test]
fn seeds_do_not_depend_on_the_batch() {
    let mut alone = plan();
    alone.entries.remove(1);
    let (alone, mixed) = (Batch::new(&alone, &SHAPE).unwrap(), Batch::new(&plan(), &SHAPE).unwrap());
    assert_eq!(alone.seeds, mixed.seeds);
    let keys: std::collections::HashSet<_> = (0..1000).map(|position| noise_key(1, position)).collect();
    assert_eq!(keys.len(), 1000);
}
