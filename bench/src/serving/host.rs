//! Host memory under the prefix cache: what the command line says about it, and what becomes of that.

use super::ServingError;
use crate::plan::parse_bytes;
use clap::{Args, ValueEnum};
use engine::engine::Bell;
use engine::geometry::CacheGeometry;
use engine::host_tier::{HostTier, HostTierConfig};
use engine::scheduler::{HostConfig, HostPolicy};
use serde::Serialize;

/// Bytes of host memory, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum HostBytes {
    /// No host cache.
    Off,
    /// So many on every rank.
    Bytes(u64),
}

/// `off`, or a number of bytes as [`parse_bytes`] reads it.
pub fn parse_host_bytes(text: &str) -> Result<HostBytes, String> {
    match text {
        "off" => Ok(HostBytes::Off),
        _ => parse_bytes(text).map(HostBytes::Bytes).map_err(|error| format!("{error}, or `off`")),
    }
}

/// When a text is copied to host memory, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostCachePolicy {
    /// as soon as a page of it is full
    WriteThrough,
    /// when a second request has been resumed from it
    WriteThroughSelective,
    /// when the prefix cache is about to drop it
    WriteBack,
}

impl From<HostCachePolicy> for HostPolicy {
    fn from(policy: HostCachePolicy) -> Self {
        match policy {
            HostCachePolicy::WriteThrough => HostPolicy::WriteThrough,
            HostCachePolicy::WriteThroughSelective => HostPolicy::WriteThroughSelective,
            HostCachePolicy::WriteBack => HostPolicy::WriteBack,
        }
    }
}

/// Options of the host cache.
#[derive(Debug, Clone, Args)]
pub struct HostArgs {
    /// Host memory of every rank for beginnings of texts that the card has lost, such as 8GiB; staging buffers included.
    #[arg(long, default_value = "off", value_name = "BYTES|off", value_parser = parse_host_bytes)]
    pub host_cache: HostBytes,
    /// When a text is copied there.
    #[arg(long, value_enum, default_value_t = HostCachePolicy::WriteThrough)]
    pub host_cache_policy: HostCachePolicy,
    /// Sum every page that is copied there, and compare before it is used; a text that differs is computed again.
    #[arg(long)]
    pub verify_host_cache: bool,
}

/// The tier of a rank and what the scheduler knows of it.
#[derive(Debug, Clone)]
pub(super) struct Host {
    tier: HostTierConfig,
    pub(super) config: HostConfig,
}

impl HostArgs {
    /// Slots for these bytes. `None` where there are to be none.
    ///
    /// # Errors
    /// Fewer bytes than one text of one page takes.
    pub(super) fn host(&self, geometry: &CacheGeometry, bell: &Bell) -> Result<Option<Host>, ServingError> {
        let HostBytes::Bytes(budget) = self.host_cache else { return Ok(None) };
        let tier = within(budget, geometry)?;
        let tier = HostTierConfig { verify: self.verify_host_cache, bell: bell.clone(), ..tier };
        let slot_bytes = tier.slot_bytes(geometry).map_err(|error| ServingError::HostCache(error.to_string()))?;
        let config = HostConfig { slot_bytes, ..HostConfig::new(tier.sizes, self.host_cache_policy.into()) };
        Ok(Some(Host { tier, config }))
    }
}

/// The tier that fits.
///
/// # Errors
/// Fewer bytes than one text of one page takes.
pub fn within(budget: u64, geometry: &CacheGeometry) -> Result<HostTierConfig, ServingError> {
    HostTierConfig::within(budget, geometry).map_err(|needed| ServingError::Choice {
        option: "--host-cache",
        expected: format!("at least {needed} B (a compressed page, a window page, staging buffers), or off"),
        got: format!("{budget} B"),
    })
}

impl Host {
    /// The tier of one rank.
    pub(super) fn start(&self, geometry: &CacheGeometry) -> Result<HostTier, ServingError> {
        HostTier::new(geometry, &self.tier).map_err(|error| ServingError::HostCache(error.to_string()))
    }
}
