//! Agreement with the assembler, instruction by instruction.

use ptx_emulator::ir::Module;
use ptx_emulator::parse::ParseErrorKind;

const VERDICTS: &str = include_str!("assembler-verdicts.txt");
const TARGETS: [&str; 4] = ["sm_89", "sm_90a", "sm_120", "sm_120a"];
const TYPES: [&str; 17] = [
    "b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "f16x2", "f32",
    "f64",
];

fn module(target: &str, instruction: &str) -> String {
    let registers: String = TYPES.iter().map(|t| format!(".reg .{t} {t}_<10>;\n")).collect();
    format!(
        ".version 9.0\n.target {target}\n.address_size 64\n.global .align 16 .b8 gv[256];\n.const .align 16 .b8 cv[256];\n\
         .shared .align 16 .b8 sv[1024];\n.extern .shared .align 16 .b8 dyn[];\n\
         .visible .entry k(.param .u64 pa, .param .align 8 .b8 pb[64])\n{{\n.reg .pred p<8>;\n{registers}\
         .local .align 8 .b8 lv[64];\n{instruction}\nLEND: ret;\n}}\n"
    )
}

#[test]
fn the_assembler_agrees() {
    let mut seen = [0usize; 3];
    let mut wrong = Vec::new();
    for line in VERDICTS.lines().filter(|l| !l.starts_with('#')) {
        let (verdicts, instruction) = line.split_once(' ').expect("verdicts and an instruction");
        for (target, verdict) in TARGETS.iter().zip(verdicts.chars()) {
            let got = Module::parse(&module(target, instruction));
            let ok = match verdict {
                '+' => got.is_ok(),
                '-' | 'x' => got.is_err(),
                other => panic!("verdict `{other}`"),
            };
            seen[usize::from(verdict == '-') + 2 * usize::from(verdict == 'x')] += 1;
            if !ok {
                let got = got.map(|_| "accepted").map_err(|e| e.to_string());
                wrong.push(format!("{target} {verdict} {instruction}: {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {seen:?}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(seen[0] > 5000 && seen[1] > 3000, "the list is there: {seen:?}");
}

#[test]
fn a_form_that_another_target_has_is_refused_as_target() {
    // Where the assembler accepts an instruction for sm_120a and not for sm_89, the reason is the target.
    let mut checked = 0;
    for line in VERDICTS.lines().filter(|l| l.starts_with("-") && !l.starts_with('#')) {
        let (verdicts, instruction) = line.split_once(' ').expect("verdicts and an instruction");
        if !verdicts.ends_with('+') {
            continue;
        }
        let error = Module::parse(&module("sm_89", instruction)).expect_err(instruction);
        assert_eq!(error.kind, ParseErrorKind::Target, "{instruction}: {error}");
        assert!(error.message.contains("needs .target"), "{error}");
        checked += 1;
    }
    assert!(checked > 300, "{checked}");
}
