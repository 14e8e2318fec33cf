//! Loads on emulated PTX: steps that wait run layer by layer, all others stay graphs, and a page that is read too early is found.

use crate::rig::{Ranks, SLOTS, Setup, Text, loads, saves};
use engine::host_cache::HostOrders;
use engine::host_tier::HostTierConfig;
use engine::model::{GraphCounters, Numerics};
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;
use std::sync::{Arc, Mutex};
use transfer::exchange::CopySeen;
use transfer::fault::Faults;

fn setup() -> Setup {
    Setup { numerics: Numerics::device(), ..Setup::new() }
}

fn ranks(setup: &Setup, rules: &str) -> (Ranks, Arc<GraphCounters>) {
    let faults = Arc::new(Faults::parse(rules).expect("rules"));
    let tiers = setup.tiers(&HostTierConfig { faults, ..HostTierConfig::new(SLOTS) });
    let counters = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&counters);
    let open = |collective| (KernelOps::new(Emulated::new(EmulatedConfig::fast())), collective);
    let ranks = setup.ranks_on(tiers, open, move |model| {
        *kept.lock().expect("no panic") = Some(model.graph_counters());
    });
    let counters = counters.lock().expect("no panic").take().expect("a model");
    (ranks, counters)
}

#[test]
fn only_the_step_that_waits_leaves_its_graph() {
    let setup = setup();
    let (mut ranks, counters) = ranks(&setup, "host-load:CSA index K=delay(50)");
    let counts = || [counters.first_steps(), counters.recorded(), counters.replayed()];
    let text = Text::random(setup.shape(), 257, 0);
    ranks.run(text.entry(0..256));
    ranks.exchange(saves(vec![text.save(1, 256)]));
    let expected = ranks.go_on(text.clone(), 256, 5, HostOrders::default());
    // Six decode steps of one size: the first is eager, the second is recorded.
    assert_eq!(counts(), [1, 1, 5]);
    assert_eq!(ranks.until(1, &CopySeen::Done), CopySeen::Done);
    let other = text.elsewhere(1);
    let host = loads(vec![other.load(2, 256)]);
    assert_eq!(ranks.go_on(other, 256, 5, host), expected);
    assert_eq!(counts(), [1, 1, 10], "the step that waits is no replay, all others are");
}
