//! Loads beside the step that reads them, layer by layer.

use crate::rig::{Ranks, SLOTS, Setup, Text, expected, loads, saves};
use engine::collective::Collective;
use engine::host_cache::HostOrders;
use engine::host_tier::{HostTier, HostTierConfig, MemorySlots, SlotStore};
use engine::step::Sampled;
use kernel_bindings::host::HostOps;
use reference::ops::{Ops, OpsError};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use transfer::exchange::CopySeen;
use transfer::fault::Faults;

fn faulty(rules: &str) -> HostTierConfig {
    HostTierConfig { faults: Arc::new(Faults::parse(rules).expect("rules")), ..HostTierConfig::new(SLOTS) }
}

/// Ranks in whose slots the first page of a text is.
fn with_text(setup: &Setup, config: &HostTierConfig, text: &Text) -> Ranks {
    let mut ranks = setup.ranks(setup.tiers(config));
    ranks.run(text.entry(0..256));
    ranks.exchange(saves(vec![text.save(1, 256)]));
    assert_eq!(ranks.until(1, &CopySeen::Done), CopySeen::Done);
    ranks
}

/// Load and step in one order.
fn loaded(ranks: &mut Ranks, text: Text, id: u64, more: usize) -> Vec<Sampled> {
    let host = loads(vec![text.load(id, 256)]);
    ranks.go_on(text, 256, more, host)
}

/// One pool comes later than the others: nobody reads the layer without it, be it a prompt's chunk, a decode step or the draft
/// layer. Whatever was read instead would be NaN.
#[test]
fn every_reader_waits_for_every_pool() {
    let setup = Setup { mtp: true, per_page: true, ..Setup::new() };
    let (chunk, token) = (Text::random(setup.shape(), 280, 0), Text::random(setup.shape(), 257, 0));
    let expected_chunk = expected(&setup, &chunk, 256, 4);
    let expected_token = expected(&setup, &token, 256, 4);
    let layout = HostTierConfig::new(SLOTS).layout(&setup.geometry()).expect("small");
    let pools: BTreeSet<&str> = layout.items().iter().map(|item| item.spec.name.as_str()).collect();
    assert_eq!(pools.len(), 7, "{pools:?}");
    for pool in pools {
        let mut ranks = with_text(&setup, &faulty(&format!("host-load:{pool}=delay(25)")), &chunk);
        assert_eq!(loaded(&mut ranks, chunk.elsewhere(1), 2, 4), expected_chunk, "{pool}, chunk");
        assert_eq!(loaded(&mut ranks, token.elsewhere(2), 3, 4), expected_token, "{pool}, token");
    }
}

/// Without the wait for index keys, another text: so that the test above can fail.
#[test]
fn index_keys_that_are_not_waited_for_change_the_text() {
    let never = faulty("host-load:CSA index K=delay(600000)");
    let hasty = Setup { faults: "gate:CSA index K=skip-wait", ..Setup::new() };
    for len in [280, 257] {
        let text = Text::random(hasty.shape(), len, 0);
        let mut ranks = with_text(&hasty, &never, &text);
        let (got, expected) = (loaded(&mut ranks, text.elsewhere(1), 2, 24), expected(&hasty, &text, 256, 24));
        assert_ne!(got, expected, "{len} tokens");
    }
}

#[test]
fn a_step_that_waits_too_long_names_copy_and_unit() {
    let setup = Setup::new();
    let text = Text::random(setup.shape(), 257, 0);
    // Long enough for the layers before.
    let config = HostTierConfig { deadline: Duration::from_secs(3), ..faulty("host-load:HCA KV=delay(600000)") };
    let mut ranks = with_text(&setup, &config, &text);
    let other = text.elsewhere(1);
    let error = ranks.step(other.entry(256..257), loads(vec![other.load(2, 256)])).expect_err("held up").to_string();
    assert!(error.contains("copy 2: unit 2 was not loaded within 3s"), "{error}");
}

#[test]
fn a_step_that_reads_a_failed_load_says_why() {
    let setup = Setup::new();
    let text = Text::random(setup.shape(), 257, 0);
    let mut ranks = with_text(&setup, &faulty("host-load:window KV=fail#1"), &text);
    let other = text.elsewhere(1);
    ranks.exchange(loads(vec![other.load(2, 256)]));
    assert!(matches!(ranks.until(2, &CopySeen::Done), CopySeen::Failed(_)));
    let error = ranks.step(other.entry(256..257), HostOrders::default()).expect_err("not there").to_string();
    let expected = "copy 2 has failed, and the step reads its pages: HostMemory: window KV, unit 0, slot 0";
    assert!(error.contains(expected), "{error}");
}

/// How many sums over the ranks a model has begun: two per layer.
#[derive(Debug, Default)]
struct Sums {
    begun: Mutex<u32>,
    news: Condvar,
}

impl Sums {
    /// Waits until this many have begun.
    fn reach(&self, sums: u32) -> Result<(), String> {
        let begun = self.begun.lock().expect("no panic");
        let wait = self.news.wait_timeout_while(begun, Duration::from_secs(60), |begun| *begun < sums);
        match wait.expect("no panic").1.timed_out() {
            true => Err(format!("nobody computes beside the load: {sums} sums do not begin")),
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Counted {
    inner: Box<dyn Collective<HostOps>>,
    sums: Arc<Sums>,
}

impl Collective<HostOps> for Counted {
    fn all_reduce(
        &mut self,
        ops: &HostOps,
        buffer: &mut <HostOps as Ops>::Buffer,
        elements: u64,
    ) -> Result<(), OpsError> {
        *self.sums.begun.lock().expect("no panic") += 1;
        self.sums.news.notify_all();
        self.inner.all_reduce(ops, buffer, elements)
    }
}

/// Slots that give a unit only when the layer before it is being computed.
#[derive(Debug)]
struct Behind {
    slots: MemorySlots,
    units: Vec<u32>,
    sums: Arc<Sums>,
    before: u32,
}

impl SlotStore for Behind {
    fn write(&mut self, item: usize, slot: u32, page: &[u8]) -> Result<(), String> {
        self.slots.write(item, slot, page)
    }

    fn read(&mut self, item: usize, slot: u32, page: &mut [u8]) -> Result<(), String> {
        let unit = self.units[item];
        if unit > 0 {
            self.sums.reach(self.before + 2 * unit - 1)?;
        }
        self.slots.read(item, slot, page)
    }
}

/// Unit L + 1 leaves its slots while layer L is computed, and not before: no step waits for a whole load.
#[test]
fn a_load_overlaps_the_layers_of_its_step() {
    let setup = Setup { mtp: true, ..Setup::new() };
    let text = Text::random(setup.shape(), 280, 0);
    let config = HostTierConfig::new(SLOTS);
    let layout = config.layout(&setup.geometry()).expect("small");
    let sums = Arc::new(Sums::default());
    let store = Behind {
        units: layout.items().iter().map(|item| item.spec.unit.0).collect(),
        slots: MemorySlots::new(layout).expect("small"),
        sums: Arc::clone(&sums),
        // The prompt's first step: five layers, the draft layer among them.
        before: 2 * 5,
    };
    let tier = HostTier::on(&setup.geometry(), &config, Box::new(store)).expect("starts");
    let open = move |inner| (HostOps, Box::new(Counted { inner, sums: Arc::clone(&sums) }) as Box<dyn Collective<_>>);
    let mut ranks = setup.ranks_on(vec![tier.into()], open, |_| ());
    ranks.run(text.entry(0..256));
    ranks.exchange(saves(vec![text.save(1, 256)]));
    ranks.until(1, &CopySeen::Done);
    assert_eq!(loaded(&mut ranks, text.elsewhere(1), 2, 4), expected(&setup, &text, 256, 4));
    assert_eq!(ranks.until(2, &CopySeen::Done), CopySeen::Done);
}
