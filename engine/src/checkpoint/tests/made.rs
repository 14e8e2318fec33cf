//! Checkpoints that this crate writes.

use super::*;
use crate::checkpoint::make::{Made, Make, Store};
use std::sync::atomic::{AtomicU64, Ordering};

fn make(dir: &Path, config: &ModelConfig, seed: u64, store: Store, shard_bytes: u64) -> Made {
    Make { config, seed, store, shard_bytes }.run(dir, |_| {}).unwrap()
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(dir).unwrap().map(read).collect()
}

/// One seed is one model: f32, bf16 and fp8/fp4 stores decode to equal values, in any number of shards.
#[test]
fn stores_hold_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let config = ModelConfig::tiny();
    let open = |name: &str, store, shard_bytes| {
        let dir = folder.path().join(name);
        let made = make(&dir, &config, 5, store, shard_bytes);
        let checkpoint = Checkpoint::open(&dir).unwrap();
        assert_eq!(made.bytes, checkpoint.bytes());
        assert_eq!(made.files, checkpoint.files().count());
        checkpoint
    };
    let released = open("released", Store::Fp8Fp4, 1 << 20);
    assert!(released.files().count() > 2);
    assert_eq!(*released.config(), config);
    let others = [open("bf16", Store::Bf16, 3 << 20), open("fp32", Store::Fp32, u64::MAX)];
    for tensor in released.tensors() {
        for other in &others {
            let other = other.tensor(tensor.name).unwrap();
            if tensor.storage == Storage::S64 {
                assert_eq!(tensor.bytes, other.bytes);
                continue;
            }
            let values = |tensor: &TensorView<'_>| tensor.f32s(0..tensor.rows()).unwrap();
            assert!(
                values(&tensor).iter().zip(values(&other)).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{}",
                tensor.name
            );
        }
    }
    // Every tensor is live: no constant, no zeros in place of one, and linear layers keep a variance of order 1.
    for tensor in released.tensors().filter(|tensor| tensor.storage != Storage::S64) {
        let values = tensor.f32s(0..tensor.rows()).unwrap();
        assert!(values.iter().all(|x| x.is_finite()));
        assert!(values.len() == 1 || values.iter().any(|x| *x != values[0]), "{}", tensor.name);
        if matches!(released.class(tensor.name), Some(Class::Linear | Class::Expert)) {
            let gain = values.iter().map(|x| x * x).sum::<f32>() / tensor.rows() as f32;
            // 1.44 in the mean; one block may have a gain of 1/2 or 2 for all of it.
            assert!((0.15..4.5).contains(&gain), "{}: {gain}", tensor.name);
        }
    }
    let ids = released.read_ids("layers.1.ffn.gate.tid2eid", config.experts).unwrap();
    assert!(ids.chunks_exact(3).all(|row| row[0] != row[1] && row[0] != row[2] && row[1] != row[2]));
    assert!((0..6).all(|expert| ids.contains(&expert)));
}

/// Block scales differ, so that a loader that exchanges them is noticed.
#[test]
fn scales_differ() {
    let folder = tempfile::tempdir().unwrap();
    let config = ModelConfig { layers: vec![LayerKind::Swa], num_hash_layers: 0, mtp_layers: 0, ..ModelConfig::mini() };
    let dir = folder.path().join("mini");
    make(&dir, &config, 1, Store::Fp8Fp4, u64::MAX);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    for name in ["layers.0.attn.wq_b.weight", "layers.0.attn.wkv.weight", "layers.0.ffn.experts.3.w2.weight"] {
        let tensor = checkpoint.tensor(name).unwrap();
        assert!(tensor.scale.iter().collect::<BTreeSet<_>>().len() > 1, "{name}: {:?}", tensor.scale);
    }
}

#[test]
fn same_seed_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let dir = |name: &str| folder.path().join(name);
    for (name, seed) in [("a", 1), ("b", 1), ("c", 2)] {
        make(&dir(name), &micro(), seed, Store::Fp8Fp4, 9000);
    }
    assert!(files(&dir("a")).len() > 3, "several shards, an index and a configuration");
    assert_eq!(files(&dir("a")), files(&dir("b")));
    assert_ne!(files(&dir("a")), files(&dir("c")));
    // Threads have no say either.
    rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(|| {
        make(&dir("d"), &micro(), 1, Store::Fp8Fp4, 9000);
    });
    assert_eq!(files(&dir("a")), files(&dir("d")));
    let names: BTreeSet<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, BTreeSet::from(["a", "b", "c", "d"].map(str::to_owned)), "nothing but the checkpoints");
}

/// The safetensors crate reads what is written here, and finds tensors aligned.
#[test]
fn another_reader_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("x");
    let made = make(&dir, &micro(), 1, Store::Fp8Fp4, 1);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let mut count = 0;
    for (name, bytes) in files(&dir).iter().filter(|(name, _)| name.ends_with(".safetensors")) {
        let parsed = safetensors::SafeTensors::deserialize(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (tensor, view) in parsed.iter() {
            count += 1;
            let offset = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            let size = view.data().len() / view.shape().iter().product::<usize>();
            assert_eq!(offset % size, 0, "{tensor}");
            if let Ok(here) = checkpoint.tensor(tensor) {
                assert_eq!(here.bytes, view.data(), "{tensor}");
            }
        }
    }
    assert_eq!(count, made.tensors);
}

#[test]
fn folders_are_respected() {
    let folder = tempfile::tempdir().unwrap();
    let run = |dir: &Path, config: &ModelConfig| {
        Make { config, seed: 1, store: Store::Bf16, shard_bytes: u64::MAX }.run(dir, |_| {})
    };
    let full = folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("notes"), "mine").unwrap();
    let text = run(&full, &micro()).unwrap_err().to_string();
    assert!(text.contains("full: expected a new or an empty folder, got a folder with files in it"), "{text}");
    assert!(run(&full.join("notes"), &micro()).is_err(), "a file is no folder");
    assert!(run(Path::new("/"), &micro()).is_err());
    let broken = ModelConfig { hidden_size: 33, ..micro() };
    assert!(run(&folder.path().join("new"), &broken).unwrap_err().to_string().contains("hidden_size"));
    assert_eq!(files(&full).keys().collect::<Vec<_>>(), ["notes"]);
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    run(&folder.path().join("empty"), &micro()).unwrap();
    run(&folder.path().join("deep/er"), &micro()).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("partial")), "{left:?}");
}

/// A killed run can remove nothing. The next one for the same folder does, and says so; it does not while the first lives.
#[test]
fn what_a_killed_run_left_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, left) = (folder.path().join("x"), folder.path().join(".x.partial"));
    let config = micro();
    let make = Make { config: &config, seed: 1, store: Store::Bf16, shard_bytes: u64::MAX };
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("model.safetensors"), "half").unwrap();
    let lock = std::fs::File::open(&left).unwrap();
    lock.lock().unwrap();
    let text = make.run(&dir, |_| {}).unwrap_err().to_string();
    assert!(text.contains("x: expected nobody else writing it, got another run that writes"), "{text}");
    assert_eq!(files(&left).len(), 1, "not this run's to remove");
    drop(lock);
    assert!(make.run(&dir, |_| {}).unwrap().cleared);
    assert!(!left.exists());
    assert!(Checkpoint::open(&dir).is_ok());
    assert!(!make.run(folder.path().join("y"), |_| {}).unwrap().cleared);
}

/// Of runs for the same folder at the same time one makes it, whichever; the others are refused.
#[test]
fn one_of_many_runs_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, config) = (folder.path().join("x"), micro());
    let run = || Make { config: &config, seed: 1, store: Store::Bf16, shard_bytes: 5000 }.run(&dir, |_| {});
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..6).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for refused in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).map(ToString::to_string) {
        assert!(
            refused.contains("nobody else writing it") || refused.contains("a new or an empty folder"),
            "{refused}"
        );
    }
    assert!(Checkpoint::open(&dir).is_ok());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A run that ends in the middle leaves nothing under the name.
#[test]
fn an_ended_run_leaves_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("x");
    let config = micro();
    let make = Make { config: &config, seed: 1, store: Store::Fp8Fp4, shard_bytes: 5000 };
    let written = AtomicU64::new(0);
    let stopped = std::panic::catch_unwind(|| {
        make.run(&dir, |bytes| {
            assert!(written.fetch_add(bytes, Ordering::Relaxed) < 20_000, "stopped on purpose");
            assert!(!dir.exists());
        })
    });
    assert!(stopped.is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let whole = AtomicU64::new(0);
    make.run(&dir, |bytes| _ = whole.fetch_add(bytes, Ordering::Relaxed)).unwrap();
    assert_eq!(whole.into_inner(), make.bytes());
}

#[test]
fn visit_reaches_every_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("x");
    make(&dir, &micro(), 1, Store::Fp8Fp4, u64::MAX);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let (bytes, count) = (AtomicU64::new(0), AtomicU64::new(0));
    let each = |_: TensorView<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<(), ()>(())
    };
    checkpoint.visit(|n| _ = bytes.fetch_add(n, Ordering::Relaxed), each).unwrap();
    assert_eq!((bytes.into_inner(), count.into_inner()), (checkpoint.bytes(), checkpoint.tensors().count() as u64));
    let stop = checkpoint.visit(|_| {}, |tensor| if tensor.name == "head.weight" { Err("stop") } else { Ok(()) });
    assert_eq!(stop, Err("stop"));
}
