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

/// Two texts with a token each: position 17 in the pages of [`plan`]'s first entry, position 7, which completes rows.
fn decode_plan() -> StepPlan {
    let mut plan = plan();
    plan.entries[0].draft = None;
    plan.entries[0].tokens = known(&[11]);
    plan.entries[1] =
        StepEntry { start: Position(7), tokens: known(&[48]), next: None, emits: true, ..plan.entries[1].clone() };
    plan.num_decode = 2;
    plan
}

const MOST: DecodeMost = DecodeMost { tokens: 8, context: 64 };

#[test]
fn a_padded_batch_repeats_the_first_entry_and_writes_nothing_more() {
    let batch = Batch::new(&decode_plan(), &SHAPE).unwrap();
    assert_eq!(DecodeSize::of(&batch, &MOST), Some(DecodeSize { entries: 2, tokens_per_entry: 1, pages: 2 }));
    let padded = batch.padded(DecodeSize { entries: 4, tokens_per_entry: 1, pages: 4 });
    assert_eq!((padded.t, padded.b, padded.num_decode_entries, padded.num_decode_tokens), (4, 4, 4, 4));
    // What is read.
    assert_eq!(padded.ids, [11, 48, 11, 11]);
    assert_eq!(padded.positions, [17, 7, 17, 17]);
    assert_eq!(padded.window_slots[..8], batch.window_slots[..]);
    assert_eq!(padded.window_slots[8..], [&batch.window_slots[..4], &batch.window_slots[..4]].concat());
    assert_eq!(padded.block_table, [4, 1, -1, -1, 7, -1, -1, -1, 4, 1, -1, -1, 4, 1, -1, -1]);
    assert_eq!((&padded.csa.num_rows[..], &padded.hca.num_rows[..]), (&[4, 2, 4, 4][..], &[2, 1, 2, 2][..]));
    let none = [-1; 6];
    assert_eq!(padded.hca_slots[..16], [&[8, 9][..], &none, &[14, -1], &none].concat());
    assert_eq!(padded.hca_slots[16..], [&[8, 9][..], &none, &[8, 9], &none].concat());
    // What is written.
    assert_eq!(padded.window_mapping, [17, 7, -1, -1]);
    assert_eq!(padded.window_table[..16], [-1, 6, 2, -1, -1, -1, -1, -1, 0, 5, -1, -1, -1, -1, -1, -1]);
    assert!(padded.window_table[16..].iter().all(|&page| page == -1));
    assert_eq!(padded.hca_state_table, padded.window_table);
    assert_eq!(padded.csa.row_tokens, [-1, 1, -1, -1]);
    assert_eq!(padded.csa.slot_mapping, [-1, 29, -1, -1]);
    assert_eq!(padded.csa.row_positions, [0, 4, 0, 0]);
    assert_eq!(padded.hca.slot_mapping, [-1, 14, -1, -1]);
    // What holds the batch together.
    assert_eq!((&padded.seq[..], &padded.cu_seqlens[..]), (&[0, 1, 2, 3][..], &[0, 1, 2, 3, 4][..]));
    assert_eq!(padded.logits_rows, [0, 1, 2, 3]);
    assert_eq!((padded.max_csa_rows, padded.hca_width, padded.window_columns), (16, 8, 8));
    assert_eq!((&padded.temperature[..2], padded.temperature.len()), (&batch.temperature[..], 4));
    assert_eq!((&padded.seeds[..4], padded.seeds.len()), (&batch.seeds[..], 8));
}

#[test]
fn drafts_are_padded_in_pairs() {
    let mut plan = plan();
    plan.entries.truncate(1);
    let batch = Batch::new(&plan, &SHAPE).unwrap();
    let size = DecodeSize::of(&batch, &MOST).unwrap();
    assert_eq!(size, DecodeSize { entries: 1, tokens_per_entry: 2, pages: 2 });
    let padded = batch.padded(DecodeSize { entries: 2, ..size });
    assert_eq!(padded.positions, [17, 18, 17, 18]);
    assert_eq!((&padded.seq[..], &padded.cu_seqlens[..]), (&[0, 0, 1, 1][..], &[0, 2, 4][..]));
    assert_eq!(padded.window_mapping, [17, 18, -1, -1]);
    assert_eq!(padded.csa.num_rows, [4, 4, 4, 4]);
}

#[test]
fn what_no_recorded_step_runs() {
    let of = |plan: &StepPlan| DecodeSize::of(&Batch::new(plan, &SHAPE).unwrap(), &MOST);
    assert_eq!(of(&plan()), None, "a prompt");
    let decode = decode_plan();
    assert!(of(&decode).is_some());
    let mut one_draft = decode.clone();
    one_draft.entries[0].draft = Some(TokenId(3));
    assert_eq!(of(&one_draft), None, "a draft behind one text only");
    let mut silent = decode.clone();
    silent.entries[1].emits = false;
    assert_eq!(of(&silent), None, "a token whose logits are not wanted");
    let batch = Batch::new(&decode, &SHAPE).unwrap();
    assert_eq!(DecodeSize::of(&batch, &DecodeMost { tokens: 1, ..MOST }), None, "more entries than there is room for");
    assert_eq!(DecodeSize::of(&batch, &DecodeMost { context: 16, ..MOST }), None, "more pages than there is room for");
}

/// Whatever the batch, the arrays of a size have the same lengths, and none is longer than that of the largest.
#[test]
fn lengths_follow_from_the_size() {
    let lens = |batch: &Batch| {
        [
            batch.ids.len(),
            batch.positions.len(),
            batch.seq.len(),
            batch.cu_seqlens.len(),
            batch.window_mapping.len(),
            batch.window_slots.len(),
            batch.window_table.len(),
            batch.hca_state_table.len(),
            batch.block_table.len(),
            batch.csa.num_rows.len(),
            batch.csa.slot_mapping.len(),
            batch.csa.row_tokens.len(),
            batch.csa.row_positions.len(),
            batch.hca.row_tokens.len(),
            batch.hca_slots.len(),
            batch.logits_rows.len(),
            batch.temperature.len(),
            batch.seeds.len(),
        ]
    };
    let shapes = [SHAPE, CacheShape { hca_state: HcaState::PerRequest, ..SHAPE }];
    for shape in shapes {
        let two = Batch::new(&decode_plan(), &shape).unwrap();
        let mut plan = decode_plan();
        plan.entries.remove(0);
        plan.num_decode = 1;
        let one = Batch::new(&plan, &shape).unwrap();
        let most = lens(&one.padded(DecodeSize::largest(&shape, &MOST)));
        for (entries, pages) in [(2, 2), (4, 4), (8, 4)] {
            let size = DecodeSize { entries, tokens_per_entry: 1, pages };
            assert_eq!(lens(&one.padded(size)), lens(&two.padded(size)), "{size:?}");
            assert!(lens(&two.padded(size)).iter().zip(most).all(|(len, most)| *len <= most), "{size:?}");
        }
    }
}
