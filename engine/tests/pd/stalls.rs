//! Ranks that do not answer, answer late or stand elsewhere; threads that are stuck. Who it was is said, to everybody who waits.

use crate::linked::{Half, PATIENCE, until};
use crate::pair::{PAIRED, Setup, TINY, requests};
use crate::wire::Manners;
use engine::engine::{EngineThread, Schedule, Turns};
use engine::progress::PartState;
use engine::sequence::{Event, FinishReason, Request};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use transfer::driver::Driver;

/// A half on a thread of its own.
struct Threaded {
    engine: EngineThread,
    _drivers: Vec<Driver>,
}

impl<S: engine::coordinator::Side + 'static> Half<S> {
    fn threaded(self) -> Threaded {
        let turns: Box<dyn Turns> = Box::new(self.coordinator);
        Threaded { engine: EngineThread::spawn_with(turns, self.bell).expect("a thread"), _drivers: self.drivers }
    }
}

/// Both halves with two ranks each; faults of either.
fn halves(prefill: &str, decode: &str, schedule: Schedule, deadline: Duration) -> (Threaded, Threaded) {
    let setup = Setup { ranks: 2, schedule, ..Setup::new(&PAIRED) };
    let linked = setup.linked(prefill, decode, deadline);
    (linked.prefill.threaded(), linked.decode.threaded())
}

fn add(engine: &EngineThread, request: &Request) -> Receiver<Event> {
    engine.add(request.clone()).expect("the engine is there").expect("a request that fits").1
}

/// How a request ends; it must.
fn end(events: &Receiver<Event>) -> FinishReason {
    loop {
        if let Event::Finished { reason, .. } = events.recv_timeout(PATIENCE).expect("an end") {
            return reason;
        }
    }
}

fn part(engine: &EngineThread, name: &str) -> PartState {
    engine.parts().into_iter().find(|part| part.name == name).expect("a part of that name")
}

/// Requests on their way when the decode side fails: each ends with the reason, and so does the engine, without its rank.
fn all_end_with(rules: &str, schedule: Schedule, expected: &[&str]) {
    let deadline = Duration::from_secs(1);
    let (prefill, decode) = halves("", rules, schedule, deadline);
    let requests = requests(256, &[40, 3, 200, 17], 400);
    let asked: Vec<_> = requests.iter().map(|request| add(&decode.engine, request)).collect();
    for events in &asked {
        match end(events) {
            FinishReason::Failed(why) => assert!(expected.iter().all(|part| why.contains(part)), "{rules}: {why}"),
            other => panic!("{rules}: ended with {other:?}"),
        }
    }
    until("the engine has ended", || decode.engine.ended().is_some());
    let why = decode.engine.ended().expect("ended");
    assert!(expected.iter().all(|part| why.contains(part)), "{rules}: {why}");
    // Nobody hangs, here or on the other side.
    let start = Instant::now();
    drop(decode);
    assert_eq!(prefill.engine.ended(), None);
    until("the prefill side has let go", || {
        let pools = prefill.engine.snapshot();
        [pools.compressed, pools.window, pools.requests].iter().all(|pool| pool.free == pool.pages)
    });
    drop(prefill);
    assert!(start.elapsed() < PATIENCE);
}

/// F10: a rank that never reports is named at the deadline of the step.
#[test]
fn a_rank_that_is_withheld_is_named() {
    for schedule in [Schedule::Lockstep, Schedule::Overlap] {
        all_end_with("exchange:1=withhold#30", schedule, &["no answer of rank 1 within 1s"]);
    }
}

/// F10: a rank that does not come back is missing, and nobody waits for it any more: neither clients nor the end of the engine.
#[test]
fn a_rank_that_never_comes_back_holds_up_nobody() {
    all_end_with("exchange:0=delay(600000)#25", Schedule::Overlap, &["no answer of rank 0 within 1s"]);
}

/// F10: a rank that carried out another decision; both stand in the reason.
#[test]
fn unequal_hashes_are_shown_side_by_side() {
    let expected =
        ["ranks stand after different decisions", "rank 0 after decision 20 (", "rank 1 after decision 20 ("];
    all_end_with("exchange:1=unequal-hash#20", Schedule::Overlap, &expected);
}

/// F13: a rank that is stuck has an age, and so has nobody else; it is forgiven when it goes on, and nothing was lost.
#[test]
fn a_stuck_rank_has_an_age_and_recovers() {
    let (_prefill, decode) = halves("", "exchange:1=delay(1500)#40", Schedule::Overlap, PATIENCE);
    let events = add(&decode.engine, &requests(256, &[20], 300)[0]);
    let still = |name| part(&decode.engine, name).still;
    until("rank 1 stands still", || still("rank 1") > Duration::from_millis(700));
    let engine = part(&decode.engine, "engine");
    assert!(engine.behind.contains(&"rank 1".to_owned()), "{engine:?}");
    until("rank 1 goes on", || still("rank 1") < Duration::from_millis(100));
    assert_eq!(end(&events), FinishReason::MaxTokens);
}

/// Ranks at very different speeds, from step to step: nothing depends on it.
#[test]
fn random_delays_of_ranks_change_nothing() {
    let requests = requests(256, &[130, 9, 64, 1], 24);
    let setup = Setup { ranks: 2, schedule: Schedule::Overlap, ..Setup::new(&PAIRED) };
    let expected = setup.alone(&requests);
    let rules = "seed=4; exchange:0=delay(3)@0.2; exchange:1=delay(5)@0.2";
    let manners = Manners { delay: 2, ..Manners::default() };
    assert_eq!(Setup { faults: rules, manners, ..setup }.apart(&requests), expected);
}

/// A step whose engine thread is blocked: its commands and its requests have an age, its ranks, which have nothing to do, have none.
#[test]
fn a_blocked_engine_thread_has_an_age() {
    let setup = Setup::new(&TINY);
    let (go, gate) = std::sync::mpsc::channel();
    let engine =
        EngineThread::spawn_with(Box::new(Blocked { engine: setup.engine(), gate: Some(gate) }), Default::default());
    let engine = engine.expect("a thread");
    let events = add(&engine, &requests(256, &[20], 4)[0]);
    until("the engine stands still", || part(&engine, "engine").still > Duration::from_millis(300));
    assert_eq!(part(&engine, "rank 0").still, Duration::ZERO);
    go.send(()).expect("it waits");
    assert_eq!(end(&events), FinishReason::MaxTokens);
    until("the engine is idle", || part(&engine, "engine").waiting == 0);
}

/// An engine whose first turn waits for a word.
struct Blocked {
    engine: engine::engine::Engine,
    gate: Option<Receiver<()>>,
}

impl Turns for Blocked {
    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), engine::engine::EngineError> {
        if let Some(gate) = self.gate.take() {
            gate.recv_timeout(PATIENCE).expect("a word");
        }
        self.engine.turn(events)
    }

    fn add(&mut self, request: Request) -> Result<engine::ids::SequenceId, engine::scheduler::AddError> {
        self.engine.add(request)
    }

    fn cancel(&mut self, id: engine::ids::SequenceId) -> Option<Event> {
        self.engine.cancel(id)
    }

    fn has_work(&self) -> bool {
        self.engine.has_work()
    }

    fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    fn scheduler(&self) -> &engine::scheduler::Scheduler {
        self.engine.scheduler()
    }

    fn rank_parts(&self) -> &[std::sync::Arc<engine::progress::Part>] {
        self.engine.rank_parts()
    }

    fn progress(&self) -> u64 {
        Turns::progress(&self.engine)
    }
}

/// Landing pages given back while somebody may still write them are another text's by then: the wait for proof is what keeps texts
/// right.
#[test]
fn pages_released_early_hold_foreign_bytes() {
    let requests = requests(256, &[200, 210, 220, 230, 190, 180, 240, 205], 16);
    let manners = Manners { delay: 40, ..Manners::default() };
    let base = Setup { arena: 1, pages: 16, manners, ..Setup::new(&TINY) };
    let expected = base.alone(&requests);
    let wrong = |faults| {
        let mut wrong = 0;
        for seed in 0..6 {
            let mut pair = Setup { faults, seed, ..base.clone() }.pair();
            let mut texts = crate::pair::Texts::default();
            let ids: Vec<_> = requests.iter().map(|r| pair.decode.add(r.clone()).expect("fits")).collect();
            ids.iter().for_each(|&id| texts.expect(id));
            // Every second one goes when its pages are on their way.
            let mut turns = 0;
            while pair.decode.has_work() {
                turns += 1;
                if turns % 30 == 0 && turns / 30 <= 4 {
                    texts.take(&mut pair.decode.cancel(ids[2 * (turns / 30 - 1)]).into_iter().collect());
                }
                pair.turn(&mut texts);
            }
            pair.settle(&mut texts);
            wrong += (0..ids.len())
                .filter(|&i| texts.ends[i] == Some(FinishReason::MaxTokens) && texts.so_far(i) != expected[i])
                .count();
        }
        wrong
    };
    assert_eq!(wrong(""), 0);
    assert!(wrong("quarantine=release-early") > 0, "the wait for proof makes no difference");
}
