//! Random lives of a scheduler: requests come and go, steps are planned and committed in any legal order, pages run
//! out.

use crate::harness::Harness;
use crate::tier::Tier;
use engine::geometry::{CacheShape, HcaState};
use engine::host_cache::HostSizes;
use engine::ids::{SequenceId, TokenId};
use engine::pools::PoolSizes;
use engine::scheduler::{AddError, HostConfig, HostPolicy, SchedulerConfig};
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
    /// Copies get on by so many pieces.
    Advance(u32),
    /// An order without a step.
    Ask,
}

fn action() -> impl Strategy<Value = Action> {
    let add = (0..3_u32, 0..60_u32, 1..20_u32, 1..80_u32, any::<bool>())
        .prop_map(|(text, shared, own, max_tokens, stops)| Action::Add { text, shared, own, max_tokens, stops });
    prop_oneof![
        6 => add,
        2 => (0..64_usize).prop_map(|which| Action::Cancel { which }),
        24 => Just(Action::Schedule),
        6 => Just(Action::Execute),
        24 => Just(Action::Commit),
        1 => Just(Action::Fail),
        1 => Just(Action::ClearPrefix),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec(action(), 1..400)
}

fn actions_with_copies() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        64 => action(),
        16 => (1..8_u32).prop_map(Action::Advance),
        4 => Just(Action::Ask),
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
        SchedulerConfig {
            max_batch_tokens,
            max_running,
            chunk_tokens,
            max_context,
            prefix_cache,
            speculation,
            host: None,
        }
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

/// Host memory: slots, copies at once, and how often they fail.
fn tiers() -> impl Strategy<Value = (HostConfig, f64)> {
    let slots = (1..40_u32, 1..30_u32)
        .prop_map(|(compressed_slots, window_slots)| HostSizes { compressed_slots, window_slots });
    let policy = prop_oneof![
        Just(HostPolicy::WriteThrough),
        Just(HostPolicy::WriteThroughSelective),
        Just(HostPolicy::WriteBack)
    ];
    let fails = prop_oneof![Just(0.0), Just(0.05), Just(0.3)];
    (slots, policy, 1..6_u32, fails).prop_map(|(sizes, policy, max_copies, fails)| {
        (HostConfig { max_copies, ..HostConfig::new(sizes, policy) }, fails)
    })
}

fn run(actions: &[Action], config: SchedulerConfig, shape: CacheShape, sizes: PoolSizes) -> Harness {
    live(actions, Harness::new(config, shape, sizes))
}

fn run_with_host(
    actions: &[Action],
    config: SchedulerConfig,
    shape: CacheShape,
    sizes: PoolSizes,
    (host, fails): (HostConfig, f64),
) -> Harness {
    let config = SchedulerConfig { prefix_cache: true, host: Some(host), ..config };
    let tier = Tier::new(1 + actions.len() % 3, actions.len() as u64, fails);
    live(actions, Harness::new(config, shape, sizes).with_tier(tier))
}

fn live(actions: &[Action], mut harness: Harness) -> Harness {
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
            Action::Advance(pieces) => (0..pieces).for_each(|_| harness.advance()),
            Action::Ask if harness.tier.is_some() => harness.ask(),
            Action::Ask => {}
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

    /// The same with host memory: copies end late, in any order and on one rank after the other, fail, and are dropped.
    #[test]
    fn every_text_is_right_and_every_slot_returns(
        actions in actions_with_copies(), config in configs(), shape in shapes(), sizes in sizes(), tier in tiers(),
    ) {
        run_with_host(&actions, config, shape, sizes, tier);
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

/// So do those with host memory, whatever the policy.
#[test]
fn lives_with_host_memory_meet_loads_failures_and_evictions() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let strategy = (actions_with_copies(), configs(), shapes(), sizes(), tiers());
    let mut met: std::collections::BTreeMap<String, [u64; 5]> = std::collections::BTreeMap::new();
    for _ in 0..200 {
        let (actions, config, shape, sizes, tier) = strategy.new_tree(&mut runner).unwrap().current();
        let policy = format!("{:?}", tier.0.policy);
        let harness = run_with_host(&actions, config, shape, sizes, tier);
        let stats = harness.scheduler.host_stats();
        let failed = u64::from(harness.tier.map_or(0, |tier| tier.failed));
        let now = [stats.saved, stats.hits, stats.loads_failed, stats.evicted, failed];
        met.entry(policy).or_default().iter_mut().zip(now).for_each(|(sum, n)| *sum += n);
    }
    assert_eq!(met.len(), 3);
    assert!(met.values().flatten().all(|&n| n > 0), "saved, hits, loads failed, evicted, failed: {met:?}");
}
