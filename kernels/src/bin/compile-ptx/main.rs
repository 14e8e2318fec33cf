//! Compiles every CUDA source of this crate to the committed PTX and writes the manifest beside it.
//!
//! Needs a Linux x86-64 machine with `g++` (the compiler's preprocessor) and, for the first run without `--nvcc`, Python
//! with pip: the pinned compiler is unpacked from wheels into `target/`. No card, no system CUDA.

mod compile;
mod ptx;
mod resources;
mod toolchain;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use kernels::manifest::{FORMAT, Manifest};
use kernels::source::{SourceError, units};
use kernels::{Operation, Variant};
use thiserror::Error;

/// Compiles cuda/*.cu to ptx/*.ptx with the pinned compiler and records how in ptx/manifest.json.
#[derive(Debug, Parser)]
struct Arguments {
    /// Compare with the committed files instead of writing; exit 1 and name each one that differs.
    #[arg(long)]
    check: bool,
    /// Only this operation; the records of the others stay.
    #[arg(long, value_name = "OPERATION")]
    only: Option<String>,
    /// An unpacked nvcc of the pinned version, with ptxas and nvdisasm beside it.
    #[arg(long, value_name = "PATH")]
    nvcc: Option<PathBuf>,
}

/// Why the command failed.
#[derive(Debug, Error)]
pub(crate) enum ToolError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: std::io::Error },
    #[error("cannot start {program}: {cause}; {hint}")]
    Start { program: String, cause: std::io::Error, hint: &'static str },
    #[error("{program} failed on {what}:\n{output}")]
    Program { program: &'static str, what: String, output: String },
    #[error("compiler {path}: expected version {expected}, got {got}")]
    Version { path: PathBuf, expected: &'static str, got: String },
    #[error("operation: expected one of {known}, got {got:?}")]
    UnknownOperation { known: String, got: String },
    #[error("{file}: {what}")]
    Rule { file: String, what: String },
    #[error("the committed files differ from what the sources make: {0}; run compile-ptx without --check")]
    Stale(String),
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compile-ptx: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), ToolError> {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let only = match &arguments.only {
        Some(name) => Some(Operation::from_name(name).ok_or_else(|| ToolError::UnknownOperation {
            known: Operation::ALL.map(Operation::name).join(", "),
            got: name.clone(),
        })?),
        None => None,
    };
    let tools = match &arguments.nvcc {
        Some(path) => toolchain::Tools::existing(path)?,
        None => toolchain::Tools::pinned(crate_dir)?,
    };

    let all = units(crate_dir)?;
    let chosen: Vec<_> = all.iter().filter(|unit| only.is_none_or(|op| unit.operation == op)).cloned().collect();
    let built = compile::all(crate_dir, &tools, &chosen)?;

    let ptx_dir = crate_dir.join("ptx");
    let mut files: Vec<_> = match only {
        // Records of other operations stay as they are, provided that their source still exists.
        Some(_) => read_manifest(&ptx_dir)
            .map(|manifest| manifest.files)
            .unwrap_or_default()
            .into_iter()
            .filter(|file| {
                all.iter().any(|u| u.ptx_name() == file.ptx) && !chosen.iter().any(|u| u.ptx_name() == file.ptx)
            })
            .collect(),
        None => Vec::new(),
    };
    files.extend(built.iter().map(|unit| unit.record.clone()));
    files.sort_by(|a, b| a.ptx.cmp(&b.ptx));
    let manifest =
        Manifest { format: FORMAT, compiler: tools.compiler(), disassembler: tools.disassembler.clone(), files };

    let mut outputs: Vec<(String, String)> = built.into_iter().map(|unit| (unit.record.ptx, unit.text)).collect();
    let json = serde_json::to_string_pretty(&manifest).expect("strings and numbers serialise");
    outputs.push(("manifest.json".to_owned(), json + "\n"));
    outputs.push(("table.rs".to_owned(), table(&manifest)));
    let expected: Vec<&str> =
        manifest.files.iter().map(|file| file.ptx.as_str()).chain(["manifest.json", "table.rs"]).collect();
    let strays = strays(&ptx_dir, &expected)?;

    if arguments.check {
        let mut stale: Vec<String> = outputs
            .iter()
            .filter(|(name, text)| std::fs::read_to_string(ptx_dir.join(name)).ok().as_deref() != Some(text))
            .map(|(name, _)| format!("ptx/{name}"))
            .collect();
        stale.extend(strays.iter().map(|name| format!("ptx/{name} (no source makes it)")));
        if !stale.is_empty() {
            return Err(ToolError::Stale(stale.join(", ")));
        }
        println!("{} files equal the committed ones", outputs.len());
        return Ok(());
    }
    for (name, text) in &outputs {
        let path = ptx_dir.join(name);
        std::fs::write(&path, text).map_err(|cause| ToolError::Io { path, cause })?;
    }
    for name in &strays {
        let path = ptx_dir.join(name);
        std::fs::remove_file(&path).map_err(|cause| ToolError::Io { path, cause })?;
    }
    // Whoever reads the summary may stop early.
    let _ = std::io::stdout().write_all(summary(&manifest, only).as_bytes());
    Ok(())
}

fn read_manifest(ptx_dir: &Path) -> Option<Manifest> {
    serde_json::from_str(&std::fs::read_to_string(ptx_dir.join("manifest.json")).ok()?).ok()
}

/// Files of `ptx/` that nothing makes.
fn strays(ptx_dir: &Path, expected: &[&str]) -> Result<Vec<String>, ToolError> {
    let io = |cause| ToolError::Io { path: ptx_dir.to_owned(), cause };
    let mut names = Vec::new();
    for item in std::fs::read_dir(ptx_dir).map_err(io)? {
        let name = item.map_err(io)?.file_name().to_string_lossy().into_owned();
        if !expected.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The Rust table that embeds the PTX.
fn table(manifest: &Manifest) -> String {
    let mut text = String::from(
        "// Generated by compile-ptx.\nuse crate::{Operation, Variant};\n\n\
         #[rustfmt::skip]\npub(crate) const PTX: &[(Operation, Variant, &str)] = &[\n",
    );
    for file in &manifest.files {
        let operation = Operation::from_name(&file.operation).map(|op| format!("{op:?}"));
        let variant = Variant::ALL.into_iter().find(|v| v.name() == file.variant).map(|v| format!("{v:?}"));
        if let (Some(operation), Some(variant)) = (operation, variant) {
            text +=
                &format!("    (Operation::{operation}, Variant::{variant}, include_str!(\"../ptx/{}\")),\n", file.ptx);
        }
    }
    text + "];\n"
}

/// One line per kernel and assembled target.
fn summary(manifest: &Manifest, only: Option<Operation>) -> String {
    let mut text = String::new();
    for file in manifest.files.iter().filter(|file| only.is_none_or(|op| op.name() == file.operation)) {
        for entry in &file.entries {
            text += &format!("{}: {} threads, {} shared bytes\n", entry.name, entry.threads, entry.shared_bytes());
            for (target, r) in &entry.resources {
                let matrix: Vec<_> =
                    r.matrix_instructions.iter().map(|(opcode, count)| format!(", {count} {opcode}")).collect();
                text += &format!("  {target}: {} registers, {} barriers{}\n", r.registers, r.barriers, matrix.concat());
            }
        }
    }
    text
}
