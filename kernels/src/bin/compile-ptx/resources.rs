//! What the assembler and the disassembler say about a PTX file on one target.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::Resources;

use crate::ToolError;
use crate::toolchain::{Tools, run};

/// Assembles `ptx` for `target` and returns the report of every entry. A warning is an error: C7508, for example, says
/// that `setmaxnreg` was dropped.
pub(crate) fn assemble(
    tools: &Tools,
    ptx: &Path,
    target: &str,
    cubin: &Path,
) -> Result<BTreeMap<String, Resources>, ToolError> {
    let what = format!("{} for {target}", ptx.file_name().unwrap_or_default().to_string_lossy());
    let mut ptxas = tools.command("ptxas");
    ptxas.args(["-v", "-O3", &format!("-arch={target}"), "-o"]).arg(cubin).arg(ptx);
    let report = run(&mut ptxas, "ptxas", &what, "it belongs beside nvcc")?;
    if report.contains("warning") {
        return Err(ToolError::Program {
            program: "ptxas",
            what: format!("{what} (a warning is an error)"),
            output: report,
        });
    }
    let code = run(tools.command("nvdisasm").arg("-c").arg(cubin), "nvdisasm", &what, "it belongs beside nvcc")?;
    let mut counts = matrix_instructions(&code);
    let mut resources = parse_report(&report);
    for (name, entry) in &mut resources {
        entry.matrix_instructions = counts.remove(name).unwrap_or_default();
    }
    Ok(resources)
}

/// Reads `ptxas -v`: a line that names the entry, then its properties and what it used.
fn parse_report(report: &str) -> BTreeMap<String, Resources> {
    let mut out = BTreeMap::new();
    let mut current: Option<(String, Resources)> = None;
    for line in report.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1).and_then(|rest| rest.split('\'').next()) {
            out.extend(current.replace((name.to_owned(), Resources::default())));
        } else if let Some((_, r)) = &mut current {
            for item in line.split(',') {
                let words: Vec<&str> = item.split_whitespace().collect();
                for pair in words.windows(2) {
                    let Ok(number) = pair[0].parse::<u32>() else { continue };
                    let after = item.split(pair[0]).nth(1).unwrap_or_default().trim();
                    match after {
                        "bytes stack frame" => r.stack_bytes = number,
                        "bytes spill stores" => r.spill_store_bytes = number,
                        "bytes spill loads" => r.spill_load_bytes = number,
                        "bytes smem" => r.static_shared_bytes = number,
                        "bytes lmem" => r.stack_bytes = r.stack_bytes.max(number),
                        "registers" => r.registers = number,
                        "barriers" => r.barriers = number,
                        _ => {}
                    }
                }
            }
        }
    }
    out.extend(current);
    out
}

/// Counts the opcodes of the matrix units (`HMMA`, `QMMA`, `OMMA`, `IMMA`, `DMMA`) by function.
fn matrix_instructions(code: &str) -> BTreeMap<String, BTreeMap<String, u32>> {
    let mut out: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
    let mut function = String::new();
    for line in code.lines() {
        if let Some(name) = line.strip_prefix(".text.").and_then(|rest| rest.strip_suffix(':')) {
            function = name.to_owned();
            continue;
        }
        let Some((_, instruction)) = line.split_once("*/") else { continue };
        let opcode = instruction.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default();
        let family = opcode.split('.').next().unwrap_or_default();
        if family.len() == 4 && family.ends_with("MMA") {
            *out.entry(function.clone()).or_default().entry(opcode.to_owned()).or_default() += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_two_entries() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'a' for 'sm_120a'\n\
            ptxas info    : Function properties for a\n\
            \x20   8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 40 registers, used 2 barriers, 8 bytes cumulative stack size, 4096 bytes smem\n\
            ptxas info    : Compile time = 11.327 ms\n\
            ptxas info    : Compiling entry function 'b' for 'sm_120a'\n\
            \x20   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 0 barriers, 400 bytes cmem[0]\n";
        let parsed = parse_report(report);
        let a = &parsed["a"];
        assert_eq!((a.stack_bytes, a.spill_store_bytes, a.spill_load_bytes), (8, 4, 12));
        assert_eq!((a.registers, a.barriers, a.static_shared_bytes), (40, 2, 4096));
        assert_eq!((parsed["b"].registers, parsed["b"].static_shared_bytes), (255, 0));
    }

    #[test]
    fn matrix_opcodes_are_counted_by_function() {
        let code = ".text.a:\n  /*0000*/  HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n  /*0010*/  @P0 QMMA.SF.16832.F32 R4, R8 ;\n\
                    .text.b:\n  /*0000*/  HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n  /*0010*/  IMAD.MOV R1, R2 ;\n";
        let counts = matrix_instructions(code);
        assert_eq!(counts["a"].len(), 2);
        assert_eq!(counts["a"]["QMMA.SF.16832.F32"], 1);
        assert_eq!(counts["b"]["HMMA.16816.F32.BF16"], 1);
    }
}
