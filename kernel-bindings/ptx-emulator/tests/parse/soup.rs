//! Whatever the text, the parser answers; it never panics.

use crate::text;
use proptest::prelude::*;
use ptx_emulator::ir::Module;
use ptx_emulator::parse::{remove_statement, sync_points};

/// A text with something of everything.
const SEED: &str = include_str!("seed.ptx");

/// Words that PTX is made of.
const WORDS: &[&str] = &[
    ".version",
    "9.0",
    ".target",
    "sm_120a",
    ".address_size",
    "64",
    ".visible",
    ".entry",
    ".func",
    "k",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    ",",
    ";",
    ":",
    "|",
    "!",
    "@",
    "+",
    "-",
    "*",
    "/",
    "%",
    "?",
    "=",
    "~",
    "^",
    "&",
    "<<",
    ">>",
    "==",
    ".param",
    ".reg",
    ".pred",
    ".b8",
    ".b16",
    ".b32",
    ".b64",
    ".b128",
    ".u32",
    ".s64",
    ".f32",
    ".f16x2",
    ".bf16",
    ".v2",
    ".v4",
    ".v8",
    ".align",
    ".ptr",
    ".shared",
    ".global",
    ".const",
    ".local",
    ".extern",
    ".loc",
    ".file",
    ".section",
    ".pragma",
    ".branchtargets",
    ".maxntid",
    ".reqnctapercluster",
    "%r",
    "%r1",
    "%p1",
    "%rd1",
    "%f1",
    "%tid",
    ".x",
    "_",
    "L1",
    "$L__BB0_1",
    "WARP_SZ",
    "0",
    "1",
    "0x7fffffffffffffff",
    "18446744073709551615",
    "99999999999999999999",
    "0f3F800000",
    "0d3FF0000000000000",
    "1.5e300",
    "0f",
    "0x",
    "\"s\"",
    "// c\n",
    "/* c */",
    "/*",
    "\n",
    "add",
    "sub",
    "mul",
    "mad",
    "fma",
    "mov",
    "ld",
    "st",
    "atom",
    "red",
    "cvt",
    "setp",
    "selp",
    "bra",
    "brx",
    ".idx",
    "ret",
    "exit",
    "bar",
    "barrier",
    ".sync",
    ".arrive",
    ".red",
    "fence",
    "membar",
    "mbarrier",
    "cp",
    ".async",
    ".bulk",
    ".tensor",
    "mma",
    "ldmatrix",
    "shfl",
    "vote",
    "elect",
    "lop3",
    "call",
    ".aligned",
    ".m16n8k16",
    ".m99999999999n8k8",
    ".row",
    ".col",
    ".rn",
    ".ftz",
    ".sat",
    ".wide",
    ".lo",
    ".cc",
    ".to",
    ".nc",
    ".relaxed",
    ".gpu",
    ".cluster",
    ".shared::cta",
    ".mbarrier::complete_tx::bytes",
    ".L2::cache_hint",
    ".kind::mxf8f6f4",
    ".block_scale",
    ".scale_vec::1X",
    ".ue8m0",
    ".e4m3",
    ".trans",
    ".x4",
    ".parity",
];

fn exercise(text: &str) {
    let module = Module::parse(text);
    if let Err(error) = &module {
        assert!(error.line >= 1 && error.column >= 1 && !error.message.is_empty(), "{error:?}");
    }
    if let Ok(module) = module {
        for entry in &module.entries {
            assert_eq!(entry.ipdom.len(), entry.code.len());
            for instruction in &entry.code {
                assert!(!module.line_text(instruction.line).is_empty());
            }
        }
    }
    for point in sync_points(text) {
        let mutated = remove_statement(text, &point);
        assert_eq!(mutated.matches('\n').count(), text.matches('\n').count());
        if Module::parse(text).is_ok() {
            Module::parse(&mutated).unwrap_or_else(|e| panic!("without `{}`: {e}", point.text));
        }
    }
}

#[test]
fn the_seed_parses() {
    Module::parse(SEED).expect("the seed is sound");
    assert!(sync_points(SEED).len() >= 8);
    exercise(SEED);
}

#[test]
fn deep_nesting_ends_in_an_error() {
    for body in [
        "{".repeat(100_000),
        format!("mov.u32 %r0, {}1;", "(".repeat(100_000)),
        format!("mov.u32 %r0, {}1;", "-".repeat(100_000)),
        format!("mov.u32 %r0, {}1;", "1 ? 1 : ".repeat(100_000)),
        format!("mov.u32 %r0, 1{};", " + 1".repeat(100_000)),
        format!("mov.b32 %r0, {}%r1{};", "{".repeat(100_000), "}".repeat(100_000)),
        format!("add{} %r0;", ".x".repeat(100_000)),
        format!("mov.b32 %r0, {{{}}};", "%r1, ".repeat(100_000)),
        ".reg .b32 %big<4294967295>; mov.b32 %r0, %big4294967294;".to_string(),
    ] {
        exercise(&text("sm_120a", &body));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_characters(s in "\\PC{0,300}") {
        exercise(&s);
        exercise(&text("sm_120a", &s));
    }

    #[test]
    fn any_words(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        let spaced = words.join(" ");
        exercise(&spaced);
        exercise(&text("sm_120a", &spaced));
        exercise(&text("sm_89", &words.concat()));
    }

    #[test]
    fn a_sound_text_with_bytes_changed(edits in prop::collection::vec((0usize..SEED.len(), "[ -~\n]{0,2}", 0usize..3), 1..8)) {
        let mut bytes = SEED.as_bytes().to_vec();
        for (at, insert, remove) in edits {
            let at = at.min(bytes.len());
            let end = (at + remove).min(bytes.len());
            bytes.splice(at..end, insert.into_bytes());
        }
        exercise(&String::from_utf8(bytes).expect("ASCII stays ASCII"));
    }

    #[test]
    fn a_sound_text_with_lines_changed(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..3), 1..6)) {
        let mut lines: Vec<&str> = SEED.lines().collect();
        for (a, b, what) in edits {
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            match what {
                0 => lines.swap(a, b),
                1 => { lines.remove(a); }
                _ => lines.insert(a, lines[b]),
            }
        }
        exercise(&lines.join("\n"));
    }

    #[test]
    fn a_sound_text_cut_short(at in 0usize..SEED.len()) {
        exercise(&SEED[..at]);
        exercise(&SEED[at..]);
    }
}
