//! Host memory under the prefix cache: what the command line says about it, and what becomes of that.

use super::ServingError;
use crate::plan::parse_bytes;
use clap::{Args, ValueEnum};
use engine::engine::Bell;
use engine::geometry::CacheGeometry;
use engine::host_tier::{DiskConfig, HostTier, HostTierConfig};
use engine::scheduler::{HostConfig, HostPolicy};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use transfer::fault::Faults;

/// Bytes of host memory, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum HostBytes {
    /// No host cache.
    Off,
    /// So many on every rank.
    Bytes(u64),
}

/// As [`parse_host_bytes`] reads it.
impl fmt::Display for HostBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostBytes::Off => f.write_str("off"),
            HostBytes::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// `off`, or a number of bytes as [`parse_bytes`] reads it.
pub fn parse_host_bytes(text: &str) -> Result<HostBytes, String> {
    match text {
        "off" => Ok(HostBytes::Off),
        _ => parse_bytes(text).map(HostBytes::Bytes).map_err(|error| format!("{error}, or `off`")),
    }
}

/// A folder and bytes in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostDisk {
    /// Folder.
    pub dir: PathBuf,
    /// Bytes of every rank.
    pub bytes: u64,
}

/// `DIR:BYTES`, bytes as [`parse_bytes`] reads them.
pub fn parse_host_disk(text: &str) -> Result<HostDisk, String> {
    let parts = text.rsplit_once(':').filter(|(dir, _)| !dir.is_empty());
    let (dir, bytes) =
        parts.ok_or_else(|| format!("expected a folder and bytes such as /var/cache/sm120:64GiB, got `{text}`"))?;
    Ok(HostDisk { dir: dir.into(), bytes: parse_bytes(bytes)? })
}

impl HostDisk {
    /// Slots in that folder.
    ///
    /// # Errors
    /// Fewer bytes than one text of one page takes.
    pub fn within(&self, geometry: &CacheGeometry) -> Result<DiskConfig, ServingError> {
        DiskConfig::within(self.dir.clone(), self.bytes, geometry).map_err(|needed| ServingError::Choice {
            option: "--host-cache-disk",
            expected: format!("at least {needed} B (a compressed page, a window page)"),
            got: format!("{} B", self.bytes),
        })
    }

    /// Refuses what is no folder.
    fn check(&self) -> Result<(), ServingError> {
        let refused = |got| {
            let got = format!("{}, {got}", self.dir.display());
            ServingError::Choice { option: "--host-cache-disk", expected: "a folder".into(), got }
        };
        match std::fs::metadata(&self.dir) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(refused("which is none".to_owned())),
            Err(error) => Err(refused(error.to_string())),
        }
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
    /// A folder for more of them, and bytes of every rank there, such as /var/cache/sm120:64GiB.
    #[arg(long, value_name = "DIR:BYTES", value_parser = parse_host_disk)]
    pub host_cache_disk: Option<HostDisk>,
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
    /// Fewer bytes than one text of one page takes; a disk without memory before it, a folder that is none.
    pub(super) fn host(
        &self,
        geometry: &CacheGeometry,
        bell: &Bell,
        faults: &Arc<Faults>,
    ) -> Result<Option<Host>, ServingError> {
        let HostBytes::Bytes(budget) = self.host_cache else {
            return match &self.host_cache_disk {
                None => Ok(None),
                Some(_) => Err(ServingError::Choice {
                    option: "--host-cache-disk",
                    expected: "--host-cache beside it: pages come to the disk through memory".into(),
                    got: "--host-cache off".into(),
                }),
            };
        };
        let tier = within(budget, geometry)?;
        if let Some(disk) = &self.host_cache_disk {
            disk.check()?;
        }
        let disk = self.host_cache_disk.as_ref().map(|disk| disk.within(geometry)).transpose()?;
        let (verify, bell, faults) = (self.verify_host_cache, bell.clone(), Arc::clone(faults));
        let tier = HostTierConfig { disk, verify, bell, faults, ..tier };
        let slot_bytes = tier.slot_bytes(geometry).map_err(|error| ServingError::HostCache(error.to_string()))?;
        let policy = self.host_cache_policy.into();
        let config = HostConfig { slot_bytes, on_disk: tier.on_disk(), ..HostConfig::new(tier.slots(), policy) };
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
    pub(super) fn start(&self, geometry: &CacheGeometry, rank: usize) -> Result<HostTier, ServingError> {
        let tier = HostTierConfig { name: format!("host copies {rank}"), ..self.tier.clone() };
        HostTier::new(geometry, &tier).map_err(|error| ServingError::HostCache(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &str) -> String {
        let words = ["--preset", "tiny", "--device", "host"].into_iter().chain(options.split_whitespace());
        let model = crate::e2e::E2eArgs::parse(&words.collect::<Vec<_>>()).model;
        let config = engine::config::ModelConfig::tiny();
        let numerics = model.numerics(&config).expect("formats of the model");
        let shape = engine::geometry::CacheShape::ring_per_request(config.window, false);
        let geometry =
            CacheGeometry::new(&config, shape, numerics.kv, numerics.index_k, 0).expect("sizes of the model");
        let host = model.host.host(&geometry, &Bell::new(), &Arc::new(Faults::none()));
        match host.and_then(|host| host.map_or(Ok(()), |host| host.start(&geometry, 0).map(drop))) {
            Ok(()) => "taken".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_folder_and_bytes() {
        let of = |dir: &str, bytes| Ok(HostDisk { dir: dir.into(), bytes });
        assert_eq!(parse_host_disk("/a:b:2KiB"), of("/a:b", 2048));
        for text in ["", "/a", ":5", "/a:", "/a:x"] {
            assert!(parse_host_disk(text).is_err(), "{text}");
        }
    }

    /// Each by its reason, before weights are loaded.
    #[test]
    fn disks_that_cannot_be_used_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (dir, file) = (folder.path().display(), folder.path().join("file"));
        std::fs::write(&file, "").expect("written");
        let file = file.display();
        let gone = folder.path().join("host-cache-1-0.slots");
        std::fs::write(&gone, "").expect("written");
        assert_eq!(refused(&format!("--host-cache 10MiB --host-cache-disk {dir}:4MiB")), "taken");
        assert!(!gone.exists(), "what a killed process left behind");
        for (options, why) in [
            (format!("--host-cache-disk {dir}:1GiB"), "expected --host-cache beside it".to_owned()),
            (
                format!("--host-cache 10MiB --host-cache-disk {file}:1GiB"),
                format!("a folder, got {file}, which is none"),
            ),
            (format!("--host-cache 10MiB --host-cache-disk {dir}/no:1GiB"), format!("a folder, got {dir}/no, No such")),
            (
                format!("--host-cache 10MiB --host-cache-disk {dir}:0"),
                "(a compressed page, a window page), got 0 B".into(),
            ),
            ("--host-cache 10MiB --host-cache-disk /proc:4MiB".into(), "host slots in /proc/host-cache-".into()),
        ] {
            let got = refused(&options);
            assert!(got.contains(&why), "{options}: {got}");
        }
        let got = refused(&format!("--host-cache 10MiB --host-cache-disk {dir}:100TB"));
        assert!(got.starts_with("host cache: host slots in ") && got.contains(" B: "), "{got}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "nothing but the file of the test");
    }
}
