//! Values that nothing wrote, and lanes that do not take part.

use crate::{case, case_with};
use ptx_emulator::FindingClass::*;

#[test]
fn poison_reaches_what_matters() {
    case(32, "st.global.u32 [%rd4], %r9;").finds(Uninitialized, "st.global.u32");
    case(32, "setp.eq.u32 %p1, %r9, 3;\n@%p1 bra $l;\nst.global.u32 [%rd4], 1;\n$l:").finds(Uninitialized, "@%p1 bra");
    case(1, "add.s64 %rd6, %rd5, 8;\nld.global.u32 %r4, [%rd6];").finds(Uninitialized, "ld.global.u32");
    case(32, "mov.u32 %r4, 1;\nshfl.sync.idx.b32 %r5, %r4, %r9, 31, -1;").finds(Uninitialized, "shfl.sync");
}

#[test]
fn poison_that_goes_nowhere_is_fine() {
    case(32, "add.u32 %r5, %r9, 1;\nst.global.u32 [%rd4], %r1;").clean(&[0, 1, 2]);
    // The upper half was never written, and is masked away.
    case(32, "mov.b32 %r4, {%h0, %h1};\nand.b32 %r5, %r4, 0;\nadd.u32 %r5, %r5, %r1;\nst.global.u32 [%rd4], %r5;")
        .clean(&[0, 1, 2]);
    case(32, "cvt.u16.u32 %h0, %r1;\nmov.b32 %r4, {%h0, %h1};\nand.b32 %r5, %r4, 65535;\nst.global.u32 [%rd4], %r5;")
        .clean(&[0, 1, 2]);
    case(32, "cvt.u16.u32 %h0, %r1;\nmov.b32 %r4, {%h0, %h1};\nst.global.u32 [%rd4], %r4;")
        .finds(Uninitialized, "st.global.u32");
    case(32, "shl.b32 %r4, %r9, 8;\nand.b32 %r4, %r4, 255;\nor.b32 %r4, %r4, %r1;\nst.global.u32 [%rd4], %r4;")
        .clean(&[0, 1, 2]);
    case(32, "prmt.b32 %r4, %r1, %r9, 0x3210;\nst.global.u32 [%rd4], %r4;").clean(&[0, 1, 2]);
    case(32, "lop3.b32 %r4, %r1, %r9, 0, 0xf0;\nst.global.u32 [%rd4], %r4;").clean(&[0, 1, 2]);
    case(32, "xor.b32 %r4, %r9, %r9;\nst.global.u32 [%rd4], %r4;").finds(Uninitialized, "st.global.u32");
}

#[test]
fn one_lane_is_enough() {
    let body = "setp.ne.u32 %p1, %r1, 5;\n@%p1 mov.u32 %r9, 7;\nst.global.u32 [%rd4], %r9;";
    case(32, body).finds(Uninitialized, "st.global.u32");
    assert_eq!(case(32, body).run(0).findings[0].place.lane, Some(5));
    case(32, "setp.ne.u32 %p1, %r1, 5;\n@%p1 mov.u32 %r9, 7;\n@!%p1 mov.u32 %r9, 8;\nst.global.u32 [%rd4], %r9;")
        .clean(&[7, 7, 7, 7, 7, 8, 7]);
}

#[test]
fn memory_that_nothing_wrote() {
    let shared = ".shared .align 16 .b8 s[256];";
    let read = "mov.u32 %r4, s;\nshl.b32 %r5, %r1, 2;\nadd.u32 %r4, %r4, %r5;\nld.shared.u32 %r6, [%r4];\n";
    case_with(32, shared, &format!("{read}st.global.u32 [%rd4], %r6;")).finds(Uninitialized, "st.global.u32");
    // A value that passes through shared memory takes its poison along.
    let pass = "mov.u32 %r4, s;\nst.shared.u32 [%r4], %r9;\nld.shared.u32 %r6, [%r4];\nst.global.u32 [%rd1], %r6;";
    case_with(1, shared, pass).finds(Uninitialized, "st.global.u32");
    let bytes = "mov.u32 %r4, s;\nst.shared.u8 [%r4], 1;\nst.shared.u8 [%r4+1], 2;\nld.shared.u16 %h0, [%r4];\n\
                 cvt.u32.u16 %r6, %h0;\nst.global.u32 [%rd1], %r6;";
    case_with(1, shared, bytes).clean(&[0x201]);
    let half = "mov.u32 %r4, s;\nst.shared.u8 [%r4], 1;\nld.shared.u16 %h0, [%r4];\ncvt.u32.u16 %r6, %h0;\n\
                st.global.u32 [%rd1], %r6;";
    case_with(1, shared, half).finds(Uninitialized, "st.global.u32");
}

#[test]
fn matrix_operands() {
    let mma = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5}, {%r6}, \
               {%f4, %f5, %f6, %f7};\nst.global.f32 [%rd4], %f0;";
    let zero = "mov.b32 %r4, 0;\nmov.b32 %r5, 0;\nmov.f32 %f4, 0f40000000;\nmov.f32 %f5, %f4;\nmov.f32 %f6, %f4;\n\
                mov.f32 %f7, %f4;\n";
    case(32, &format!("{zero}mov.b32 %r6, 0;\n{mma}")).clean(&[0x4000_0000; 32]);
    case(32, &format!("{zero}{mma}")).finds(Uninitialized, "mma.sync");
}

#[test]
fn a_warp_wide_instruction_in_half_a_warp() {
    let zero = "mov.b32 %r4, 0;\nmov.b32 %r5, 0;\nmov.b32 %r6, 0;\nmov.f32 %f4, 0f00000000;\n";
    let mma = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5}, {%r6}, \
               {%f4, %f4, %f4, %f4};\n";
    case(32, &format!("{zero}setp.lt.u32 %p1, %r1, 16;\n@!%p1 bra $l;\n{mma}$l:")).finds(PartialWarp, "mma.sync");
    case(32, &format!("{zero}setp.lt.u32 %p1, %r1, 16;\n@%p1 {mma}")).finds(PartialWarp, "mma.sync");
    // Half a warp that has exited is half a warp, too.
    case(32, &format!("{zero}setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $l;\n{mma}$l:")).finds(PartialWarp, "mma.sync");
    case(16, &format!("{zero}{mma}")).finds(PartialWarp, "mma.sync");
    case(32, &format!("{zero}{mma}")).clean(&[0]);
    let shared = ".shared .align 16 .b8 s[256];";
    let load =
        "mov.u32 %r4, s;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];";
    case_with(32, shared, load).finds(PartialWarp, "ldmatrix");
}

#[test]
fn lanes_that_do_not_take_part() {
    // Lane i reads lane i + 16, but only the first 16 execute it.
    let body = "setp.ge.u32 %p1, %r1, 16;\n@%p1 bra $l;\nshfl.sync.bfly.b32 %r4, %r1, 16, 31, 65535;\n$l:";
    case(32, body).finds(InactiveLane, "shfl.sync");
    let body = "setp.ge.u32 %p1, %r1, 16;\n@%p1 bra $l;\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, 65535;\n\
                st.global.u32 [%rd4], %r4;\n$l:";
    case(32, body).clean(&[1, 0, 3, 2]);
    // The mask names lanes that are waiting for this one.
    let body = "setp.ge.u32 %p1, %r1, 16;\n@%p1 bra $l;\nvote.sync.ballot.b32 %r4, %p1, -1;\n$l:\nadd.u32 %r5, %r1, 1;";
    case(32, body).finds(InactiveLane, "vote.sync");
    // The caller is not in its own mask.
    case(32, "vote.sync.ballot.b32 %r4, 1, 0x7fffffff;").finds(InactiveLane, "vote.sync");
    // Lanes that have exited.
    let body = "setp.ge.u32 %p1, %r1, 16;\n@%p1 exit;\nmatch.any.sync.b32 %r4, %r1, -1;";
    case(32, body).finds(InactiveLane, "match.any");
    case(32, "match.any.sync.b32 %r4, %r3, -1;\nst.global.u32 [%rd4], %r4;").clean(&[u32::MAX; 32]);
}

#[test]
fn lanes_meet_again_before_a_collective() {
    // Different paths, one shuffle behind both.
    let body = "and.b32 %r4, %r1, 1;\nsetp.eq.u32 %p1, %r4, 0;\n@%p1 bra $even;\nadd.u32 %r5, %r1, 100;\nbra $both;\n\
                $even:\nadd.u32 %r5, %r1, 200;\n$both:\nshfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;\nst.global.u32 [%rd4], %r6;";
    case(32, body).clean(&[101, 200, 103, 202]);
    // Two groups with masks of their own, in different code.
    let body = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $low;\nredux.sync.add.s32 %r5, %r1, 0xffff0000;\nbra $both;\n\
                $low:\nredux.sync.add.s32 %r5, %r1, 0x0000ffff;\n$both:\nst.global.u32 [%rd4], %r5;";
    let outcome: Vec<u32> = (0..32).map(|i| if i < 16 { 120 } else { 376 }).collect();
    case(32, body).clean(&outcome);
    // The same instruction with two masks.
    let body = "setp.lt.u32 %p1, %r1, 16;\nselp.b32 %r4, 0x0000ffff, 0xffff0000, %p1;\nredux.sync.max.u32 %r5, %r1, %r4;\n\
                st.global.u32 [%rd4], %r5;";
    let outcome: Vec<u32> = (0..32).map(|i| if i < 16 { 15 } else { 31 }).collect();
    case(32, body).clean(&outcome);
}
