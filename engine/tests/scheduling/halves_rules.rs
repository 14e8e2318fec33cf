//! Rules of requests of which another engine does one half.

use crate::fake::Oracle;
use crate::halves::{Cached, Half, SHAPE};
use engine::handover::Needed;
use engine::ids::TokenId;
use engine::scheduler::FirstToken;
use engine::sequence::{Event, FinishReason, Request};
use engine::step::Sampling;

fn request(prompt: u32, max_tokens: u32) -> Request {
    let prompt = (0..prompt).map(|i| TokenId(i % 61)).collect();
    Request { prompt, max_tokens, stop: Vec::new(), sampling: Sampling::GREEDY }
}

#[test]
fn a_prompt_for_others_holds_its_pages_until_it_is_released() {
    let mut half = Half::new(SHAPE, [16, 32], Cached::No);
    let id = half.scheduler.add_prefill(request(20, 50)).unwrap();
    let entries = half.schedule().unwrap();
    assert!(half.scheduler.schedule().is_none(), "nothing is generated here");
    assert_eq!(half.commit(), []);
    let prefilled = half.scheduler.take_prefilled().unwrap();
    let expected =
        request(20, 1).prompt.iter().fold((Oracle::new(SHAPE, 0.0), TokenId(0)), |(mut oracle, _), &token| {
            let next = oracle.step(token);
            (oracle, next)
        });
    assert_eq!((prefilled.sequence, prefilled.first.token), (id, expected.1));
    assert_eq!(half.scheduler.take_prefilled(), None);
    assert!(half.scheduler.schedule().is_none() && half.scheduler.has_work());
    assert_eq!(half.scheduler.pools().compressed.num_free(), 14);
    let entry = &entries[0];
    let needed = Needed::at(&SHAPE, 0, 20);
    assert!(needed.pages(&entry.compressed_table, &entry.window_table, entry.request_slot).is_some());
    half.scheduler.release(id);
    half.scheduler.release(id);
    assert_eq!((half.scheduler.pools().compressed.num_free(), half.scheduler.has_work()), (16, false));
}

#[test]
fn a_remote_request_gets_its_pages_and_no_step() {
    let mut half = Half::new(SHAPE, [16, 32], Cached::No);
    let id = half.scheduler.add_remote(request(20, 3)).unwrap();
    assert!(half.scheduler.schedule().is_none());
    let reserved = half.scheduler.take_reserved().unwrap();
    assert_eq!((reserved.sequence, reserved.held), (id, 0));
    // Of 20 tokens, those from 13 on are needed: window pages 1 and 2 of 8 tokens; rows 0 to 4 of 4 tokens lie on two pages.
    assert_eq!(reserved.needed, Needed { compressed: 0..2, window: 1..3, request: true });
    assert_eq!((reserved.compressed.len(), reserved.window[0], reserved.window.len()), (2, None, 3));
    assert!(half.scheduler.filling(id));
    assert!(half.scheduler.cancel(id).is_some());
    assert_eq!(half.scheduler.pools().compressed.num_free(), 14, "a step still writes these pages");
    assert!(!half.scheduler.filling(id), "no further step may");
    half.scheduler.filled(id);
    assert_eq!((half.scheduler.pools().compressed.num_free(), half.scheduler.has_work()), (16, false));
    let first = FirstToken { token: TokenId(1), draft: None, cached_tokens: 0 };
    assert_eq!(half.scheduler.start(id, &first), [], "it has ended");
}

/// A text that ends with its first token never runs here.
#[test]
fn the_first_token_may_be_the_last() {
    let mut half = Half::new(SHAPE, [16, 32], Cached::OnDevice);
    let first = FirstToken { token: TokenId(7), draft: None, cached_tokens: 16 };
    for (request, reason) in [
        (request(20, 1), FinishReason::MaxTokens),
        (Request { stop: vec![TokenId(7)], ..request(40, 9) }, FinishReason::Stop(TokenId(7))),
    ] {
        let id = half.scheduler.add_remote(request).unwrap();
        assert!(half.scheduler.schedule().is_none());
        half.scheduler.take_reserved().unwrap();
        let events = half.scheduler.start(id, &first);
        let token = Event::Token { sequence: id, token: TokenId(7), index: 0 };
        assert_eq!(events[0], token);
        assert!(
            matches!(&events[1], Event::Finished { reason: got, usage, .. } if *got == reason && usage.cached_tokens == 16)
        );
        assert!(!half.scheduler.has_work());
    }
    half.check();
}
