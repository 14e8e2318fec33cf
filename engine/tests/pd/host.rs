//! Beginnings that the device has lost come out of host memory, on one engine and on the side that goes on with a text.

use crate::pair::{PAIRED, Setup, TINY, Texts, requests};
use engine::scheduler::HostPolicy;
use engine::sequence::Request;

const POLICIES: [HostPolicy; 2] = [HostPolicy::WriteThrough, HostPolicy::WriteBack];

/// Two whole pages each, of which a device of four pages keeps one text's. Some windows at the end reach back over the pages' end; of
/// the others the one before that end travels as well.
fn asked() -> Vec<Request> {
    let once = requests(250, &[520, 690, 601], 6);
    [&once[..], &once[..]].concat()
}

fn setup(ranks: u32) -> Setup {
    Setup { ranks, prefix_cache: true, ..Setup::new(if ranks == 1 { &TINY } else { &PAIRED }) }
}

/// One after the other, so that each pushes out the one before.
fn in_turn(setup: &Setup) -> (Vec<Vec<u32>>, u64) {
    let sizes = setup.sizes(4);
    let mut engine =
        engine::engine::Engine::new(setup.scheduler(sizes), setup.runner(sizes, Vec::new()), setup.schedule);
    let (mut texts, mut events) = (Texts::default(), Vec::new());
    for request in asked() {
        texts.expect(engine.add(request).expect("a request that fits"));
        while engine.has_work() {
            engine.turn(&mut events).expect("steps run");
            texts.take(&mut events);
        }
    }
    engine.scheduler().audit().expect("every page and slot is accounted for");
    (texts.finished(), engine.scheduler().host_stats().hits)
}

#[test]
fn one_engine_with_host_memory_makes_the_same_texts() {
    for (mtp, ranks, per_page) in [(false, 1, false), (true, 1, true), (true, 2, false)] {
        let expected = setup(ranks).alone(&asked());
        for policy in POLICIES {
            let setup = Setup { host: Some(policy), mtp, per_page, ..setup(ranks) };
            let (texts, hits) = in_turn(&setup);
            assert_eq!(texts, expected, "{policy:?}, drafts {mtp}, {ranks} ranks, rings per page {per_page}");
            assert!(hits >= 2, "{policy:?}, drafts {mtp}: {hits} hits");
        }
    }
}

/// The side that goes on holds what host memory gave it, and asks for the rest, whose beginning the other side has in host memory.
#[test]
fn two_engines_with_host_memory_make_the_same_texts() {
    for (mtp, ranks) in [(false, 1), (true, 1), (true, 2)] {
        let expected = setup(ranks).alone(&asked());
        for policy in POLICIES {
            let setup = Setup { host: Some(policy), mtp, pages: 4, prefill_pages: 4, ..setup(ranks) };
            let (mut pair, mut texts) = (setup.pair(), Texts::default());
            for request in asked() {
                texts.expect(pair.decode.add(request).expect("a request that fits"));
                while pair.decode.has_work() {
                    pair.turn(&mut texts);
                }
            }
            let hits = [pair.decode.scheduler(), pair.prefill.scheduler()].map(|half| half.host_stats().hits);
            assert!(hits.iter().all(|&hits| hits >= 2), "{policy:?}, drafts {mtp}, {ranks} ranks: {hits:?} hits");
            pair.settle(&mut texts);
            assert_eq!(texts.finished(), expected, "{policy:?}, drafts {mtp}, {ranks} ranks");
        }
    }
}
