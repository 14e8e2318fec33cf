//! Decode steps as graphs on emulated PTX: the same tokens as without, and how many steps were replays.

use std::sync::{Arc, Mutex};

use engine::config::ModelConfig;
use engine::model::{GraphCounters, Numerics};
use engine::sequence::Request;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;

use crate::serve::{Setup, TINY, made, requests, run};

/// Texts, and what the graphs of every rank did.
fn texts(setup: &Setup, requests: &[Request], graphs: bool) -> (Vec<Vec<u32>>, Vec<Arc<GraphCounters>>) {
    let counters = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&counters);
    let mut engine = setup.engine_on(
        || KernelOps::new(Emulated::new(EmulatedConfig::fast())),
        move |model| {
            if !graphs {
                model.without_graphs();
            }
            kept.lock().expect("no panic").push(model.graph_counters());
        },
    );
    let texts = run(&mut engine, requests);
    let counters = counters.lock().expect("no panic").clone();
    (texts, counters)
}

fn setup() -> Setup {
    Setup { numerics: Numerics::device(), ..Setup::new(&TINY) }
}

/// Prompts of the given lengths, and how many tokens follow each.
fn ask(lengths: &[(usize, u32)]) -> Vec<Request> {
    let prompts: Vec<usize> = lengths.iter().map(|&(len, _)| len).collect();
    let mut requests = requests(TINY.config().vocab_size, &prompts, 1);
    requests.iter_mut().zip(lengths).for_each(|(request, &(_, tokens))| request.max_tokens = tokens);
    requests
}

/// Equal texts with graphs and without; replays of the run with graphs.
fn equal(setup: &Setup, lengths: &[(usize, u32)]) -> u64 {
    let requests = ask(lengths);
    let (expected, eager) = texts(setup, &requests, false);
    let (got, graphs) = texts(setup, &requests, true);
    assert_eq!(got, expected);
    let [eager, graphs] = [&eager[0], &graphs[0]];
    assert_eq!((eager.first_steps(), eager.recorded(), eager.replayed()), (0, 0, 0));
    assert_eq!(graphs.refusal(), None);
    assert!(graphs.recorded() > 0 && graphs.pieces() > 20 * graphs.replayed(), "{graphs:?}");
    graphs.replayed()
}

/// One text over the ends of a row, a window and a page (252, 256).
#[test]
fn one_text() {
    let replayed = equal(&setup(), &[(250, 10)]);
    // 9 decode steps: two sizes, one per number of pages; the first step of each is eager.
    assert_eq!(replayed, 7);
}

/// Three texts in steps padded to four, then two, then one: they end one after the other.
#[test]
fn texts_that_end_one_by_one() {
    let replayed = equal(&Setup { per_page: true, ..setup() }, &[(125, 5), (30, 9), (61, 13)]);
    // 12 decode steps of three sizes, the first step of each eager.
    assert_eq!(replayed, 9);
}

/// A long prompt comes in chunks while others decode: eager steps between replays.
#[test]
fn prompts_between_replays() {
    let chunked = Setup { max_batch_tokens: 40, ..setup() };
    let replayed = equal(&chunked, &[(20, 14), (9, 14), (100, 4), (5, 10)]);
    assert!(replayed >= 4, "{replayed} replays");
}

/// Two tokens per text and step, and the draft layer's own graph.
#[test]
fn drafts() {
    let replayed = equal(&Setup { mtp: true, ..setup() }, &[(30, 8), (60, 8), (126, 8)]);
    assert!(replayed >= 6, "{replayed} replays");
}

/// Sums that go through the host cannot be recorded: the ranks run eagerly, and say nothing else than one rank would.
#[test]
fn ranks_that_add_on_the_host_stay_eager() {
    // The kernels want eight heads of every rank, and 32 inputs of a product.
    let checkpoint = made(&ModelConfig { heads: 16, o_lora_rank: 32, ..ModelConfig::tiny() }, 5);
    let setup = Setup { checkpoint, ..setup() };
    let requests = ask(&[(12, 5)]);
    let (expected, _) = texts(&setup, &requests, true);
    let (got, ranks) = texts(&Setup { ranks: 2, ..setup }, &requests, true);
    assert_eq!(got, expected);
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        assert_eq!((rank.first_steps(), rank.recorded(), rank.replayed(), rank.refusal()), (0, 0, 0, None));
    }
}
