//! Random lives of a scheduler: requests come and go, steps are planned and committed in any legal order, pages run
//! out.

use crate::harness::Harness;
use engine::geometry::{CacheShape, HcaState};
use engine::ids::{SequenceId, TokenId};
use engine::pools::PoolSizes;
use engine::scheduler::{AddError, SchedulerConfig};
use engine::sequence::Request;
use engine::step::Sampling;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Action {
    /// A prompt that shares its first `shared` tokens with others of the same `text`.
    Add {
        text: u32,
        shared: u32,
        own: u32,
        max_tokens: u32,
        stops: bool,
    },
    Cancel {
        which: usize,
    },
    Schedule,
    Execute,
    Commit,
    Fail,
    ClearPrefix,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let add = (0..3_u32, 0..60_u32, 1..20_u32, 1..80_u32, any::<bool>())
        .prop_map(|(text, shared, own, max_tokens, stops)| Action::Add { text, shared, own, max_tokens, stops });
    let action = prop_oneof![
        6 => add,
        2 => (0..64_usize).prop_map(|which| Action::Cancel { which }),
        24 => Just(Action::Schedule),
        6 => Just(Action::Execute),
        24 => Just(Action::Commit),
        1 => Just(Action::Fail),
        1 => Just(Action::ClearPrefix),
    ];
    prop::collection::vec(action, 1..400)
}

/// Small pages and rings, so that boundaries of all kinds are met all the time.
fn shapes() -> impl Strategy<Value = CacheShape> {
    let windows = prop_oneof![Just(8_u32), Just(16)];
    (windows, 2..=8_u32, 1..=2_u32, any::<bool>(), any::<bool>()).prop_map(|(page, window, rings, per_page, long)| {
        let hca_state = if per_page { HcaState::PerWindowPage } else { HcaState::PerRequest };
        let hca_ratio = if long && (page == 16 || !per_page) { 16 } else { 8 };
        CacheShape {
            page_tokens: 16,
            window_page_tokens: page,
            window,
            csa_ratio: 4,
            hca_ratio,
            csa_ring_rows: 8 * rings,
            hca_ring_rows: hca_ratio * rings,
            hca_state,
        }
    })
}

fn sizes() -> impl Strategy<Value = PoolSizes> {
    (5..16_u32, 3..14_u32, 1..6_u32).prop_map(|(compressed_pages, window_pages, request_slots)| PoolSizes {
        compressed_pages,
        window_pages,
        request_slots,
    })
}

fn configs() -> impl Strategy<Value = SchedulerConfig> {
    let limits = (1..7_u32, 1..40_u32, 1..40_u32, 60..200_u32);
    (limits, prop::bool::weighted(0.8), any::<bool>()).prop_map(|(limits, prefix_cache, speculation)| {
        let (max_running, more, chunk_tokens, max_context) = limits;
        let max_batch_tokens = 2 * max_running + more;
        SchedulerConfig { max_batch_tokens, max_running, chunk_tokens, max_context, prefix_cache, speculation }
    })
}

fn request(number: usize, text: u32, shared: u32, own: u32, max_tokens: u32, stops: bool) -> Request {
    let number = number as u32;
    let shared = (0..shared).map(|i| TokenId((i * i + text * (i + 7)) % 61));
    let prompt = shared.chain((0..own).map(|i| TokenId((number * 31 + i * 5) % 61))).collect();
    let stop = if stops { (0..4).map(|i| TokenId((number + i * 13) % 61)).collect() } else { Vec::new() };
    // Few temperatures: they only have to stay with their requests.
    Request { prompt, max_tokens, stop, sampling: Sampling { temperature: (number % 5) as f32, seed: 0 } }
}

fn run(actions: &[Action], config: SchedulerConfig, shape: CacheShape, sizes: PoolSizes) -> Harness {
    let mut harness = Harness::new(config, shape, sizes);
    for (number, action) in actions.iter().enumerate() {
        match *action {
            Action::Add { text, shared, own, max_tokens, stops } => {
                match harness.add(request(number, text, shared, own, max_tokens, stops)) {
                    Ok(_) | Err(AddError::PromptTooLong { .. }) => {}
                    Err(AddError::NeverFits { needed, have, .. }) => assert!(needed > have),
                    Err(other) => panic!("{other}"),
                }
            }
            Action::Cancel { which } => harness.cancel(SequenceId(which as u64)),
            Action::Schedule => _ = harness.schedule(),
            Action::Execute => harness.execute(),
            Action::Commit => _ = harness.commit(),
            Action::Fail => _ = harness.fail(),
            Action::ClearPrefix => harness.scheduler.clear_prefix(),
        }
    }
    harness.finish();
    harness
}

proptest! {
    // 1,000 lives of 200 actions on average: some 200,000 calls.
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_text_is_right_and_every_page_returns(
        actions in actions(), config in configs(), shape in shapes(), sizes in sizes(),
    ) {
        run(&actions, config, shape, sizes);
    }
}

/// The random lives reach what they are there for.
#[test]
fn lives_meet_preemption_hits_overlap_and_drafts() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let strategy = (actions(), configs(), shapes(), sizes());
    let (mut preempted, mut cached, mut discarded, mut overlapped, mut accepted) = (0, 0, 0, 0, 0);
    for _ in 0..40 {
        let (actions, config, shape, sizes) = strategy.new_tree(&mut runner).unwrap().current();
        let harness = run(&actions, config, shape, sizes);
        let stats = harness.scheduler.stats();
        preempted += stats.preempted;
        cached += stats.cached_tokens;
        discarded += stats.discarded_tokens;
        overlapped += usize::from(harness.largest_overlap == 2);
        accepted += harness.accepted_drafts;
    }
    let met = [preempted > 20, cached > 200, discarded > 20, overlapped > 5, accepted > 100];
    assert_eq!(
        met, [true; 5],
        "{preempted} preempted, {cached} cached, {discarded} discarded, {overlapped}, {accepted}"
    );
}
