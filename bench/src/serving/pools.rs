//! Pages of an engine's pools.

use super::{ModelArgs, ServingError};
use engine::geometry::CacheGeometry;
use engine::plan::{MemoryPlan, PlanRequest, WindowSizing};
use engine::pools::PoolSizes;

/// Window tokens per token of context, where nothing else is said.
pub const WINDOW_RATIO: f64 = 0.1;

impl ModelArgs {
    /// What `--cache-bytes` holds, shared out as `plan` does; without it, every request that runs at once with `context` tokens.
    ///
    /// # Errors
    /// Fewer bytes than one text of `context` tokens takes.
    pub(super) fn pools(&self, geometry: &CacheGeometry, context: u32) -> Result<PoolSizes, ServingError> {
        let shape = &geometry.shape;
        let Some(memory) = self.cache_bytes else {
            return Ok(PoolSizes {
                compressed_pages: self.max_running.saturating_mul(shape.compressed_pages(context)),
                window_pages: self
                    .max_running
                    .saturating_mul(shape.max_window_pages(self.max_batch_tokens.min(context))),
                request_slots: self.max_running,
            });
        };
        let request = self.request(memory, context);
        let one = shape.compressed_pages(context);
        match MemoryPlan::new(geometry, request) {
            Ok(plan) if plan.sizes.compressed_pages >= one => Ok(plan.sizes),
            Ok(_) | Err(_) => Err(ServingError::Choice {
                option: "--cache-bytes",
                expected: format!(
                    "at least {} B (a text of {context} tokens, the window of a step, rings of {} requests)",
                    MemoryPlan::bytes_of(geometry, &request, one),
                    self.max_running
                ),
                got: format!("{memory} B"),
            }),
        }
    }

    fn request(&self, memory: u64, context: u32) -> PlanRequest {
        PlanRequest {
            memory,
            not_cache: 0,
            max_requests: self.max_running,
            max_batch_tokens: self.max_batch_tokens.min(context),
            window: WindowSizing::Ratio(WINDOW_RATIO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2e::E2eArgs;
    use engine::config::ModelConfig;
    use engine::geometry::CacheShape;

    fn sizes(options: &[&str], context: u32) -> Result<PoolSizes, String> {
        let args = E2eArgs::parse(&[&["--preset", "tiny", "--device", "host"], options].concat()).model;
        let config = ModelConfig::tiny();
        let numerics = args.numerics(&config).expect("formats");
        let shape = CacheShape::ring_per_request(config.window, false);
        let geometry = CacheGeometry::new(&config, shape, numerics.kv, numerics.index_k, 0).expect("a cache");
        let sizes = args.pools(&geometry, context).map_err(|error| error.to_string())?;
        let bytes: u64 = geometry.buffers(sizes).iter().map(|buffer| buffer.bytes).sum();
        if let Some(budget) = args.cache_bytes {
            let of = |pages| MemoryPlan::bytes_of(&geometry, &args.request(budget, context), pages);
            assert_eq!(bytes, of(sizes.compressed_pages));
            assert!(bytes <= budget && budget < of(sizes.compressed_pages + 1), "{bytes} of {budget}");
        }
        Ok(sizes)
    }

    /// Prefix pages beyond what runs, and as few as one text needs, to the byte.
    #[test]
    fn pools_follow_bytes() {
        let usual = sizes(&["--max-running", "4"], 1024).expect("pools");
        let large = sizes(&["--max-running", "4", "--cache-bytes", "64MiB"], 1024).expect("pools");
        assert!(large.compressed_pages > 4 * usual.compressed_pages, "{large:?} beside {usual:?}");
        assert_eq!(large.request_slots, 4);
        let refused = sizes(&["--max-running", "4", "--cache-bytes", "1KiB"], 1024).expect_err("too small");
        let words = refused.strip_prefix("--cache-bytes: expected at least ").expect("names the option");
        let least: u64 = words.split(' ').next().and_then(|bytes| bytes.parse().ok()).expect("bytes");
        assert!(words.ends_with("got 1024 B") && words.contains("a text of 1024 tokens"), "{refused}");
        let exactly = |bytes: u64| sizes(&["--max-running", "4", "--cache-bytes", &bytes.to_string()], 1024);
        assert_eq!(exactly(least).expect("one text").compressed_pages, usual.compressed_pages / 4);
        assert!(exactly(least - 1).is_err());
    }
}
