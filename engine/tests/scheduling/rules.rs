//! What the scheduler promises, one promise per test.

use crate::harness::Harness;
use engine::geometry::{CacheShape, HcaState};
use engine::ids::{SequenceId, TokenId};
use engine::pools::PoolSizes;
use engine::scheduler::{AddError, CommitError, Scheduler, SchedulerConfig};
use engine::sequence::{Event, FinishReason, Request};
use engine::step::{InputToken, Sampled, Sampling, StepOutput};

const SHAPE: CacheShape = CacheShape {
    page_tokens: 16,
    window_page_tokens: 8,
    window: 8,
    csa_ratio: 4,
    hca_ratio: 8,
    csa_ring_rows: 8,
    hca_ring_rows: 8,
    hca_state: HcaState::PerRequest,
};

const SIZES: PoolSizes = PoolSizes { compressed_pages: 32, window_pages: 24, request_slots: 4 };

fn config() -> SchedulerConfig {
    SchedulerConfig { max_batch_tokens: 32, max_running: 4, chunk_tokens: 32, ..SchedulerConfig::new(200) }
}

fn request(prompt_tokens: u32, max_tokens: u32) -> Request {
    let prompt = (0..prompt_tokens).map(|i| TokenId(i % 61)).collect();
    Request { prompt, max_tokens, stop: Vec::new(), sampling: Sampling::GREEDY }
}

fn sampled(token: u32) -> Sampled {
    Sampled { token: TokenId(token), after_draft: None, next_draft: None }
}

fn output(tokens: &[u32]) -> StepOutput {
    StepOutput { sampled: tokens.iter().map(|&token| sampled(token)).collect(), ..StepOutput::default() }
}

#[test]
fn decode_goes_first_and_chunks_fill_the_rest() {
    let mut scheduler = Scheduler::new(config(), SHAPE, SIZES).unwrap();
    let first = scheduler.add(request(20, 9)).unwrap();
    let second = scheduler.add(request(40, 9)).unwrap();
    let plan = scheduler.schedule().unwrap();
    let parts: Vec<_> = plan.entries.iter().map(|e| (e.sequence, e.start.0, e.num_tokens(), e.emits)).collect();
    assert_eq!(parts, [(first, 0, 20, true), (second, 0, 12, false)]);
    assert_eq!((plan.num_decode, plan.entries[1].next), (0, Some(TokenId(12))));
    scheduler.commit(&plan, &output(&[5])).unwrap();
    let plan = scheduler.schedule().unwrap();
    let parts: Vec<_> = plan.entries.iter().map(|e| (e.sequence, e.start.0, e.num_tokens(), e.emits)).collect();
    assert_eq!(parts, [(first, 20, 1, true), (second, 12, 28, true)]);
    assert_eq!((plan.num_decode, plan.entries[0].tokens[0]), (1, InputToken::Known(TokenId(5))));
}

/// The second step takes the samples of the first; a text that ended there has its row dropped.
#[test]
fn overlap_runs_on_samples_that_are_not_known_yet() {
    let mut scheduler = Scheduler::new(config(), SHAPE, SIZES).unwrap();
    let stopping = scheduler.add(Request { stop: vec![TokenId(7)], ..request(3, 9) }).unwrap();
    let going_on = scheduler.add(request(2, 9)).unwrap();
    let first = scheduler.schedule().unwrap();
    let second = scheduler.schedule().unwrap();
    assert!(scheduler.schedule().is_none(), "two steps at most");
    let inputs: Vec<_> = second.entries.iter().map(|e| (e.sequence, e.start.0, e.tokens[0])).collect();
    let from = |row| InputToken::FromStep { row };
    assert_eq!(inputs, [(stopping, 3, from(0)), (going_on, 2, from(1))]);
    let events = scheduler.commit(&first, &output(&[7, 8])).unwrap();
    assert!(matches!(&events[1], Event::Finished { reason: FinishReason::Stop(TokenId(7)), .. }));
    let held = SIZES.compressed_pages - scheduler.pools().compressed.num_free();
    assert_eq!(held, 2, "the step in flight still has the pages of the text that ended");
    let events = scheduler.commit(&second, &output(&[1, 9])).unwrap();
    assert_eq!(events, [Event::Token { sequence: going_on, token: TokenId(9), index: 1 }]);
    assert_eq!((scheduler.pools().compressed.num_free(), scheduler.stats().discarded_tokens), (31, 1));
    scheduler.audit().unwrap();
}

#[test]
fn a_cancelled_request_keeps_its_pages_until_its_step_is_committed() {
    let mut scheduler = Scheduler::new(config(), SHAPE, SIZES).unwrap();
    let id = scheduler.add(request(20, 4)).unwrap();
    let waiting = scheduler.add(request(20, 4)).unwrap();
    assert!(matches!(scheduler.cancel(waiting), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    let plan = scheduler.schedule().unwrap();
    assert!(scheduler.cancel(id).is_some());
    assert!(scheduler.cancel(id).is_none(), "it has ended already");
    assert_eq!(scheduler.pools().compressed.num_free(), 30);
    assert!(scheduler.has_work() && scheduler.schedule().is_none());
    assert_eq!(scheduler.commit(&plan, &output(&[1])).unwrap(), []);
    assert_eq!((scheduler.pools().compressed.num_free(), scheduler.has_work()), (32, false));
}

#[test]
fn requests_that_cannot_be_run_are_refused_with_numbers() {
    let sizes = PoolSizes { compressed_pages: 4, ..SIZES };
    let mut scheduler = Scheduler::new(config(), SHAPE, sizes).unwrap();
    let refusal = |scheduler: &mut Scheduler, request| scheduler.add(request).unwrap_err().to_string();
    assert_eq!(
        refusal(&mut scheduler, request(60, 5)),
        "request of up to 65 tokens: needs 5 compressed pages, the pool has 4"
    );
    assert!(scheduler.add(request(60, 4)).is_ok());
    assert_eq!(
        refusal(&mut scheduler, request(200, 1)),
        "prompt: expected fewer than 200 tokens (the context limit), got 200"
    );
    assert_eq!(scheduler.add(request(0, 1)), Err(AddError::EmptyPrompt));
    assert_eq!(scheduler.add(request(1, 0)), Err(AddError::NoTokens));
    let cold = Request { sampling: Sampling { temperature: f32::NAN, seed: 0 }, ..request(1, 1) };
    assert_eq!(refusal(&mut scheduler, cold), "temperature: expected a number from 0, got NaN");
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    let refusal = |config, shape, sizes| Scheduler::new(config, shape, sizes).unwrap_err().to_string();
    let narrow = SchedulerConfig { max_batch_tokens: 4, ..config() };
    assert_eq!(
        refusal(narrow, SHAPE, SIZES),
        "max_batch_tokens: expected more than the 4 decode tokens of 4 sequences, got 4"
    );
    let few = PoolSizes { window_pages: 1, ..SIZES };
    assert_eq!(refusal(config(), SHAPE, few), "window_pages: expected at least 2 for one sequence, got 1");
    // Slots are 32-bit signed numbers: one page more, and a row would be another row.
    let most = SHAPE.max_pages();
    assert!(u64::from(most) * u64::from(SHAPE.window_page_tokens) <= 1 << 31);
    for (name, sizes) in [
        ("window_pages", PoolSizes { window_pages: most + 1, ..SIZES }),
        ("compressed_pages", PoolSizes { compressed_pages: u32::MAX, ..SIZES }),
        ("request_slots", PoolSizes { request_slots: most + 1, ..SIZES }),
    ] {
        let text = refusal(config(), SHAPE, sizes);
        assert!(text.starts_with(&format!("{name}: expected at most {most}, ")), "{text}");
    }
    let wide = CacheShape { window: 9, ..SHAPE };
    assert_eq!(refusal(config(), wide, SIZES), "cache shape: expected window of 1 to 8 tokens, got 9");
    let rings = CacheShape { hca_ratio: 16, hca_ring_rows: 16, hca_state: HcaState::PerWindowPage, ..SHAPE };
    let text = refusal(config(), rings, SIZES);
    assert_eq!(text, "cache shape: expected hca_ratio that divides window_page_tokens 8 (rings per page), got 16");
}

#[test]
fn steps_are_committed_in_order_with_their_own_output() {
    let mut scheduler = Scheduler::new(config(), SHAPE, SIZES).unwrap();
    scheduler.add(request(3, 9)).unwrap();
    let (first, second) = (scheduler.schedule().unwrap(), scheduler.schedule().unwrap());
    let early = scheduler.commit(&second, &output(&[1])).unwrap_err();
    assert_eq!(early, CommitError::OutOfTurn { expected: Some(0), got: 1 });
    let short = scheduler.commit(&first, &output(&[])).unwrap_err();
    assert_eq!(short, CommitError::Samples { step: 0, expected: 1, got: 0 });
    let sampled_behind = vec![Sampled { after_draft: Some(TokenId(2)), ..sampled(1) }];
    let bold = StepOutput { sampled: sampled_behind, ..StepOutput::default() };
    assert_eq!(scheduler.commit(&first, &bold).unwrap_err(), CommitError::Draft { step: 0, row: 0 });
    scheduler.commit(&first, &output(&[1])).unwrap();
    let twice = scheduler.commit(&first, &output(&[1])).unwrap_err();
    assert_eq!(twice.to_string(), "commit: expected step Some(1) (the oldest in flight), got step 0");
}

/// Every token is computed once: the prompt, and the generated ones but the last. What is cached is not computed.
#[test]
fn tokens_computed_are_tokens_needed() {
    let mut harness = Harness::new(config(), SHAPE, SIZES);
    harness.add(request(50, 20)).unwrap();
    while harness.schedule() {
        harness.commit();
    }
    assert_eq!(harness.scheduler.stats().computed_tokens, 50 + 19);
    // The same prompt again: 48 of its 50 tokens are in whole pages.
    harness.add(request(50, 20)).unwrap();
    while harness.schedule() {
        harness.commit();
    }
    let stats = harness.scheduler.stats();
    assert_eq!((stats.cached_tokens, stats.computed_tokens), (48, 50 + 19 + 2 + 19));
    // A prompt of whole pages leaves its last page to be computed, so that a token runs.
    harness.add(request(48, 1)).unwrap();
    harness.finish();
    assert_eq!(harness.scheduler.stats().cached_tokens, 48 + 32);
}

/// When pages run out the youngest gives way, and finishes later with the same text.
#[test]
fn the_youngest_is_preempted_and_resumes_from_the_cache() {
    let sizes = PoolSizes { compressed_pages: 7, ..SIZES };
    let mut harness = Harness::new(config(), SHAPE, sizes);
    let old = harness.add(request(30, 50)).unwrap();
    let young = harness.add(Request { prompt: vec![TokenId(9); 30], ..request(0, 50) }).unwrap();
    let mut ended = Vec::new();
    while harness.schedule() {
        harness.commit();
        let mut done = [old, young].into_iter().filter(|id| harness.requests[id].ended.is_some());
        if let Some(id) = done.find(|id| !ended.contains(id)) {
            ended.push(id);
        }
    }
    assert_eq!(ended, [old, young]);
    let stats = harness.scheduler.stats();
    assert!(stats.preempted >= 1 && stats.cached_tokens > 0, "{stats:?}");
    assert_eq!(stats.admitted, 2 + stats.preempted);
    harness.finish();
}

/// A long request at the head of the queue is not overtaken by short ones that would fit.
#[test]
fn nobody_overtakes_a_request_that_does_not_fit() {
    let sizes = PoolSizes { compressed_pages: 12, ..SIZES };
    let mut harness = Harness::new(SchedulerConfig { prefix_cache: false, ..config() }, SHAPE, sizes);
    harness.add(request(30, 40)).unwrap();
    assert!(harness.schedule() && harness.commit());
    let long = harness.add(request(180, 4)).unwrap();
    let short: Vec<SequenceId> = (0..6).map(|_| harness.add(request(4, 2)).unwrap()).collect();
    while harness.requests[&long].produced.is_empty() {
        assert!(harness.schedule() && harness.commit(), "the long request waits for ever");
        let early = short.iter().find(|id| harness.requests[id].produced.len() == 2);
        assert!(early.is_none() || !harness.requests[&long].produced.is_empty(), "{early:?} went by");
    }
    harness.finish();
}

#[test]
fn a_failed_step_ends_its_requests_with_the_reason() {
    let mut harness = Harness::new(config(), SHAPE, SIZES);
    let id = harness.add(request(20, 4)).unwrap();
    assert!(harness.schedule() && harness.schedule() && harness.fail());
    assert_eq!(harness.requests[&id].ended, Some(FinishReason::Failed("device lost".to_owned())));
    harness.finish();
}

/// NaN is no token: the text ends with a reason, and those beside it go on.
#[test]
fn a_sample_that_is_no_token_ends_its_request_alone() {
    let mut scheduler = Scheduler::new(config(), SHAPE, SIZES).unwrap();
    let (first, second) = (scheduler.add(request(9, 4)).unwrap(), scheduler.add(request(9, 4)).unwrap());
    let plan = scheduler.schedule().unwrap();
    let events = scheduler.commit(&plan, &StepOutput { undefined: vec![0], ..output(&[0, 5]) }).unwrap();
    let ended = |event: &Event| match event {
        Event::Finished { sequence, reason: FinishReason::Failed(why), .. } => Some((*sequence, why.contains("NaN"))),
        _ => None,
    };
    assert_eq!(events.iter().find_map(ended), Some((first, true)), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Token { sequence, .. } if *sequence == second)));
    let plan = scheduler.schedule().unwrap();
    assert_eq!(plan.entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [second]);
    scheduler.commit(&plan, &output(&[6])).unwrap();
    assert_eq!(scheduler.audit(), Ok(()));
}

/// A draft runs behind the last token; it costs a position when it is wrong and saves a step when it is right.
#[test]
fn drafts_are_those_of_the_step_before() {
    let config = SchedulerConfig { speculation: true, ..config() };
    let mut scheduler = Scheduler::new(config, SHAPE, SIZES).unwrap();
    scheduler.add(request(3, 6)).unwrap();
    let mut step = |token, after_draft: Option<u32>, next_draft: Option<u32>| {
        let plan = scheduler.schedule().unwrap();
        assert!(scheduler.schedule().is_none(), "steps with drafts do not overlap");
        let entry = &plan.entries[0];
        let seen = (entry.start.0, entry.draft.map(|draft| draft.0), plan.num_samples());
        let (after_draft, next_draft) = (after_draft.map(TokenId), next_draft.map(TokenId));
        let sampled = vec![Sampled { token: TokenId(token), after_draft, next_draft }];
        let output = StepOutput { sampled, ..StepOutput::default() };
        (seen, scheduler.commit(&plan, &output).unwrap().len())
    };
    assert_eq!(step(10, None, Some(20)), ((0, None, 1), 1));
    assert_eq!(step(11, None, Some(21)), ((3, Some(20), 2), 1), "rejected");
    assert_eq!(step(21, Some(22), None), ((4, Some(21), 2), 2), "accepted");
    assert_eq!(step(12, None, Some(23)), ((6, None, 1), 1), "none was offered");
    assert_eq!(step(13, None, None), ((7, None, 1), 2), "no room for two tokens; the last token and the end");
    let ignoring = SchedulerConfig { speculation: false, ..config };
    let mut scheduler = Scheduler::new(ignoring, SHAPE, SIZES).unwrap();
    scheduler.add(request(3, 6)).unwrap();
    let plan = scheduler.schedule().unwrap();
    let sampled = vec![Sampled { next_draft: Some(TokenId(1)), ..sampled(10) }];
    let output = StepOutput { sampled, ..StepOutput::default() };
    scheduler.commit(&plan, &output).unwrap();
    assert_eq!(scheduler.schedule().unwrap().entries[0].draft, None);
}

/// The page and ring sizes that the engine runs with, both policies.
#[test]
fn texts_are_right_with_pages_of_256_tokens() {
    for shape in [
        CacheShape::ring_per_page(128, false),
        CacheShape::ring_per_page(128, true),
        CacheShape::ring_per_page(16, false),
        CacheShape::ring_per_request(128, false),
        CacheShape::ring_per_request(16, true),
    ] {
        let speculation = shape.csa_ring_rows == 16;
        let config =
            SchedulerConfig { max_batch_tokens: 300, chunk_tokens: 256, speculation, ..SchedulerConfig::new(4096) };
        let config = SchedulerConfig { max_running: 3, ..config };
        let sizes = PoolSizes { compressed_pages: 9, window_pages: 16, request_slots: 3 };
        let mut harness = Harness::new(config, shape, sizes);
        for (prompt, generated) in [(700, 90), (300, 230), (520, 40), (700, 20)] {
            harness.add(request(prompt, generated)).unwrap();
        }
        harness.finish();
        let stats = harness.scheduler.stats();
        assert!(stats.cached_tokens >= 512, "{shape:?}: {stats:?}");
    }
}
