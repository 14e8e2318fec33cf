//! Directives, parameters, variables, sections, reports.

use crate::text;
use ptx_emulator::ir::*;
use ptx_emulator::parse::{ParseError, ParseErrorKind};

const HEAD: &str = ".version 9.0\n.target sm_120a\n.address_size 64\n";

fn module(rest: &str) -> Module {
    Module::parse(&format!("{HEAD}{rest}")).unwrap_or_else(|e| panic!("{rest}: {e}"))
}

fn refused(rest: &str) -> ParseError {
    match Module::parse(&format!("{HEAD}{rest}")) {
        Ok(_) => panic!("`{rest}` is accepted"),
        Err(error) => error,
    }
}

#[test]
fn parameters_lie_as_in_a_c_struct() {
    let m = module(
        ".visible .entry k(\n.param .u8 a,\n.param .u64 .ptr .global .align 16 b,\n.param .align 16 .b8 c[20],\n\
         .param .u16 d,\n.param .f32 e,\n.param .align 4 .b8 f[3]\n)\n{ ret; }",
    );
    let e = m.entry("k").expect("the entry");
    let layout: Vec<(u32, u32, u32)> = e.params.iter().map(|p| (p.offset, p.size, p.align)).collect();
    assert_eq!(layout, [(0, 1, 1), (8, 8, 8), (16, 20, 16), (36, 2, 2), (40, 4, 4), (44, 3, 4)]);
    assert_eq!(e.param_bytes, 47);
    assert!(m.entry("other").is_none());
    assert_eq!(module(".entry k() { }").entries[0].param_bytes, 0);
}

#[test]
fn directives_of_an_entry() {
    let m = module(
        ".visible .entry k()\n.reqntid 128, 2\n.minnctapersm 1\n.maxnreg 168\n.reqnctapercluster 2\n.explicitcluster\n\
         .maxclusterrank 8\n{ .pragma \"nounroll\"; ret; }\n.entry j() .maxntid 64, 1, 1 .blocksareclusters .reqntid 64\n\
         .reqnctapercluster 1, 1, 1 { }",
    );
    let k = &m.entries[0];
    assert_eq!((k.reqntid, k.maxntid, k.minnctapersm), (Some([128, 2, 1]), None, Some(1)));
    assert_eq!((k.maxnreg, k.reqnctapercluster, k.maxclusterrank), (Some(168), Some([2, 1, 1]), Some(8)));
    assert!(k.explicit_cluster && !k.blocks_are_clusters);
    assert!(m.entries[1].blocks_are_clusters);
}

#[test]
fn variables_of_the_module() {
    let m = module(
        ".global .align 4 .b8 a[6] = {1, 2, 0xff, -1};\n.const .f32 b[2][2] = {{1.5, 0f40000000}, {3}};\n\
         .extern .shared .align 128 .b8 dyn[];\n.visible .global .v2 .u64 c;\n.global .u16 d[] = {1, 2, 3}, e = 7;\n\
         .shared .b32 s[4];",
    );
    let get = |name: &str| m.variables.iter().find(|v| v.name == name).expect("the variable");
    let a = get("a");
    assert_eq!((a.space, a.align, a.size), (Space::Global, 4, 6));
    assert_eq!(a.init.as_deref(), Some(&[1, 2, 0xff, 0xff, 0, 0][..]));
    let floats: Vec<u8> = [1.5f32, 2.0, 3.0, 0.0].iter().flat_map(|f| f.to_le_bytes()).collect();
    assert_eq!(get("b").init, Some(floats));
    let dynamic = get("dyn");
    assert_eq!((dynamic.space, dynamic.align, dynamic.size, dynamic.external), (Space::Shared, 128, 0, true));
    assert_eq!((get("c").size, get("c").align), (16, 16));
    assert_eq!((get("d").size, get("e").init.clone()), (6, Some(vec![7, 0])));
    assert_eq!((get("s").space, get("s").size, get("s").align), (Space::Shared, 16, 4));
}

#[test]
fn debug_information() {
    let m = module(
        "\t.file\t1 \"/src/a.cu\"\n\t.file 2 \"b.cuh\", 1700000000, 123\n.visible .entry k()\n{\n\t.loc 1 10 5\n\
         bar.sync 0;\n\t.loc\t2 7 9, function_name $L__info_string0, inlined_at 1 12 3\nbar.sync 1;\n\
         .loc 2 8 9, function_name $L__info_string0+10, inlined_at 1 12 3\nret;\n}\n\
         .section .debug_str\n{\n$L__info_string0:\n.b8 95,90\n.b8 0\n}\n\t.section\t.debug_loc\t{\t}\n",
    );
    assert_eq!(m.files, [(1, "/src/a.cu".to_string()), (2, "b.cuh".to_string())]);
    let locs: Vec<Option<(u32, u32)>> = m.entries[0].code.iter().map(|i| i.loc).collect();
    assert_eq!(locs, [Some((1, 10)), Some((2, 7)), Some((2, 8))]);
}

#[test]
fn lines_for_reports() {
    let m = module(".entry k()\r\n{\n\tbar.sync 0; // wait\r\n}");
    let line = m.entries[0].code[0].line;
    assert_eq!((line, m.line_text(line)), (6, "bar.sync 0; // wait"));
    assert_eq!((m.line_text(1), m.line_text(0), m.line_text(7), m.line_text(8)), (".version 9.0", "", "}", ""));
}

#[test]
fn headers() {
    let parse = |text: &str| Module::parse(text);
    let m = parse("// by hand\n.version 8.7\n.target sm_120, debug\n.address_size 64\n\0").expect("a module");
    assert_eq!((m.version, m.target), ((8, 7), Target { sm: 120, suffix: TargetSuffix::None }));
    for (text, message) in [
        ("", "line 1, column 1: syntax: expected `.version` as the first directive, got the end of the text"),
        (".version 5.0", "line 1, column 10: target: `.version 5.0`: expected 6.0 to 9.x"),
        (
            ".version 9.0 .target sm_60",
            "line 1, column 22: target: `.target sm_60`: expected an architecture from sm_70 to sm_121a",
        ),
        (".version 8.6\n.target sm_120a", "line 2, column 9: target: `.target sm_120a`: needs .version 8.7 or later"),
        (
            ".version 9.0\n.target compute_90",
            "line 2, column 9: syntax: expected a target like sm_120a, got `compute_90`",
        ),
        (
            ".version 9.0 .target sm_90 .address_size 32",
            "line 1, column 44: unsupported: `.address_size 32`: expected 64",
        ),
    ] {
        let got = parse(text).expect_err(text).to_string();
        assert_eq!(got, message);
    }
}

#[test]
fn module_errors() {
    use ParseErrorKind::*;
    for (rest, kind, message) in [
        (".visible .func f() { ret; }", Unsupported, "`.func f`: device functions are not supported, inline them"),
        (
            ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);",
            Unsupported,
            "`.func vprintf`: device functions are not supported, inline them",
        ),
        (".entry k();", Unsupported, "entry `k` has no body: declarations are not supported"),
        (".entry k() { } .entry k() { }", Symbol, "entry `k` is declared twice"),
        (".global .u32 k; .entry k() { }", Symbol, "entry `k` is declared twice"),
        (".global .u32 x; .const .u32 x;", Symbol, "`x` is declared twice"),
        (".entry k(.param .u32 a, .param .u32 a) { }", Symbol, "`a` is declared twice"),
        (".entry k(.reg .u32 a) { }", Syntax, "expected `.param` in the parameter list, got `.reg`"),
        (".entry k(.param .b8 a[]) { }", Syntax, "parameter `a` has no size"),
        (
            ".entry k(.param .b8 a[40000]) { }",
            Syntax,
            "parameter `a`: expected at most 32764 parameter bytes, got 40000",
        ),
        (".entry k() .noreturn { }", Unsupported, "directive `.noreturn` of an entry is not supported"),
        (".entry k() .maxntid 0 { }", Syntax, "`.maxntid`: expected sizes of at least 1, got [0, 1, 1]"),
        (".entry k() { .shared .b8 s[49153]; }", Syntax, "`s`: expected at most 49152 static shared bytes, got 49153"),
        (
            ".entry k() { .shared .b8 s[40000]; .shared .b8 t[20000]; }",
            Syntax,
            "entry `k`: expected at most 49152 static shared bytes, got 60000",
        ),
        (".global .align 3 .b8 a[4];", Syntax, "`.align 3`: expected a power of two up to 4096"),
        (".global .b8 a[2] = {1, 2, 3};", Syntax, "`a`: initialiser is longer than its 2 bytes"),
        (".shared .b32 a = 1;", Syntax, "`a`: only .global and .const have initialisers"),
        (".global .u64 a = b;", Unsupported, "`a`: the address of `b` as initial value is not supported"),
        (".global .u32 a = 1.5;", Type, "`a`: floating-point value for .u32"),
        (".global .u32 a[];", Syntax, "`a[]`: only an .extern array may be unsized"),
        (".extern .global .u32 a;", Unsupported, "`.extern a`: variables of other modules are not supported"),
        (".global .texref t;", Unsupported, "type `.texref` of a variable is not supported"),
        (".alias f, g;", Unsupported, "directive `.alias` is not supported"),
        (".tex .u32 t;", Unsupported, "directive `.tex` is not supported"),
        (
            ".global .b8 a[99999999999999];",
            Syntax,
            "array size 99999999999999: expected 0 to 1099511627776 bytes in all",
        ),
        ("add.u32 a, b, c;", Syntax, "expected a directive at module scope, got `add`"),
        (".entry k() { ret;", Syntax, "expected `}` at the end of the body, got the end of the text"),
        (".version 9.0", Syntax, "`.version` must stand once, at the head of the text"),
        ("/* open", Syntax, "comment `/*` is not closed"),
        (".pragma \"a\n\";", Syntax, "string is not closed on its line"),
        (".global .u32 a = 0x;", Syntax, "`0x` is not a number"),
        (".global .u32 a = 08;", Syntax, "`08` is not a 64-bit integer"),
        (".global .u32 a = 1/0;", Syntax, "constant expression: division by zero"),
        (".global .u32 \u{e4};", Syntax, "character outside printable ASCII"),
    ] {
        let error = refused(rest);
        assert_eq!((error.kind, error.message.as_str()), (kind, message), "{rest}");
    }
    let error = Module::parse(".version 7.8\n.target sm_89\n.address_size 64\n.entry k() .explicitcluster { }")
        .expect_err("no clusters");
    assert_eq!(error.message, "`.explicitcluster`: needs .target sm_90 or later, got sm_89");
}

#[test]
fn committed_texts_parse() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    let mut folders =
        vec![root.join("cases"), root.join("instructions"), root.join("tests"), root.join("../../kernels/ptx")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|e| e.expect("a folder entry").path()) {
            if path.is_dir() {
                // One case shows what a refused text looks like.
                if !path.ends_with("unsupported") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "ptx") {
                let text = std::fs::read_to_string(&path).expect("a text");
                if let Err(error) = Module::parse(&text) {
                    panic!("{}: {error}", path.display());
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen} texts");
}

#[test]
fn a_long_text_is_read_quickly() {
    // About 200 KB, the size of a large kernel; it takes some milliseconds.
    let body = "fma.rn.f32 %f1, %f2, %f3, %f4;\n@%p1 ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5+16];\n".repeat(2400);
    let text = text("sm_120a", &body);
    assert!(text.len() > 200_000);
    let start = std::time::Instant::now();
    let module = Module::parse(&text).expect("the text parses");
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(module.entries[0].code.len(), 4800);
    assert!(seconds < 1.0, "{seconds} s: expected well under 0.1 s on an idle machine");
}
