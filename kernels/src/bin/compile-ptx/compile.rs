//! One source to one PTX text and its record.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::Variant;
use kernels::manifest::{Entry, File};
use kernels::source::{self, Unit};

use crate::resources;
use crate::toolchain::{Tools, run};
use crate::{ToolError, ptx};

/// Every source must take this in: it holds the layout checks of the parameter structs.
const LAYOUT_CHECK: &str = "include/params_check.h";

/// A compiled source.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) text: String,
    pub(crate) record: File,
}

/// Compiles all, two at a time, in the order given.
pub(crate) fn all(crate_dir: &Path, tools: &Tools, units: &[Unit]) -> Result<Vec<Built>, ToolError> {
    let scratch = Scratch::new()?;
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(unit) = units.get(i) else { return };
                    let built = one(crate_dir, tools, unit, &scratch.0);
                    results.lock().expect("no thread panics while it holds this").push((i, built));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panicked");
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, built)| built).collect()
}

fn flags(variant: Variant) -> Vec<String> {
    let (arch, target) = match variant {
        Variant::Sm89 => ("compute_89", 89),
        Variant::Sm120a => ("compute_120a", 120),
    };
    let mut flags: Vec<String> =
        ["-ptx", "-O3", "-std=c++17", "-lineinfo", "-Werror=all-warnings", "-Iinclude"].map(str::to_owned).into();
    flags.push(format!("-arch={arch}"));
    flags.push(format!("-DSM120_TARGET={target}"));
    flags
}

/// Targets that a variant is assembled for: the card it is for, and for the portable one the two other families.
fn assembled(variant: Variant) -> &'static [&'static str] {
    match variant {
        Variant::Sm89 => &["sm_89", "sm_90", "sm_120a"],
        Variant::Sm120a => &["sm_120a"],
    }
}

fn one(crate_dir: &Path, tools: &Tools, unit: &Unit, scratch: &Path) -> Result<Built, ToolError> {
    let name = unit.ptx_name();
    let inputs = source::inputs(crate_dir, &unit.source)?;
    if !inputs.iter().any(|file| file == LAYOUT_CHECK) {
        let what = format!("must include {LAYOUT_CHECK} (through entry.cuh)");
        return Err(ToolError::Rule { file: unit.source.clone(), what });
    }
    let flags = flags(unit.variant);
    let raw = scratch.join(&name);
    let mut nvcc = tools.command("nvcc");
    nvcc.current_dir(crate_dir).args(&flags).arg("-o").arg(&raw).arg(&unit.source);
    run(&mut nvcc, "nvcc", &unit.source, "pass --nvcc, or leave it out")?;
    let text = std::fs::read_to_string(&raw).map_err(|cause| ToolError::Io { path: raw.clone(), cause })?;
    let text = ptx::normalise(&text, crate_dir, &tools.root)
        .map_err(|what| ToolError::Rule { file: unit.source.clone(), what })?;
    std::fs::write(&raw, &text).map_err(|cause| ToolError::Io { path: raw.clone(), cause })?;

    let head = ptx::head(&text).map_err(|what| ToolError::Rule { file: name.clone(), what })?;
    if head.target != unit.variant.ptx_target() {
        let what = format!(".target: expected {}, got {}", unit.variant.ptx_target(), head.target);
        return Err(ToolError::Rule { file: name, what });
    }
    let mut entries = Vec::new();
    for found in head.entries {
        let (operation, suffix) = (unit.operation.name(), unit.variant.name());
        if !found.name.starts_with(operation) || !found.name.ends_with(&format!("_{suffix}")) {
            let what = format!("entry {}: expected {operation}[_form]_{suffix}", found.name);
            return Err(ToolError::Rule { file: unit.source.clone(), what });
        }
        entries.push(found);
    }
    for target in assembled(unit.variant) {
        let reports = resources::assemble(tools, &raw, target, &scratch.join(format!("{name}.{target}.cubin")))?;
        for entry in &mut entries {
            let report = reports.get(&entry.name).cloned().ok_or_else(|| ToolError::Rule {
                file: name.clone(),
                what: format!("the assembler reports nothing about entry {} for {target}", entry.name),
            })?;
            check(entry, target, &report).map_err(|what| ToolError::Rule { file: unit.source.clone(), what })?;
            entry.resources.insert((*target).to_owned(), report);
        }
    }
    let record = File {
        operation: unit.operation.name().to_owned(),
        variant: unit.variant.name().to_owned(),
        source: unit.source.clone(),
        source_sha256: source::hash(crate_dir, &inputs)?,
        inputs,
        ptx_sha256: source::text_hash(&text),
        flags,
        ptx_version: head.version,
        ptx_target: head.target,
        entries,
        ptx: name,
    };
    Ok(Built { text, record })
}

/// The rules that a kernel may not break on any target.
fn check(entry: &Entry, target: &str, r: &kernels::Resources) -> Result<(), String> {
    let name = &entry.name;
    if r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes > 0 {
        return Err(format!(
            "entry {name} on {target}: expected no spills and no local memory, got {} B stack, {} B spill stores, {} B spill loads",
            r.stack_bytes, r.spill_store_bytes, r.spill_load_bytes
        ));
    }
    let shared = entry.dynamic_shared_bytes + r.static_shared_bytes;
    if shared > kernels::params::SM120_MAX_SHARED_BYTES {
        return Err(format!(
            "entry {name} on {target}: shared memory: expected at most {} B, got {} static + {} dynamic",
            kernels::params::SM120_MAX_SHARED_BYTES,
            r.static_shared_bytes,
            entry.dynamic_shared_bytes
        ));
    }
    // Registers are given out per warp in steps of 8 per thread, out of 64K per SM.
    let registers = r.registers.div_ceil(8) * 8 * entry.threads.div_ceil(32) * 32;
    if registers > 65_536 {
        return Err(format!("entry {name} on {target}: registers of a block: expected at most 65536, got {registers}"));
    }
    Ok(())
}

/// A folder that goes away again.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, ToolError> {
        let path = std::env::temp_dir().join(format!("compile-ptx-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|cause| ToolError::Io { path: path.clone(), cause })?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder left in the temporary directory is not worth failing for.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kernels::Resources;

    use super::*;

    fn entry(threads: u32, dynamic_shared_bytes: u32) -> Entry {
        Entry {
            name: "k_sm89".to_owned(),
            threads,
            min_blocks_per_sm: None,
            parameter_bytes: 8,
            dynamic_shared_bytes,
            resources: BTreeMap::new(),
        }
    }

    #[test]
    fn what_a_block_cannot_have_is_refused() {
        let fits = Resources { registers: 128, static_shared_bytes: 1_376, ..Resources::default() };
        assert_eq!(check(&entry(512, 100_000), "sm_120a", &fits), Ok(()));
        let refused = |entry: Entry, r: Resources| check(&entry, "sm_120a", &r).unwrap_err();
        assert_eq!(
            refused(entry(512, 100_001), fits.clone()),
            "entry k_sm89 on sm_120a: shared memory: expected at most 101376 B, got 1376 static + 100001 dynamic"
        );
        assert_eq!(
            refused(entry(512, 0), Resources { registers: 129, ..fits.clone() }),
            "entry k_sm89 on sm_120a: registers of a block: expected at most 65536, got 69632"
        );
        assert_eq!(
            refused(entry(512, 0), Resources { stack_bytes: 16, spill_store_bytes: 4, ..fits }),
            "entry k_sm89 on sm_120a: expected no spills and no local memory, got 16 B stack, 4 B spill stores, \
             0 B spill loads"
        );
    }
}
