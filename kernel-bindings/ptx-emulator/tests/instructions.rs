//! Runs every file of `instructions/`: one instruction or form each, with a table of operands and results in its head.
//!
//! The results were derived without the emulator (`instructions/derive/`). Thread i of one block works on row i; every
//! operand and result has a slot of 8 bytes. `-` is a result that does not matter. A `tolerance` line allows
//! approximate functions to differ from the exact value by the bound of the ISA.

use ptx_emulator::ir::{Module, Type};
use ptx_emulator::num::formats;
use ptx_emulator::{LaunchConfig, Machine, MachineConfig};
use std::fmt::Write;
use std::path::Path;

struct Column {
    ty: String,
}

struct Table {
    inputs: Vec<Column>,
    outputs: Vec<Column>,
    rows: Vec<(Vec<u64>, Vec<Option<u64>>)>,
    tolerance: Option<Tolerance>,
}

/// `2 ulp`, `rel 2^-22 abs 2^-22`, `... in bf16`.
#[derive(Default)]
struct Tolerance {
    ulp: i64,
    rel: f64,
    abs: f64,
    format: Option<Type>,
}

impl Tolerance {
    fn parse(text: &str) -> Self {
        let power = |word: &str| 2f64.powi(word.strip_prefix("2^").unwrap().parse().unwrap());
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut out = Tolerance::default();
        let mut i = 0;
        while i + 1 < words.len() {
            match (words[i], words[i + 1]) {
                (count, "ulp") => out.ulp = count.parse().unwrap(),
                ("rel", bound) => out.rel = power(bound),
                ("abs", bound) => out.abs = power(bound),
                ("in", "f16") => out.format = Some(Type::F16),
                ("in", "bf16") => out.format = Some(Type::BF16),
                other => panic!("tolerance {other:?}"),
            }
            i += 2;
        }
        out
    }

    fn allows(&self, ty: &str, got: u64, want: u64) -> bool {
        if let Some(format) = self.format {
            // One or two halves.
            return (0..if ty == "b32" { 2 } else { 1 }).all(|half| {
                let part = |x: u64| formats::decode((x >> (16 * half)) as u16, format) as f64;
                self.close(part(got), part(want))
            });
        }
        match ty {
            "f32" => {
                let (g, w) = (f32::from_bits(got as u32), f32::from_bits(want as u32));
                // Same sign, so the bits count units.
                let ulps = (got as i64 - want as i64).abs() <= self.ulp && g.is_finite() && w.is_finite();
                ulps || self.close(g as f64, w as f64)
            }
            "f64" => self.close(f64::from_bits(got), f64::from_bits(want)),
            _ => got == want,
        }
    }

    fn close(&self, got: f64, want: f64) -> bool {
        let bound = self.abs.max(self.rel * want.abs());
        (got.is_nan() && want.is_nan())
            || (got == want && got.is_sign_negative() == want.is_sign_negative())
            || (want.is_finite() && want != 0.0 && (got - want).abs() <= bound)
    }
}

fn columns(text: &str) -> Vec<Column> {
    let types = text.split_whitespace().map(|word| word.split_once(':').expect("name:type").1.to_owned());
    types.map(|ty| Column { ty }).collect()
}

fn table(text: &str) -> Table {
    let mut head = text.lines().take_while(|line| line.starts_with("//")).map(|line| line[2..].trim());
    let mut tolerance = None;
    let mut derived = false;
    let mut card = false;
    let (inputs, outputs) = loop {
        let line = head.next().expect("a table line");
        derived |= line.starts_with("derived: ");
        card |= line.starts_with("confirmed on a card: ");
        if let Some(bound) = line.strip_prefix("tolerance: ") {
            tolerance = Some(Tolerance::parse(bound));
        }
        if let Some(line) = line.strip_prefix("table:") {
            let (inputs, outputs) = line.split_once("->").expect("inputs -> outputs");
            break (columns(inputs), columns(outputs));
        }
    };
    assert!(derived && card, "the head says how the results were derived and which card confirmed them");
    let rows = head
        .map(|line| {
            let (left, right) = line.split_once("->").expect("operands -> results");
            let hex = |word: &str| u64::from_str_radix(word, 16).expect("hex");
            let ins: Vec<u64> = left.split_whitespace().map(hex).collect();
            let outs: Vec<Option<u64>> =
                right.split_whitespace().map(|word| (word != "-").then(|| hex(word))).collect();
            assert_eq!((ins.len(), outs.len()), (inputs.len(), outputs.len()), "columns of a row");
            (ins, outs)
        })
        .collect();
    Table { inputs, outputs, rows, tolerance }
}

fn bytes_of(ty: &str) -> usize {
    match ty {
        "pred" => 4,
        _ => match ty.trim_start_matches(|c: char| c.is_alphabetic()) {
            "8" => 1,
            "16" => 2,
            "64" => 8,
            _ => 4,
        },
    }
}

/// Runs one file with one seed; the error lists what differs.
fn run(path: &Path, seed: u64) -> Result<usize, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let table = table(&text);
    let module = Module::parse(&text).map_err(|e| e.to_string())?;
    let mut machine = Machine::new(MachineConfig { max_instructions: 1_000_000, ..MachineConfig::checked(seed) });
    let rows = table.rows.len();
    assert!(rows > 0, "{}: no rows", path.display());
    let alloc = |machine: &mut Machine, columns: usize, name: &str| machine.alloc((rows * columns * 8) as u64, name);
    let input = alloc(&mut machine, table.inputs.len().max(1), "in").map_err(|e| e.to_string())?;
    let output = alloc(&mut machine, table.outputs.len(), "out").map_err(|e| e.to_string())?;
    let mut image = Vec::new();
    for (ins, _) in &table.rows {
        for value in ins {
            image.extend(value.to_le_bytes());
        }
    }
    machine.write(input, &image).map_err(|e| e.to_string())?;
    let mut params = input.to_le_bytes().to_vec();
    params.extend(output.to_le_bytes());
    let config = LaunchConfig::new([1, 1, 1], [rows as u32, 1, 1]);
    let report = machine.launch(&module, "t", &config, &params).map_err(|e| e.to_string())?;
    let mut problems = String::new();
    for finding in &report.findings {
        writeln!(problems, "  {finding}").unwrap();
    }
    let mut got = vec![0; rows * table.outputs.len() * 8];
    machine.read(output, &mut got).map_err(|e| e.to_string())?;
    let mut compared = 0;
    for (row, (ins, outs)) in table.rows.iter().enumerate() {
        for (column, want) in outs.iter().enumerate() {
            let Some(want) = *want else { continue };
            compared += 1;
            let ty = &table.outputs[column].ty;
            let at = (row * table.outputs.len() + column) * 8;
            let mut slot = [0; 8];
            slot[..bytes_of(ty)].copy_from_slice(&got[at..at + bytes_of(ty)]);
            let value = u64::from_le_bytes(slot);
            let allowed = table.tolerance.as_ref().is_some_and(|tolerance| tolerance.allows(ty, value, want));
            if value != want && !allowed {
                writeln!(problems, "  row {row} {ins:x?} column {column}: got {value:#x}, expected {want:#x}").unwrap();
            }
        }
    }
    if problems.is_empty() { Ok(compared) } else { Err(problems) }
}

fn files() -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the instruction files")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_instruction_gives_the_derived_results() {
    let files = files();
    assert!(files.len() > 600, "{} instruction files", files.len());
    let mut failed = 0;
    let mut compared = 0;
    for path in &files {
        for seed in 0..2 {
            match run(path, seed) {
                Ok(count) => compared += count,
                Err(problems) => {
                    failed += 1;
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    let lines: Vec<&str> = problems.lines().take(4).collect();
                    println!("{name} (seed {seed}):\n{}", lines.join("\n"));
                    break;
                }
            }
        }
    }
    assert_eq!(failed, 0, "of {} files failed; {compared} results compared", files.len());
}

#[test]
fn a_wrong_result_is_seen() {
    // The runner itself: a table that claims 1 + 2 = 4.
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions/add_u32.ptx");
    let text = std::fs::read_to_string(source).expect("add_u32");
    let (first, rest) = text.split_once("-> ").map(|(a, b)| (a, b.split_once("-> ").expect("a row"))).expect("a table");
    let wrong = format!("{first}-> {}-> 0badc0de{}", rest.0, &rest.1[8..]);
    let path = folder.path().join("wrong.ptx");
    std::fs::write(&path, wrong).expect("written");
    let problems = run(&path, 0).expect_err("a mismatch");
    assert!(problems.contains("expected 0xbadc0de"), "{problems}");
}
