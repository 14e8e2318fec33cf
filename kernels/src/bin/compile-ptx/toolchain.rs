//! The pinned compiler: where it is, which version it must be, how to get it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ToolError;

/// The only accepted compiler. PTX ISA 9.0, driver 580 or newer; PTX of a later compiler can be refused by that driver.
pub(crate) const VERSION: &str = "13.0.88";

/// Wheels that together make a working compiler without a system CUDA. The disassembler of 13.5 reads 13.0 code.
const WHEELS: [&str; 6] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-nvdisasm==13.5.37",
];

/// Compiler, assembler and disassembler of one folder.
#[derive(Debug)]
pub(crate) struct Tools {
    /// Folder with `nvcc`, `ptxas`, `nvdisasm`.
    bin: PathBuf,
    /// Root of the unpacked toolkit, whose headers appear in line information.
    pub(crate) root: PathBuf,
    /// Name and version of the disassembler.
    pub(crate) disassembler: String,
}

impl Tools {
    /// Takes an unpacked compiler after checking its version.
    pub(crate) fn existing(nvcc: &Path) -> Result<Tools, ToolError> {
        let nvcc = nvcc.canonicalize().map_err(|cause| ToolError::Io { path: nvcc.to_owned(), cause })?;
        let bin = nvcc.parent().unwrap_or(Path::new("/")).to_owned();
        let root = bin.parent().unwrap_or(Path::new("/")).to_owned();
        let mut tools = Tools { bin, root, disassembler: String::new() };
        for program in ["nvcc", "ptxas"] {
            let got = tools.version(program)?;
            if got != VERSION {
                return Err(ToolError::Version { path: tools.bin.join(program), expected: VERSION, got });
            }
        }
        tools.disassembler = format!("nvdisasm {}", tools.version("nvdisasm")?);
        Ok(tools)
    }

    /// The compiler under `target/`, unpacked there by pip on first use.
    pub(crate) fn pinned(crate_dir: &Path) -> Result<Tools, ToolError> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| crate_dir.parent().unwrap_or(crate_dir).join("target"), PathBuf::from);
        let folder = target.join(format!("nvcc-{VERSION}"));
        let nvcc = folder.join("nvidia/cu13/bin/nvcc");
        if !nvcc.is_file() {
            // Unpack beside and rename: an interrupted download leaves nothing that looks finished.
            let partial = target.join(format!("nvcc-{VERSION}.partial"));
            if partial.exists() {
                std::fs::remove_dir_all(&partial).map_err(|cause| ToolError::Io { path: partial.clone(), cause })?;
            }
            eprintln!("unpacking nvcc {VERSION} into {} (about 280 MB, once)", folder.display());
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target"]);
            pip.arg(&partial).args(WHEELS);
            run(
                &mut pip,
                "pip",
                &folder.display().to_string(),
                "python3 with pip fetches the pinned wheels; or pass --nvcc",
            )?;
            if folder.exists() {
                std::fs::remove_dir_all(&folder).map_err(|cause| ToolError::Io { path: folder.clone(), cause })?;
            }
            std::fs::rename(&partial, &folder).map_err(|cause| ToolError::Io { path: folder.clone(), cause })?;
        }
        Tools::existing(&nvcc)
    }

    /// `nvcc 13.0.88`.
    pub(crate) fn compiler(&self) -> String {
        format!("nvcc {VERSION}")
    }

    /// A command of this toolchain, in a locale- and environment-independent setting.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        let mut path = vec![self.bin.clone(), self.root.join("nvvm/bin")];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        command.env("PATH", std::env::join_paths(path).unwrap_or_default());
        command.env("LC_ALL", "C");
        for variable in ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "CPATH", "CPLUS_INCLUDE_PATH"] {
            command.env_remove(variable);
        }
        command
    }

    fn version(&self, program: &'static str) -> Result<String, ToolError> {
        let text = run(self.command(program).arg("--version"), program, "--version", "pass --nvcc, or leave it out")?;
        Ok(text.split(", V").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap_or("unknown").to_owned())
    }
}

/// Runs to the end and returns stdout and stderr together; a failure carries them.
pub(crate) fn run(
    command: &mut Command,
    program: &'static str,
    what: &str,
    hint: &'static str,
) -> Result<String, ToolError> {
    let output = command.output().map_err(|cause| ToolError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        cause,
        hint,
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(ToolError::Program { program, what: what.to_owned(), output: text });
    }
    Ok(text)
}
