//! A number that tells checkpoints apart without reading all of them.

use super::Checkpoint;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read at either end of a tensor.
const ENDS: usize = 4096;

impl Checkpoint {
    /// xxh3 over the configuration and, tensor by tensor, name, storage, shape, scales' length, and the first and last 4 KiB. Two
    /// servers that are to continue each other's texts compare it; it finds another model, seed or revision, not a flipped bit.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        for tensor in self.tensors() {
            hash.update(tensor.name.as_bytes());
            hash.update(tensor.storage.name().as_bytes());
            tensor.shape.iter().for_each(|n| hash.update(&n.to_le_bytes()));
            for bytes in [tensor.bytes, tensor.scale] {
                hash.update(&(bytes.len() as u64).to_le_bytes());
                hash.update(&bytes[..bytes.len().min(ENDS)]);
                hash.update(&bytes[bytes.len().saturating_sub(ENDS)..]);
            }
        }
        hash.digest()
    }
}

#[cfg(test)]
mod tests {
    use crate::checkpoint::Checkpoint;
    use crate::checkpoint::make::{Make, Store};
    use crate::config::ModelConfig;

    fn fingerprint(seed: u64, store: Store) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("checkpoint");
        Make { config: &ModelConfig::tiny(), seed, store, shard_bytes: 1 << 22 }.run(&dir, |_| ()).unwrap();
        Checkpoint::open(&dir).unwrap().fingerprint()
    }

    #[test]
    fn equal_checkpoints_alone_are_equal() {
        let first = fingerprint(1, Store::Fp8Fp4);
        assert_eq!(first, fingerprint(1, Store::Fp8Fp4));
        assert_ne!(first, fingerprint(2, Store::Fp8Fp4));
        assert_ne!(first, fingerprint(1, Store::Fp32));
    }
}
