//! Abort storms: many clients that leave at any moment, again and again, over ranks that are linked by sockets. After every storm
//! all that was lent is back, on both sides and every rank.

use crate::linked::{Half, Linked, PATIENCE};
use crate::pair::{PAIRED, Setup, Texts};
use engine::coordinator::{Coordinator, Decode, Prefill, Side};
use engine::engine::Schedule;
use engine::ids::{SequenceId, TokenId};
use engine::sequence::{FinishReason, Request};
use engine::step::Sampling;
use reference::rng::Rng;
use std::time::{Duration, Instant};

/// For a step of either side: much more than one takes, much less than a test.
const STEP: Duration = Duration::from_secs(20);

/// What happens to frames and pages meanwhile, so that storms meet rooms in every state.
const WEATHER: &str = "seed=11; landing=delay(1)@0.03; frame-received=delay(4)@0.05; frame-received:ABORT=duplicate@0.2; \
                       frame-sent:LAYER=drop@0.02; frame-sent:DONE=drop@0.02; frame-sent:ABORT_ACK=drop@0.05; \
                       exchange:1=delay(2)@0.02; post=fail@0.01";

/// Storms: enough for a quarter of a minute, or as many as the environment says.
fn storms() -> u64 {
    std::env::var("ABORT_STORMS").ok().and_then(|count| count.parse().ok()).unwrap_or(30)
}

#[derive(Default)]
struct Ends {
    finished: usize,
    cancelled: usize,
    failed: usize,
}

fn random_request(rng: &mut Rng) -> Request {
    let longest = if rng.chance(0.2) { 300 } else { 40 };
    let length = 1 + rng.below(longest);
    Request {
        prompt: (0..length).map(|_| TokenId(rng.below(256) as u32)).collect(),
        max_tokens: 1 + rng.below(8) as u32,
        stop: Vec::new(),
        sampling: Sampling { temperature: if rng.chance(0.5) { 0.0 } else { 0.8 }, seed: rng.bits() },
    }
}

impl Linked {
    fn turn(&mut self, texts: &mut Texts) {
        let mut events = Vec::new();
        self.decode.coordinator.turn(&mut events).expect("decode runs");
        texts.take(&mut events);
        self.prefill.coordinator.turn(&mut events).expect("prefill runs");
        assert!(events.is_empty(), "prefill has no clients");
    }

    /// One storm: clients come, and most of them leave again.
    fn storm(&mut self, seed: u64, ends: &mut Ends) {
        let mut rng = Rng::named(seed, "storm");
        let (mut texts, mut ids): (_, Vec<SequenceId>) = (Texts::default(), Vec::new());
        let (clients, leave) = (1 + rng.below(12), [0.02, 0.1, 0.5][rng.below(3) as usize]);
        let mut to_come = clients;
        while to_come > 0 || self.decode.coordinator.has_work() {
            while to_come > 0 && (rng.chance(0.4) || !self.decode.coordinator.has_work()) {
                let id = self.decode.coordinator.add(random_request(&mut rng)).expect("a request that fits");
                texts.expect(id);
                ids.push(id);
                to_come -= 1;
            }
            if rng.chance(leave) {
                // Now and then all of them at once, as when their proxy dies.
                let all = rng.chance(0.1);
                let one = rng.below(ids.len() as u64) as usize;
                for &id in ids.iter().enumerate().filter(|(i, _)| all || *i == one).map(|(_, id)| id) {
                    texts.take(&mut self.decode.coordinator.cancel(id).into_iter().collect());
                }
            }
            self.turn(&mut texts);
        }
        self.settle(seed, &mut texts);
        for end in &texts.ends {
            match end {
                Some(FinishReason::MaxTokens) => ends.finished += 1,
                Some(FinishReason::Cancelled) => ends.cancelled += 1,
                Some(FinishReason::Failed(why) | FinishReason::Unavailable(why)) if !why.is_empty() => ends.failed += 1,
                other => panic!("storm {seed}: a request ends with {other:?}"),
            }
        }
    }

    fn settle(&mut self, seed: u64, texts: &mut Texts) {
        let start = Instant::now();
        loop {
            self.decode.coordinator.clear_prefix();
            self.prefill.coordinator.clear_prefix();
            let held = [self.decode.held(), self.prefill.held()].concat();
            if held.is_empty() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "storm {seed}: not given back: {held:?}");
            self.turn(texts);
        }
    }
}

/// What a side's coordinator knows of its rooms.
pub(crate) trait Rooms {
    fn rooms_held(&self) -> Vec<String>;
}

impl Rooms for Coordinator<Decode> {
    fn rooms_held(&self) -> Vec<String> {
        held_rooms("decode", self.side().num_rooms(), self.side().arena().is_whole())
    }
}

impl Rooms for Coordinator<Prefill> {
    fn rooms_held(&self) -> Vec<String> {
        held_rooms("prefill", self.side().num_rooms(), self.side().arena().is_whole())
    }
}

fn held_rooms(side: &str, rooms: usize, whole: bool) -> Vec<String> {
    let rooms = (rooms > 0).then(|| format!("{side}: {rooms} rooms"));
    rooms.into_iter().chain((!whole).then(|| format!("{side}: arena pages"))).collect()
}

impl<S: Side> Half<S>
where
    Coordinator<S>: Rooms,
{
    /// Everything that is not as before the first request.
    fn held(&self) -> Vec<String> {
        let mut held = self.coordinator.rooms_held();
        let scheduler = self.coordinator.scheduler();
        scheduler.audit().expect("every page is accounted for");
        let pools = scheduler.pools();
        let counts = [
            ("compressed", pools.compressed.num_free(), pools.compressed.num_pages()),
            ("window", pools.window.num_free(), pools.window.num_pages()),
            ("request", pools.requests.num_free(), pools.requests.num_pages()),
        ];
        held.extend(counts.iter().filter(|(_, free, all)| free != all).map(|count| format!("{count:?}")));
        for (rank, driver) in self.drivers.iter().enumerate() {
            assert!(!driver.has_ended(), "the driver of rank {rank} has ended");
            let now = driver.snapshot();
            let rooms = now.rooms.len() + now.ghosts.len();
            held.extend((rooms > 0).then(|| format!("rank {rank}: {rooms} rooms at its driver")));
        }
        held
    }
}

#[test]
fn everything_comes_back_after_every_storm() {
    let setup =
        Setup { ranks: 2, schedule: Schedule::Overlap, arena: 3, pages: 10, prefix_cache: true, ..Setup::new(&PAIRED) };
    let check = [random_request(&mut Rng::named(1, "check"))];
    let expected = setup.alone(&check);
    let mut linked = setup.linked(WEATHER, WEATHER, STEP);
    let (mut ends, start) = (Ends::default(), Instant::now());
    let storms = storms();
    for seed in 0..storms {
        linked.storm(seed, &mut ends);
    }
    let Ends { finished, cancelled, failed } = ends;
    println!("{storms} storms in {:.1?}: {finished} finished, {cancelled} cancelled, {failed} failed", start.elapsed());
    assert!(cancelled as u64 > storms && finished as u64 > storms, "{finished} finished, {cancelled} cancelled");
    // Both halves still say what one engine says.
    let mut texts = Texts::default();
    texts.expect(linked.decode.coordinator.add(check[0].clone()).expect("fits"));
    while linked.decode.coordinator.has_work() {
        linked.turn(&mut texts);
    }
    match &texts.ends[0] {
        // The weather goes on.
        Some(FinishReason::Failed(_) | FinishReason::Unavailable(_)) => {}
        _ => assert_eq!(texts.finished(), expected),
    }
}
