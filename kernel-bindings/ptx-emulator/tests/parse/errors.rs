//! What is refused inside a body, in which words, and where.

use crate::{FIRST, refuse};
use ptx_emulator::parse::ParseErrorKind::{self, Symbol, Syntax, Target, Type, Unsupported};

fn check(target: &str, cases: &[(&str, ParseErrorKind, &str)]) {
    for (body, kind, message) in cases {
        let error = refuse(target, body);
        assert_eq!((error.kind, error.message.as_str()), (*kind, *message), "{body}");
    }
}

#[test]
fn errors_say_where() {
    let error = refuse("sm_120a", "ret;\n\tadd.f32 %f0, %f1, %u2;");
    let expected =
        format!("line {}, column 20: type: `add.f32`: operand 3: expected a .f32 register, got %u2 (.u32)", FIRST + 1);
    assert_eq!(error.to_string(), expected);
    // Statements of one line are told apart by column; an element of a vector has a place of its own.
    let error = refuse("sm_120a", "{ ret; } st.global.v2.f32 [%rd0], {%f0, %s1};");
    assert_eq!((error.line, error.column), (FIRST, 41));
    assert_eq!(error.message, "`st.global.v2.f32`: operand 2: expected a .f32 register, got %s1 (.s64)");
}

#[test]
fn unknown_words() {
    check(
        "sm_120a",
        &[
            ("frobnicate.u32 %r0, %r1;", Unsupported, "`frobnicate.u32`: unknown instruction"),
            ("add.fast.u32 %r0, %r1, %r2;", Unsupported, "`add.fast.u32`: modifier .fast is not supported here"),
            ("add.sat.u32 %r0, %r1, %r2;", Unsupported, "`add.sat.u32`: modifier .sat is not supported for .u32"),
            (
                "fma.f32 %f0, %f1, %f2, %f3;",
                Unsupported,
                "`fma.f32`: expected a rounding modifier, one of .rn .rz .rm .rp, for .f32",
            ),
            (
                "sqrt.f32 %f0, %f1;",
                Unsupported,
                "`sqrt.f32`: expected a rounding modifier, one of .rn .rz .rm .rp, for .f32",
            ),
            ("ex2.approx.bf16 %h0, %h1;", Unsupported, "`ex2.approx.bf16`: expected modifier .ftz for .bf16"),
            ("popc.u32 %r0, %r1;", Unsupported, "`popc.u32`: type .u32 has no such form, expected one of .b32 .b64"),
            ("setp.lo.s32 %p0, %r0, %r1;", Unsupported, "`setp.lo.s32`: this comparison does not exist for .s32"),
            (
                "setp.u32 %p0, %r0, %r1;",
                Unsupported,
                "`setp.u32`: expected modifier .eq or .ne or .lt or .le or .gt or .ge or .lo or .ls or .hi or .hs or .equ or .neu or .ltu or .leu or .gtu or .geu or .num or .nan, got .u32",
            ),
            (
                "ld.global.ca.cb.u32 %r0, [%rd0];",
                Unsupported,
                "`ld.global.ca.cb.u32`: modifier .cb is not supported here",
            ),
            (
                "cvt.u32.f32 %r0, %f0;",
                Unsupported,
                "`cvt.u32.f32`: expected a rounding modifier, one of .rni .rzi .rmi .rpi",
            ),
            (
                "cvt.rn.e4m3x2.bf16x2 %h0, %r0;",
                Unsupported,
                "`cvt.rn.e4m3x2.bf16x2`: there is no conversion from .bf16x2 to .e4m3x2",
            ),
            (
                "cvt.rs.f16x2.f32 %r0, %f0, %f1, %r1;",
                Unsupported,
                "`cvt.rs.f16x2.f32`: stochastic rounding .rs is not supported",
            ),
            (
                "shfl.idx.b32 %r0, %r1, 0, 31;",
                Unsupported,
                "`shfl.idx.b32`: the form without .sync does not exist from sm_70 on",
            ),
            ("call foo;", Unsupported, "`call`: this instruction is not supported"),
            ("call.uni (%r0), foo, (%r1);", Unsupported, "`call.uni`: this instruction is not supported"),
            (
                ".param .b32 x;",
                Unsupported,
                "`.param` in a body: calls of device functions are not supported, inline them",
            ),
            (
                "tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f4,%f5}];",
                Unsupported,
                "`tex.2d.v4.f32.f32`: this instruction is not supported",
            ),
            ("wgmma.fence.sync.aligned;", Unsupported, "`wgmma.fence.sync.aligned`: this instruction is not supported"),
            (
                "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r1];",
                Unsupported,
                "`tcgen05.ld.sync.aligned.32x32b.x1.b32`: this instruction is not supported",
            ),
            (
                "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%rd0, {%r1, %r2}], [%r3];",
                Unsupported,
                "`cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes`: tensor copies are not supported",
            ),
            (
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%rd0], 16, [%r3], %h0;",
                Unsupported,
                "`cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster`: modifier .multicast::cluster is not supported",
            ),
            (
                "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%r0,%r1,%r2,%r3}, {%r0}, {%r0}, {%r0,%r1,%r2,%r3};",
                Unsupported,
                "`mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc`: the .popc form is not supported",
            ),
            (
                "mma.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3};",
                Unsupported,
                "`mma.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32`: there is no m16n8k32 of this kind with types .f32 .bf16 .bf16 .f32",
            ),
            ("mov.u32 %r0, %envreg3;", Unsupported, "`mov.u32`: operand 2: special register %envreg3 is not supported"),
            (".calltargets a;", Unsupported, "directive `.calltargets` is not supported"),
            (".extern .shared .b8 dyn[];", Unsupported, "`.extern dyn` inside an entry: declare it at module scope"),
        ],
    );
}

#[test]
fn what_the_target_lacks() {
    check(
        "sm_89",
        &[
            (
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0], 16, [%r3];",
                Target,
                "`cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`: needs .target sm_90 or later, got sm_89",
            ),
            (
                "mbarrier.try_wait.parity.shared.b64 %p0, [%r0], 0;",
                Target,
                "`mbarrier.try_wait.parity.shared.b64`: needs .target sm_90 or later, got sm_89",
            ),
            ("griddepcontrol.wait;", Target, "`griddepcontrol.wait`: needs .target sm_90 or later, got sm_89"),
            ("mov.u32 %r0, %cluster_ctarank;", Target, "`mov.u32`: needs .target sm_90 or later, got sm_89"),
            (
                "fma.rn.f32x2 %rd0, %rd1, %rd2, %rd3;",
                Target,
                "`fma.rn.f32x2`: needs .target sm_100 or later, got sm_89",
            ),
        ],
    );
    let scaled = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0 \
                  {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3}, %r6, {0,0}, %r7, {0,0};";
    let error = refuse("sm_120", scaled);
    assert_eq!(error.kind, Target);
    assert!(error.message.ends_with("needs .target one of sm_120a/sm_120f, got sm_120"), "{error}");
    let error = refuse("sm_90", "setmaxnreg.inc.sync.aligned.u32 232;");
    assert_eq!(
        error.message,
        "`setmaxnreg.inc.sync.aligned.u32`: needs .target one of sm_90a, sm_100a/sm_100f, sm_110a/sm_110f, \
         sm_120a/sm_120f, got sm_90"
    );
    // An older version of the text than the form.
    let text =
        crate::text("sm_89", "cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1;").replace(".version 9.0", ".version 7.8");
    let error = ptx_emulator::ir::Module::parse(&text.replace(".reg .b128 %q<4>;", "")).expect_err("too old");
    assert_eq!(error.message, "`cvt.rn.satfinite.e4m3x2.f32`: needs .version 8.1 or later, got 7.8");
    let error = ptx_emulator::ir::Module::parse(&text).expect_err("too old");
    assert_eq!(error.message, "`.reg .b128`: needs .version 8.3 or later, got 7.8");
}

#[test]
fn registers_and_types() {
    check(
        "sm_120a",
        &[
            ("add.u32 %r0, %r1, %nope;", Symbol, "`add.u32`: operand 3: `%nope` is not declared"),
            ("add.u32 %r16, %r1, %r2;", Symbol, "`add.u32`: operand 1: `%r16` is not declared"),
            ("add.u32 %r01, %r1, %r2;", Symbol, "`add.u32`: operand 1: `%r01` is not declared"),
            ("@%p9 ret;", Symbol, "guard: `%p9` is not declared"),
            ("@%r0 ret;", Type, "guard: expected a .pred register, got %r0 (.b32)"),
            ("bra nowhere;", Symbol, "label `nowhere` is not declared in this function"),
            ("brx.idx %r0, table;", Symbol, "branch table `table` is not declared in this function"),
            ("L: L: ret;", Symbol, "`L` is declared twice"),
            (".reg .b32 x; .reg .f32 x;", Symbol, "`x` is declared twice"),
            (".reg .b32 %r3;", Symbol, "`%r3` is declared twice"),
            (".reg .b32 %r1<5>;", Symbol, "`%r1` is declared twice"),
            (".reg .bf16 x;", Type, "`.reg`: .bf16 is not a register type"),
            (".reg .u32;", Syntax, "expected a register name, got `;`"),
            (".shared .b32 lv;", Symbol, "`lv` is declared twice"),
            ("add.u16 %h0, %h1, %r2;", Type, "`add.u16`: operand 3: expected a .u16 register, got %r2 (.b32)"),
            ("add.f32 %f0, %f1, %h2;", Type, "`add.f32`: operand 3: expected a .f32 register, got %h2 (.b16)"),
            ("mov.b64 %d0, %r1;", Type, "`mov.b64`: operand 2: expected a .b64 register, got %r1 (.b32)"),
            ("shl.b64 %rd0, %rd1, %rd2;", Type, "`shl.b64`: operand 3: expected a .u32 register, got %rd2 (.b64)"),
            (
                "ld.global.f32 %d0, [%rd0];",
                Type,
                "`ld.global.f32`: operand 1: expected a .f32 register, got %d0 (.f64)",
            ),
            (
                "fma.rn.bf16x2 %u0, %r1, %r2, %r3;",
                Type,
                "`fma.rn.bf16x2`: operand 1: expected a .bf16x2 register, got %u0 (.u32)",
            ),
            ("add.f32 %f0, %f1, 1;", Type, "`add.f32`: operand 3: expected a .f32 constant, got an integer"),
            (
                "add.u32 %r0, %r1, 1.5;",
                Type,
                "`add.u32`: operand 3: expected a .u32 constant, got a floating-point one",
            ),
            (
                "ld.global.u32 %r0, [%f0];",
                Type,
                "`ld.global.u32`: operand 2: expected a 32- or 64-bit integer register as address, got %f0 (.f32)",
            ),
            (
                "ld.global.u32 %r0, [sv];",
                Type,
                "`ld.global.u32`: operand 2: `sv` is a .shared variable, expected .global",
            ),
            (
                "cvta.shared.u64 %rd0, gv;",
                Type,
                "`cvta.shared.u64`: operand 2: expected a .shared variable or a register",
            ),
            ("mov.u32 %r0, gv;", Type, "`mov.u32`: operand 2: the address of `gv` is no .u32 value"),
            ("mov.u32 %r0, %clock64;", Type, "`mov.u32`: operand 2: expected a .u32 source, got %clock64 (.u64)"),
            (
                "mov.b32 {%h0, %h1}, {%h2, %h3};",
                Syntax,
                "`mov.b32`: only mov.b16, .b32, .b64 and .b128 pack or unpack, on one side",
            ),
            ("mov.b64 %rd0, {%h0, %h1, %h2};", Syntax, "`mov.b64`: a vector of 3 elements does not make .b64"),
            ("mov.b64 %rd0, {%h0, %h1};", Type, "`mov.b64`: operand 2: expected a .b32 register, got %h0 (.b16)"),
        ],
    );
}

#[test]
fn operands() {
    check(
        "sm_120a",
        &[
            ("add.u32 %r0, %r1;", Syntax, "`add.u32`: expected 3 operands, got 2"),
            ("bar.sync 0, 32, 1;", Syntax, "`bar.sync`: expected 1 to 2 operands, got 3"),
            ("bar.sync 16;", Syntax, "`bar.sync`: operand 1: expected a barrier from 0 to 15, got 16"),
            (
                "bar.sync 0, 100;",
                Syntax,
                "`bar.sync`: operand 2: expected a thread count that is a multiple of 32 up to 1024, got 100",
            ),
            ("add.u32 %r0, %r1, %r2", Syntax, "expected `,` or `;` after the operands of `add.u32`, got `}`"),
            ("add.u32 %r0, %r1 %r2;", Syntax, "expected `,` or `;` after the operands of `add.u32`, got `%r2`"),
            ("add.u32 _, %r1, %r2;", Syntax, "`add.u32`: operand 1: `_` is not allowed here"),
            ("add.u32 5, %r1, %r2;", Syntax, "`add.u32`: operand 1: expected a destination register"),
            ("mov.u32 %tid.x, %r2;", Syntax, "`mov.u32`: operand 1: expected a destination register, got `%tid`"),
            (
                "add.u32 %r0, %tid.x, 1;",
                Syntax,
                "`add.u32`: operand 2: special register %tid may only be read by mov and cvt",
            ),
            ("add.u32 %r0, !%r1, %r2;", Syntax, "`add.u32`: operand 2: negation is not allowed here"),
            ("ld.global.u32 %r0, %rd1;", Syntax, "`ld.global.u32`: operand 2: expected an address in brackets"),
            (
                "ld.global.u32 %r0, [64];",
                Syntax,
                "`ld.global.u32`: operand 2: an absolute address belongs to .local, not to .global",
            ),
            ("ld.global.u32 %r0, [%rd0-4];", Syntax, "expected `]` in the address, got `-`"),
            (
                "ld.param.u32 %r0, [pa+8];",
                Syntax,
                "`ld.param.u32`: operand 2: offset 8 is outside parameter `pa` of 8 bytes",
            ),
            (
                "ld.global.v2.f32 {%f0, %f1, %f2}, [%rd0];",
                Syntax,
                "`ld.global.v2.f32`: operand 1: expected a vector of 2 elements, got 3",
            ),
            ("ld.global.v4.f32 {_, _, _, _}, [%rd0];", Syntax, "`ld.global.v4.f32`: operand 1: every element is `_`"),
            (
                "ld.global.v4.f64 {%d0, %d1, %d2, %d3}, [%rd0+0], %rd1;",
                Syntax,
                "`ld.global.v4.f64`: expected 2 operands, got 3",
            ),
            (
                "ld.shared.v4.b64 {%rd0, %rd1, %rd2, %rd3}, [%r0];",
                Syntax,
                "`ld.shared.v4.b64`: a vector of 32 bytes needs a global address",
            ),
            ("ld.global.v8.b16 %h0, [%rd0];", Syntax, "`ld.global.v8.b16`: there is no vector of 8 x .b16"),
            (
                "lop3.b32 %r0, %r1, %r2, %r3, 256;",
                Syntax,
                "`lop3.b32`: operand 5: expected the look-up table, a constant from 0 to 255, got 256",
            ),
            (
                "lop3.b32 %r0, %r1, %r2, %r3, %r4;",
                Syntax,
                "`lop3.b32`: operand 5: expected the look-up table, a constant from 0 to 255, got another operand",
            ),
            (
                "cp.async.cg.shared.global [%r0], [%rd0], 8;",
                Syntax,
                "`cp.async.cg.shared.global`: operand 3: expected a copy size of 16 bytes, got 8",
            ),
            (
                "cp.async.ca.shared.global [%r0], [%rd0], 8, 9;",
                Syntax,
                "`cp.async.ca.shared.global`: operand 4: expected a source size of at most 8 bytes, got 9",
            ),
            (
                "cp.async.wait_group -1;",
                Syntax,
                "`cp.async.wait_group`: operand 1: expected the number of groups, a constant from 0 to 4294967295, got -1",
            ),
            (
                "cp.async.bulk.prefetch.L2.global [%rd0], 24;",
                Syntax,
                "`cp.async.bulk.prefetch.L2.global`: operand 2: expected a multiple of 16 bytes, got 24",
            ),
            (
                "mbarrier.init.shared.b64 [sv], 0;",
                Syntax,
                "`mbarrier.init.shared.b64`: operand 2: expected a count from 1 to 1048575, got 0",
            ),
            (
                "mbarrier.arrive.shared.b64 [sv];",
                Syntax,
                "`mbarrier.arrive.shared.b64`: operand 1: expected a register or `_` for the state",
            ),
            (
                "mbarrier.arrive.expect_tx.shared.b64 _, [sv];",
                Syntax,
                "`mbarrier.arrive.expect_tx.shared.b64`: expected 3 operands, got 2",
            ),
            (
                "mbarrier.arrive.release.shared.b64 _, [sv];",
                Syntax,
                "`mbarrier.arrive.release.shared.b64`: an ordering and a scope, .cta or .cluster, stand together or not at all",
            ),
            (
                "setmaxnreg.dec.sync.aligned.u32 41;",
                Syntax,
                "`setmaxnreg.dec.sync.aligned.u32`: expected a register count that is a multiple of 8, got 41",
            ),
            ("st.const.u32 [cv], 1;", Syntax, "`st.const.u32`: .const cannot be written"),
            ("ld.shared.nc.u32 %r0, [sv];", Syntax, "`ld.shared.nc.u32`: .nc belongs to a weak load from .global"),
            ("bra 5;", Syntax, "`bra`: operand 1: expected a label"),
            ("elect.sync %r0, -1;", Syntax, "`elect.sync`: operand 1: expected `d|p`"),
            ("mov.u32 %r0, 1 +;", Syntax, "expected a constant, got `;`"),
            ("mov.u32 %r0, (.f32)1;", Syntax, "constant expression: expected the cast .s64 or .u64, got .f32"),
            ("mov.f32 %f0, ~1.5;", Syntax, "constant expression: `~` needs an integer"),
            (
                "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0 {%f0,%f1,%f2,%f3}, \
                 {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3}, %r6, {0, 2}, %r7, {0, 0};",
                Syntax,
                "`mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0`: operand 6: \
                 expected a byte-id below 4 that is a multiple of 1 and a thread-id of at most 1",
            ),
        ],
    );
}
