//! A text that is begun in one engine and goes on in another is the text of one engine.

use crate::pair::{MINI, Setup, TINY, Texts, fp8, requests};
use crate::wire::Manners;
use engine::engine::Schedule;
use engine::ids::TokenId;
use engine::model::Numerics;
use engine::sequence::{FinishReason, Request};
use reference::ops::{IndexKFormat, KvFormat};
use reference::rng::Rng;

/// One token, and lengths around windows of 16, rows of 4 and 128, window pages of 128 and 256, and pages.
const LENGTHS: [usize; 14] = [1, 3, 16, 127, 128, 129, 255, 256, 257, 271, 272, 384, 511, 513];

#[test]
fn lengths_around_every_border() {
    let requests = requests(TINY.config().vocab_size, &LENGTHS, 20);
    let base = Setup::new(&TINY);
    let expected = base.alone(&requests);
    for per_page in [false, true] {
        for schedule in [Schedule::Lockstep, Schedule::Overlap] {
            let setup = Setup { per_page, schedule, ..base.clone() };
            assert_eq!(setup.apart(&requests), expected, "{schedule:?}, rings per page: {per_page}");
        }
    }
    assert_eq!(Setup { max_batch_tokens: 37, ..base }.apart(&requests), expected, "chunks of 37");
}

#[test]
fn every_format_of_rows_and_keys() {
    let requests = requests(TINY.config().vocab_size, &[300, 5, 128, 261], 16);
    for (kv, index_k) in [
        (KvFormat::F32 { d: 512 }, IndexKFormat::F32 { d: 128 }),
        (KvFormat::Bf16, IndexKFormat::Bf16),
        (KvFormat::V4Fp8, IndexKFormat::Fp8),
    ] {
        let numerics = Numerics { kv, index_k, ..fp8() };
        let base = Setup { numerics, ..Setup::new(&TINY) };
        assert_eq!(base.apart(&requests), base.alone(&requests), "{kv:?} {index_k:?}");
    }
}

#[test]
fn drafts_travel_too() {
    let requests = requests(TINY.config().vocab_size, &[40, 300, 1, 127, 256], 64);
    let base = Setup::new(&TINY);
    let expected = base.alone(&requests);
    for per_page in [false, true] {
        assert_eq!(Setup { mtp: true, per_page, ..base.clone() }.apart(&requests), expected, "per page: {per_page}");
    }
    // A draft layer that went on from wrong rows would guess worse: as many steps as one engine with drafts takes.
    let alone = [requests[1].clone()];
    let drafting = Setup { mtp: true, ..base };
    let mut engine = drafting.engine();
    engine.add(alone[0].clone()).expect("fits");
    while engine.has_work() {
        engine.turn(&mut Vec::new()).expect("runs");
    }
    let mut pair = drafting.pair();
    pair.run(&alone);
    let steps = pair.decode.scheduler().stats().steps + pair.prefill.scheduler().stats().steps;
    assert_eq!(steps, engine.scheduler().stats().steps);
}

#[test]
fn ranks_with_skew_act_together() {
    let requests = requests(MINI.config().vocab_size, &[150, 20, 7, 1], 6);
    let base = Setup::new(&MINI);
    let expected = base.alone(&requests);
    for (skew, schedule) in [(0, Schedule::Lockstep), (50, Schedule::Lockstep), (7, Schedule::Overlap)] {
        let manners = Manners { delay: 5, skew, ..Manners::default() };
        let setup = Setup { ranks: 2, manners, schedule, ..base.clone() };
        assert_eq!(setup.apart(&requests), expected, "skew {skew}, {schedule:?}");
    }
}

#[test]
fn cached_beginnings_on_both_sides() {
    let mut requests = requests(TINY.config().vocab_size, &[600, 300, 20], 12);
    let long = requests[0].prompt.clone();
    for (held, tail) in [(512, 3), (300, 77), (600, 30)] {
        let mut prompt = long[..held].to_vec();
        prompt.extend((0..tail).map(|i| TokenId(i * 7 % 256)));
        requests.push(Request { prompt, ..requests[0].clone() });
    }
    for per_page in [false, true] {
        let base = Setup { per_page, ..Setup::new(&TINY) };
        let expected = base.alone(&requests);
        let mut pair = Setup { prefix_cache: true, ..base }.pair();
        let mut texts = Texts::default();
        for request in &requests {
            texts.expect(pair.decode.add(request.clone()).expect("fits"));
            while pair.decode.has_work() {
                pair.turn(&mut texts);
            }
        }
        assert_eq!(texts.finished(), expected);
        let cached = [&pair.decode.scheduler().stats(), &pair.prefill.scheduler().stats()].map(|s| s.cached_tokens);
        // Prefill has every boundary: 512, 256 and 512 tokens of the later prompts. What landed has the last boundary of each
        // prompt, which is 512 of the first.
        assert_eq!(cached, [512 + 512, 512 + 256 + 512], "decode, prefill");
        pair.settle(&mut Texts::default());
    }
}

/// Requests that lost their pages to older ones are computed where they are, and nobody notices.
#[test]
fn a_small_decode_side_computes_again() {
    let requests = requests(TINY.config().vocab_size, &[250, 240, 255, 245, 230, 252], 40);
    let base = Setup::new(&TINY);
    let expected = base.alone(&requests);
    let mut preempted = 0;
    for schedule in [Schedule::Lockstep, Schedule::Overlap] {
        let mut pair = Setup { pages: 5, schedule, ..base.clone() }.pair();
        assert_eq!(pair.run(&requests), expected, "{schedule:?}");
        preempted += pair.decode.scheduler().stats().preempted;
    }
    assert!(preempted > 0, "the pools were never full");
}

/// Prompts that fit no arena are computed by the asker; small arenas are shared in order.
#[test]
fn arenas_of_one_prompt() {
    let requests = requests(TINY.config().vocab_size, &[200, 250, 600, 30], 8);
    let base = Setup::new(&TINY);
    let mut pair = Setup { arena: 1, ..base.clone() }.pair();
    assert_eq!(pair.run(&requests), base.alone(&requests));
    let computed = pair.decode.scheduler().stats().computed_tokens;
    assert_eq!(computed, 600 + 4 * 7, "the prompt of 600 tokens, and every text but its first and last token");
}

/// Clients that go away at any moment: the other texts are the same, and everything comes back on both sides.
#[test]
fn cancelled_at_any_moment() {
    let requests = requests(TINY.config().vocab_size, &[300, 40, 513, 128, 1, 260, 90, 256], 12);
    let base = Setup::new(&TINY);
    let expected = base.alone(&requests);
    let mut cut = [0; 3];
    for seed in 0..12 {
        let schedule = if seed % 2 == 0 { Schedule::Lockstep } else { Schedule::Overlap };
        let manners = Manners { delay: seed % 7, ..Manners::default() };
        let setup = Setup { schedule, manners, seed, arena: 3, pages: 12, prefix_cache: seed % 3 == 0, ..base.clone() };
        let mut pair = setup.pair();
        let mut rng = Rng::named(seed, "cancels");
        let mut texts = Texts::default();
        let ids: Vec<_> = requests.iter().map(|r| pair.decode.add(r.clone()).expect("fits")).collect();
        ids.iter().for_each(|&id| texts.expect(id));
        while pair.decode.has_work() {
            if rng.chance(0.08) {
                let i = rng.below(ids.len() as u64) as usize;
                let event = pair.decode.cancel(ids[i]);
                cut[0] += usize::from(event.is_some() && texts.so_far(i).is_empty());
                cut[1] += usize::from(event.is_some() && !texts.so_far(i).is_empty());
                texts.take(&mut event.into_iter().collect());
            }
            pair.turn(&mut texts);
        }
        pair.settle(&mut texts);
        for (i, end) in texts.ends.iter().enumerate() {
            let text = texts.so_far(i);
            match end {
                Some(FinishReason::MaxTokens) => assert_eq!(text, expected[i], "seed {seed}, request {i}"),
                Some(FinishReason::Cancelled) => assert!(expected[i].starts_with(text), "seed {seed}, request {i}"),
                other => panic!("seed {seed}, request {i} ends with {other:?}"),
            }
            cut[2] += usize::from(*end == Some(FinishReason::MaxTokens));
        }
    }
    assert!(cut.iter().all(|&n| n > 5), "before the first token, behind it, never: {cut:?}");
}

/// Index keys of one layer travel for a long time: nobody reads them before they are there. A wire that tells of a layer before
/// them gives another text, so that the first half of this test can fail.
#[test]
fn late_index_keys_are_waited_for() {
    let requests = requests(TINY.config().vocab_size, &[300], 24);
    let csa =
        TINY.config().layers.iter().position(|&kind| kind == engine::config::LayerKind::Csa).expect("a CSA layer");
    let slow = Some((csa as u32, "CSA index K", 40));
    let base = Setup { manners: Manners { delay: 2, slow, ..Manners::default() }, ..Setup::new(&TINY) };
    let expected = base.alone(&requests);
    assert_eq!(base.apart(&requests), expected);
    let manners = Manners { hasty: true, ..base.manners.clone() };
    assert_ne!(Setup { manners, ..base }.apart(&requests), expected, "the wait makes no difference");
}
