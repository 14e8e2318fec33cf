//! Bounds, lifetimes, alignment, races.

use crate::{case, case_with};
use ptx_emulator::FindingClass::*;
use ptx_emulator::{FindingClass, LaunchConfig, Machine, MachineConfig, Module};

#[test]
fn the_byte_after_an_allocation() {
    case(32, "add.s64 %rd5, %rd3, 3972;\nld.global.u32 %r4, [%rd5];\nst.global.u32 [%rd4], %r4;")
        .finds(OutOfBounds, "ld.global.u32 %r4, [%rd5]");
    case(32, "ld.global.u32 %r4, [%rd3+3968];\nst.global.u32 [%rd4], %r4;").clean(&[992, 993, 994]);
}

#[test]
fn before_an_allocation_and_null() {
    case(1, "st.global.u32 [%rd1+-4], %r1;").finds(OutOfBounds, "st.global.u32 [%rd1+-4]");
    case(1, "mov.u64 %rd5, 0;\nld.u32 %r4, [%rd5];").finds(OutOfBounds, "ld.u32");
    case(1, "mov.u32 %r4, 0;\nld.shared.u32 %r5, [%r4];").finds(OutOfBounds, "ld.shared.u32");
}

#[test]
fn a_wide_access_across_the_end() {
    case(1, "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd0+8];").finds(Misaligned, "ld.global.v4");
    let find = case(1, "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd0+4096];");
    find.finds(OutOfBounds, "ld.global.v4");
}

#[test]
fn shared_memory_has_an_end() {
    let shared = ".shared .align 16 .b8 s[64];";
    case_with(1, shared, "mov.u32 %r4, s;\nst.shared.u32 [%r4+64], %r1;").finds(OutOfBounds, "[%r4+64]");
    case_with(1, shared, "mov.u32 %r4, s;\nst.shared.u32 [%r4+60], %r1;").clean(&[0]);
    case_with(1, shared, "mov.u32 %r4, s;\nst.shared.u32 [%r4+57], %r1;").finds(Misaligned, "[%r4+57]");
    // The same through generic addresses.
    let generic = "mov.u64 %rd5, s;\ncvta.shared.u64 %rd6, %rd5;\n";
    case_with(1, shared, &format!("{generic}st.u32 [%rd6+64], %r1;")).finds(OutOfBounds, "st.u32");
}

#[test]
fn misaligned_accesses() {
    case(1, "ld.global.u32 %r4, [%rd0+2];").finds(Misaligned, "[%rd0+2]");
    case(1, "ld.global.v2.u32 {%r4, %r5}, [%rd0+4];").finds(Misaligned, "[%rd0+4]");
    case(1, "ld.global.v2.u32 {%r4, %r5}, [%rd0+8];\nst.global.v2.u32 [%rd1], {%r5, %r4};").clean(&[3, 2]);
    case(1, "ld.global.u8 %r4, [%rd0+5];\nst.global.u32 [%rd1], %r4;").clean(&[0]);
}

#[test]
fn use_after_free() {
    let text = crate::text("", "ld.global.u32 %r4, [%rd3];\nst.global.u32 [%rd4], %r4;");
    let module = Module::parse(&text).unwrap();
    let mut machine = Machine::new(MachineConfig::checked(0));
    let (input, out) = (machine.alloc(128, "in").unwrap(), machine.alloc(128, "out").unwrap());
    machine.write(input, &[1; 128]).unwrap();
    let mut params = input.to_le_bytes().to_vec();
    params.extend(out.to_le_bytes());
    params.extend([0; 4]);
    let dims = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    assert!(machine.launch(&module, "k", &dims, &params).unwrap().findings.is_empty());
    machine.free(input).unwrap();
    let findings = machine.launch(&module, "k", &dims, &params).unwrap().findings;
    assert_eq!(findings[0].class, UseAfterFree);
    assert_eq!(findings[0].address.as_deref(), Some("in+0x0"));
    assert_eq!(findings.len(), 1);
}

#[test]
fn checks_off_still_stops_at_a_fault() {
    let fault = case(32, "ld.global.u32 %r4, [%rd3+4096];\nst.global.u32 [%rd4], %r4;");
    let fast = crate::Case { config: MachineConfig::fast(), ..fault };
    let outcome = fast.run(0);
    assert_eq!(outcome.classes(), [OutOfBounds]);
    assert_eq!(outcome.out[0], 0);
}

#[test]
fn local_memory_has_an_end() {
    let body = ".local .align 8 .b8 l[16];\nmov.u64 %rd5, l;\nst.local.u32 [%rd5+16], %r1;";
    case(1, body).finds(OutOfBounds, "st.local");
    let body = ".local .align 8 .b8 l[16];\nmov.u64 %rd5, l;\ncvta.local.u64 %rd6, %rd5;\nst.u32 [%rd6+12], %r1;\n\
                ld.local.u32 %r4, [%rd5+12];\nst.global.u32 [%rd4], %r4;";
    case(32, body).clean(&(0..32).collect::<Vec<_>>());
    case(1, ".local .align 8 .b8 l[16];\nmov.u64 %rd5, l;\nld.local.u32 %r4, [%rd5];\nst.global.u32 [%rd4], %r4;")
        .finds(Uninitialized, "st.global.u32");
}

const SHARED: &str = ".shared .align 16 .b8 s[512];";

fn neighbour(sync: &str) -> String {
    format!(
        "mov.u32 %r4, s;\nshl.b32 %r5, %r1, 2;\nadd.u32 %r5, %r4, %r5;\nst.shared.u32 [%r5], %r1;\n{sync}\n\
         xor.b32 %r6, %r1, 33;\nshl.b32 %r6, %r6, 2;\nadd.u32 %r6, %r4, %r6;\nld.shared.u32 %r7, [%r6];\n\
         st.global.u32 [%rd4], %r7;"
    )
}

#[test]
fn shared_races_between_warps() {
    let want: Vec<u32> = (0..64).map(|i| i ^ 33).collect();
    case_with(64, SHARED, &neighbour("bar.sync 0;")).clean(&want);
    // Without the barrier also the bytes may not be there yet.
    let racy = case_with(64, SHARED, &neighbour(""));
    for seed in 0..9 {
        assert!(racy.run(seed).classes().contains(&SharedRace), "seed {seed}");
    }
    let racy = case_with(64, SHARED, &neighbour("bar.warp.sync -1;"));
    for seed in 0..9 {
        assert!(racy.run(seed).classes().contains(&SharedRace), "seed {seed}");
    }
}

#[test]
fn shared_races_inside_a_warp() {
    let within = |sync: &str| neighbour(sync).replace("%r1, 33", "%r1, 1");
    let want: Vec<u32> = (0..32).map(|i| i ^ 1).collect();
    case_with(32, SHARED, &within("bar.warp.sync -1;")).clean(&want);
    case_with(32, SHARED, &within("")).finds(SharedRace, "ld.shared.u32");
}

#[test]
fn all_lanes_write_one_word() {
    case_with(32, SHARED, "mov.u32 %r4, s;\nst.shared.u32 [%r4], %r1;").finds(SharedRace, "st.shared.u32");
    case(32, "st.global.u32 [%rd1], %r1;").finds(GlobalRace, "st.global.u32");
    case(32, "red.global.add.u32 [%rd1], 1;").clean(&[32]);
    case_with(
        32,
        SHARED,
        "setp.ne.u32 %p0, %r1, 0;\nmov.u32 %r4, s;\n@!%p0 st.shared.u32 [%r4], 5;\nbar.sync 0;\n\
         red.shared.add.u32 [%r4], %r1;\nbar.sync 0;\n@!%p0 ld.shared.u32 %r5, [%r4];\n@!%p0 st.global.u32 [%rd1], %r5;",
    )
    .clean(&[5 + 31 * 16]);
}

#[test]
fn global_races_between_blocks() {
    let body = "mov.u32 %r4, %ctaid.x;\nst.global.u32 [%rd1], %r4;";
    case(1, body).grid(2).finds(GlobalRace, "st.global.u32");
    let own =
        "mov.u32 %r4, %ctaid.x;\nmul.wide.u32 %rd5, %r4, 4;\nadd.s64 %rd5, %rd1, %rd5;\nst.global.u32 [%rd5], %r4;";
    case(1, own).grid(4).clean(&[0, 1, 2, 3]);
}

#[test]
fn publication_needs_release_and_acquire() {
    // Block 0 and 1 take a ticket; the second reads what the first wrote.
    let body = |fence: &str| {
        format!(
            "mov.u32 %r4, %ctaid.x;\nadd.u32 %r5, %r4, 7;\nmul.wide.u32 %rd5, %r4, 4;\nadd.s64 %rd5, %rd1, %rd5;\n\
             st.global.u32 [%rd5+64], %r5;\n{fence}\natom.relaxed.gpu.global.add.u32 %r6, [%rd1], 1;\n{fence}\n\
             setp.ne.u32 %p0, %r6, 1;\n@%p0 bra $done;\nld.global.u32 %r7, [%rd1+64];\nld.global.u32 %r8, [%rd1+68];\n\
             add.u32 %r9, %r7, %r8;\nst.global.u32 [%rd1+4], %r9;\n$done:"
        )
    };
    case(1, &body("fence.acq_rel.gpu;")).grid(2).clean(&[2, 15]);
    case(1, &body("membar.gl;")).grid(2).clean(&[2, 15]);
    case(1, &body("")).grid(2).finds(GlobalRace, "ld.global.u32");
    case(1, &body("fence.acq_rel.cta;")).grid(2).finds(GlobalRace, "ld.global.u32");
}

#[test]
fn non_coherent_load_of_written_memory() {
    let body = "st.global.u32 [%rd4], %r1;\nld.global.nc.u32 %r4, [%rd4];\nst.global.u32 [%rd4+128], %r4;";
    case(32, body).finds(NcLoadOfWritten, "ld.global.nc");
    let body = "ld.global.nc.u32 %r4, [%rd3];\nst.global.u32 [%rd4], %r4;";
    case(32, body).clean(&[0, 1, 2]);
}

#[test]
fn findings_are_counted_and_placed() {
    let outcome = case(64, "st.global.u32 [%rd4+4096], %r1;").run(3);
    let [finding] = &outcome.findings[..] else { panic!("{:?}", outcome.findings) };
    assert_eq!(finding.class, FindingClass::OutOfBounds);
    assert_eq!(finding.count, 64);
    assert_eq!(finding.seed, 3);
    assert_eq!(finding.place.entry, "k");
    assert_eq!(finding.place.instruction, "st.global.u32 [%rd4+4096], %r1;");
    assert!(finding.address.as_deref().is_some_and(|a| a.starts_with("out+0x10")), "{finding}");
}
