//! What goes wrong around the steps: ranks that panic, an engine that is dropped, clients that never pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::checkpoint::Checkpoint;
use engine::checkpoint::make::{Make, Store};
use engine::collective::Collective;
use engine::config::ModelConfig;
use engine::engine::EngineThread;
use engine::sequence::{Event, FinishReason, Request};
use reference::ops::{Ops, OpsError};

use crate::serve::{Setup, TINY, made, requests};

/// A rank that panics when its last exchange is done: by then nobody waits for it there.
#[derive(Debug)]
pub(crate) struct Panics<C: ?Sized> {
    pub(crate) inner: Box<C>,
    pub(crate) exchanges: u32,
}

impl<O: Ops + 'static> Collective<O> for Panics<dyn Collective<O>> {
    fn all_reduce(&mut self, ops: &O, buffer: &mut O::Buffer, elements: u64) -> Result<(), OpsError> {
        self.inner.all_reduce(ops, buffer, elements)?;
        self.exchanges -= 1;
        assert_ne!(self.exchanges, 0, "planted");
        Ok(())
    }
}

/// The host learns of it instead of waiting, and says why; the engine takes no step after that.
#[test]
fn a_rank_that_panics_ends_the_run() {
    let config = ModelConfig::mini();
    let mini = made(&config, 2);
    let request = &requests(config.vocab_size, &[7], 4)[0];
    for (ranks, who) in [(1, 0), (2, 0), (2, 1)] {
        let mut engine = Setup { ranks, panics: Some((who, 2 * config.num_layers())), ..Setup::new(&mini) }.engine();
        engine.add(request.clone()).expect("fits");
        let mut events = Vec::new();
        let error = engine.turn(&mut events).expect_err("a rank is gone").to_string();
        assert!(error.starts_with(&format!("a rank has stopped: rank {who} panicked: ")), "{error}");
        assert!(error.contains("planted"), "{error}");
        assert!(
            matches!(&events[..], [Event::Finished { reason: FinishReason::Failed(why), .. }] if *why == error),
            "{events:?}"
        );
        engine.add(request.clone()).expect("fits");
        let again = engine.turn(&mut events).expect_err("the ranks are gone").to_string();
        assert!(again.contains("planted"), "{again}");
    }
}

#[test]
fn a_dropped_engine_cancels_its_requests() {
    let requests = requests(TINY.config().vocab_size, &[3; 20], 690);
    let engine = EngineThread::spawn(Setup::new(&TINY).engine()).expect("a thread");
    let add = |request: &Request| engine.add(request.clone()).expect("runs").expect("fits").1;
    let clients: Vec<_> = requests.iter().map(add).collect();
    clients[0].recv().expect("a token");
    drop(engine);
    for events in clients {
        let last = events.iter().last();
        assert!(matches!(last, Some(Event::Finished { reason: FinishReason::Cancelled, .. })), "{last:?}");
    }
}

/// Commands come faster than they are obeyed, from three threads, until the text is there.
#[test]
fn commands_without_pause_keep_nobody_from_their_tokens() {
    let request = &requests(TINY.config().vocab_size, &[3], 8)[0];
    let engine = EngineThread::spawn(Setup::new(&TINY).engine()).expect("a thread");
    let ended = engine.add(Request { max_tokens: 1, ..request.clone() }).expect("runs").expect("fits");
    assert_eq!(ended.1.iter().count(), 2);
    let (_, events) = engine.add(Request { max_tokens: 600, ..request.clone() }).expect("runs").expect("fits");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    engine.cancel(ended.0).expect("runs");
                }
            });
        }
        // A few tokens after the storm began.
        let tokens = events.iter().take(40).count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(tokens, 40);
    });
}

/// A checkpoint whose head is NaN, as a file that was cut off or a bad conversion leaves it: every request fails with a reason, and
/// the engine goes on.
#[test]
fn weights_that_are_no_numbers_are_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("checkpoint");
    let make = Make { config: &ModelConfig::tiny(), seed: 5, store: Store::Fp8Fp4, shard_bytes: 1 << 22 };
    make.run(&dir, |_| ()).expect("written");
    let mut damaged = 0;
    for entry in std::fs::read_dir(&dir).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let mut bytes = std::fs::read(&path).expect("readable");
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        for (_, tensor) in header.tensors().iter().filter(|(name, _)| *name == "head.weight") {
            bytes[data + tensor.data_offsets.0..data + tensor.data_offsets.1].fill(0xff);
            damaged += 1;
        }
        std::fs::write(&path, bytes).expect("writable");
    }
    assert_eq!(damaged, 1, "one head");
    let mut engine = Setup::new(&Arc::new(Checkpoint::open(&dir).expect("its header is whole"))).engine();
    for request in requests(ModelConfig::tiny().vocab_size, &[7, 40], 4) {
        engine.add(request).expect("fits");
    }
    let mut events = Vec::new();
    while engine.has_work() {
        engine.turn(&mut events).expect("the engine is well");
    }
    let failed = |event: &Event| match event {
        Event::Finished { reason: FinishReason::Failed(why), .. } => why.contains("NaN"),
        Event::Finished { .. } | Event::Token { .. } => false,
    };
    assert!(events.len() == 2 && events.iter().all(failed), "{events:?}");
}
