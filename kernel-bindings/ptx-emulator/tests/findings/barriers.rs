//! Barriers of the block and the warp, mbarriers, deadlock.

use crate::{Case, case, case_with};
use ptx_emulator::FindingClass::*;
use ptx_emulator::{Checks, LaunchConfig, MachineConfig};

#[test]
fn half_a_warp_at_a_barrier() {
    let body = "setp.lt.u32 %p1, %r1, 16;\n@!%p1 bra $l;\nbar.sync 0;\n$l:\nadd.u32 %r4, %r1, 1;";
    case(64, body).finds(DivergentBarrier, "bar.sync");
    // Two barriers in two branches are two instructions.
    let body = "setp.lt.u32 %p1, %r2, 16;\n@!%p1 bra $l;\nbar.sync 0;\nbra $e;\n$l:\nbar.sync 0;\n$e:";
    case(64, body).finds(DivergentBarrier, "bar.sync");
    case(64, "setp.lt.u32 %p1, %r2, 16;\n@%p1 bar.sync 0;").finds(DivergentBarrier, "bar.sync");
    // Whole warps may take different branches.
    let body = "setp.lt.u32 %p1, %r1, 32;\n@!%p1 bra $l;\nbar.sync 0;\nbra $e;\n$l:\nbar.sync 0;\n$e:\nst.global.u32 [%rd4], 1;";
    case(64, body).clean(&[1; 64]);
}

#[test]
fn lanes_that_return_early_do_not_count() {
    let body = "setp.lt.u32 %p1, %r2, 3;\n@%p1 bra $l;\nbar.sync 0;\nst.global.u32 [%rd4], 1;\n$l:";
    case(64, body).clean(&[0, 0, 0, 1, 1]);
    // The second half of the block leaves.
    let body = "setp.ge.u32 %p1, %r1, 32;\n@%p1 exit;\nbar.sync 0;\nst.global.u32 [%rd4], 1;";
    case(64, body).clean(&[1; 32]);
}

#[test]
fn a_warp_barrier_without_all_of_its_lanes() {
    let body = "setp.lt.u32 %p1, %r1, 16;\n@!%p1 bra $l;\nbar.warp.sync -1;\n$l:\nadd.u32 %r4, %r1, 1;";
    case(32, body).finds(DivergentBarrier, "bar.warp.sync");
    let body = "setp.lt.u32 %p1, %r1, 16;\n@!%p1 bra $l;\nbar.warp.sync 65535;\n$l:\nst.global.u32 [%rd4], 1;";
    case(32, body).clean(&[1; 32]);
    // Two places, one meeting.
    let body = "setp.lt.u32 %p1, %r1, 16;\n@!%p1 bra $l;\nbar.warp.sync -1;\nbra $e;\n$l:\nbar.warp.sync -1;\n$e:\n\
                st.global.u32 [%rd4], 1;";
    case(32, body).clean(&[1; 32]);
}

#[test]
fn barrier_counts_disagree() {
    let body = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $l;\nbar.sync 1, 64;\nbra $e;\n$l:\nbar.sync 1, 96;\n$e:";
    case(96, body).finds(BarrierMismatch, "bar.sync 1");
    case(64, "mov.u32 %r4, 33;\nbar.sync 1, %r4;").finds(BarrierMismatch, "bar.sync 1, %r4");
    case(64, "bar.sync 1, 96;").finds(BarrierMismatch, "bar.sync 1, 96");
    case(64, "mov.u32 %r4, 16;\nbar.sync %r4, 64;").finds(BarrierMismatch, "bar.sync %r4");
    // A warp arrives twice before anybody waits.
    case(32, "bar.arrive 1, 64;\nbar.arrive 1, 64;").finds(BarrierMismatch, "bar.arrive");
}

#[test]
fn producer_and_consumer_on_named_barriers() {
    // Warp 0 writes and arrives, warp 1 waits and reads.
    let shared = ".shared .align 16 .b8 s[128];";
    let body = |arrive: &str| {
        format!(
            "mov.u32 %r4, s;\nshl.b32 %r5, %r2, 2;\nadd.u32 %r4, %r4, %r5;\nsetp.ge.u32 %p1, %r1, 32;\n@%p1 bra $c;\n\
             st.shared.u32 [%r4], %r1;\n{arrive}\nbra $e;\n$c:\nbar.sync 3, 64;\nld.shared.u32 %r6, [%r4];\n\
             st.global.u32 [%rd1], 1;\n$e:"
        )
    };
    let body = |arrive: &str| body(arrive).replace("st.global.u32 [%rd1], 1;", "st.global.u32 [%rd4], %r6;");
    case_with(64, shared, &body("bar.arrive 3, 64;")).clean(&[0; 32]);
    case_with(64, shared, &body("")).finds(Deadlock, "bar.sync 3, 64");
}

#[test]
fn reductions_over_a_block() {
    let body = "and.b32 %r4, %r1, 1;\nsetp.eq.u32 %p1, %r4, 1;\nbar.red.popc.u32 %r5, 0, %p1;\nbar.red.and.pred %p2, 0, %p1;\n\
                bar.red.or.pred %p3, 0, %p1;\nselp.u32 %r6, 1000, 0, %p2;\nselp.u32 %r7, 100, 0, %p3;\nadd.u32 %r5, %r5, %r6;\n\
                add.u32 %r5, %r5, %r7;\nst.global.u32 [%rd4], %r5;";
    case(96, body).clean(&[148; 96]);
}

#[test]
fn nobody_can_move() {
    // Warp 0 waits at barrier 1 for warp 1, which waits at barrier 2 for warp 0.
    let body = "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $l;\nbar.sync 1, 64;\nbar.sync 2, 64;\nbra $e;\n$l:\nbar.sync 2, 64;\n\
                bar.sync 1, 64;\n$e:";
    case(64, body).finds(Deadlock, "bar.sync");
    let text = case(64, body).run(0).findings[0].message.clone();
    assert!(text.contains("warp 0") && text.contains("barrier 1") && text.contains("barrier 2"), "{text}");
    // An mbarrier that nobody completes.
    let shared = ".shared .align 8 .b64 m;";
    let body = "mov.u32 %r4, m;\nmbarrier.init.shared.b64 [%r4], 2;\nmbarrier.arrive.shared.b64 %rd5, [%r4];\n$w:\n\
                mbarrier.test_wait.shared.b64 %p1, [%r4], %rd5;\n@!%p1 bra $w;";
    let find = case_with(1, shared, body);
    find.finds(Deadlock, "");
    assert!(find.run(0).findings[0].message.contains("1 of 2 arrivals"), "{}", find.run(0).findings[0]);
}

#[test]
fn polling_global_memory_in_vain() {
    let body = "$w:\nld.acquire.gpu.global.u32 %r4, [%rd1];\nsetp.ne.u32 %p1, %r4, 1;\n@%p1 bra $w;";
    let waits = case(1, body);
    waits.finds(Deadlock, "");
    let cas = "$w:\natom.global.cas.b32 %r4, [%rd1], 1, 2;\nsetp.ne.u32 %p1, %r4, 1;\n@%p1 bra $w;";
    case(1, cas).finds(Deadlock, "");
}

#[test]
fn blocks_that_wait_for_one_another() {
    // Block 0 waits for the flag of the last block.
    let body = "mov.u32 %r4, %ctaid.x;\nsetp.ne.u32 %p1, %r4, 0;\n@%p1 bra $set;\n$w:\nld.acquire.gpu.global.u32 %r5, [%rd1];\n\
                setp.ne.u32 %p2, %r5, 3;\n@%p2 bra $w;\nld.global.u32 %r6, [%rd1+8];\nst.global.u32 [%rd1+4], %r6;\nbra $e;\n\
                $set:\nsetp.eq.u32 %p3, %r4, 1;\n@%p3 st.global.u32 [%rd1+8], 77;\n@%p3 fence.acq_rel.gpu;\n\
                atom.acq_rel.gpu.global.add.u32 %r7, [%rd1], 1;\n$e:";
    let mut resident = case(1, body).grid(4);
    resident.dims.all_resident = true;
    for seed in 0..9 {
        let outcome = resident.run(seed);
        assert!(outcome.findings.is_empty(), "{}", outcome.findings[0]);
        assert_eq!(outcome.out[..3], [3, 77, 77]);
    }
    let fast = Case { config: MachineConfig::fast(), ..resident.clone() };
    assert_eq!(fast.run(0).out[..3], [3, 77, 77]);
    // One block short.
    let short = resident.grid(3);
    short.finds(Deadlock, "");
    let fast = Case { config: MachineConfig::fast(), ..short };
    assert_eq!(fast.run(0).classes(), [Deadlock]);
}

#[test]
fn an_endless_loop_ends() {
    let endless = case(32, "$w:\nadd.u32 %r4, %r1, 1;\nbra $w;");
    endless.finds(Deadlock, "");
    let fast = MachineConfig { checks: Checks::Off, max_instructions: 3_000_000, ..MachineConfig::fast() };
    let fast = Case { config: fast, ..endless };
    assert_eq!(fast.run(0).classes(), [Deadlock]);
}

#[test]
fn a_lane_polls_for_another_lane() {
    // Lane 0 waits for what lane 1 stores behind the point where they would meet again.
    let shared = ".shared .align 8 .b64 m;";
    let body = "mov.u32 %r4, m;\nsetp.ne.u32 %p1, %r1, 0;\n@!%p1 mbarrier.init.shared.b64 [%r4], 31;\nbar.sync 0;\n@%p1 bra $go;\n\
                $w:\nmbarrier.test_wait.parity.shared.b64 %p2, [%r4], 0;\n@!%p2 bra $w;\n$go:\n\
                @%p1 mbarrier.arrive.shared.b64 %rd5, [%r4];\nst.global.u32 [%rd4], 1;";
    case_with(32, shared, body).clean(&[1; 32]);
}

#[test]
fn mbarrier_misuse() {
    let shared = ".shared .align 8 .b64 m;";
    let at = |body: &str| case_with(1, shared, &format!("mov.u32 %r4, m;\n{body}"));
    at("mbarrier.arrive.shared.b64 %rd5, [%r4];").finds(MbarrierMisuse, "mbarrier.arrive");
    let init = "mbarrier.init.shared.b64 [%r4], 1;\n";
    at(&format!("{init}{init}")).finds(MbarrierMisuse, "mbarrier.init");
    at("mov.u32 %r5, 0;\nmbarrier.init.shared.b64 [%r4], %r5;").finds(MbarrierMisuse, "mbarrier.init");
    at(&format!("{init}mbarrier.arrive.shared.b64 %rd5, [%r4], 2;")).finds(MbarrierMisuse, "mbarrier.arrive");
    let inval = format!("{init}mbarrier.inval.shared.b64 [%r4];\n");
    at(&format!("{inval}mbarrier.arrive.shared.b64 %rd5, [%r4];")).finds(MbarrierMisuse, "mbarrier.arrive");
    at(&format!("{inval}{init}mbarrier.arrive.shared.b64 %rd5, [%r4];")).clean(&[0]);
    at(&format!("{init}st.shared.u64 [%r4], 0;\nmbarrier.arrive.shared.b64 %rd5, [%r4];"))
        .finds(MbarrierMisuse, "mbarrier.arrive");
    // A state two phases old.
    let arrive = "mbarrier.arrive.shared.b64 %rd6, [%r4];\n";
    at(&format!(
        "{init}mbarrier.arrive.shared.b64 %rd5, [%r4];\n{arrive}mbarrier.test_wait.shared.b64 %p1, [%r4], %rd5;"
    ))
    .finds(MbarrierMisuse, "mbarrier.test_wait");
    at(&format!(
        "{init}mbarrier.arrive.shared.b64 %rd5, [%r4];\nmbarrier.test_wait.shared.b64 %p1, [%r4], %rd5;\n\
                 selp.u32 %r5, 1, 0, %p1;\nst.global.u32 [%rd1], %r5;"
    ))
    .clean(&[1]);
    at(&format!(
        "{init}mbarrier.expect_tx.relaxed.cta.shared.b64 [%r4], 1048575;\n\
                 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r4], 16;"
    ))
    .finds(MbarrierMisuse, "mbarrier.expect_tx");
}

#[test]
fn mbarrier_phases() {
    // 64 threads, three phases, by parity; thread 0 counts them.
    let shared = ".shared .align 8 .b64 m;";
    let body = "mov.u32 %r4, m;\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 mbarrier.init.shared.b64 [%r4], 64;\nbar.sync 0;\nmov.u32 %r5, 0;\n\
                $next:\nmbarrier.arrive.shared.b64 %rd5, [%r4];\nand.b32 %r6, %r5, 1;\n$w:\n\
                mbarrier.test_wait.parity.shared.b64 %p1, [%r4], %r6;\n@!%p1 bra $w;\nadd.u32 %r5, %r5, 1;\n\
                setp.lt.u32 %p2, %r5, 3;\n@%p2 bra $next;\nst.global.u32 [%rd4], %r5;";
    case_with(64, shared, body).clean(&[3; 64]);
}

#[test]
fn mbarriers_order_memory() {
    let shared = ".shared .align 8 .b64 m;\n.shared .align 4 .b8 s[256];";
    let body = |wait: &str| {
        format!(
            "mov.u32 %r4, m;\nmov.u32 %r7, s;\nshl.b32 %r8, %r1, 2;\nadd.u32 %r8, %r7, %r8;\nsetp.eq.u32 %p0, %r1, 0;\n\
             @%p0 mbarrier.init.shared.b64 [%r4], 64;\nbar.sync 0;\nst.shared.u32 [%r8], %r1;\n\
             mbarrier.arrive.shared.b64 %rd5, [%r4];\n{wait}\nxor.b32 %r9, %r1, 63;\nshl.b32 %r9, %r9, 2;\n\
             add.u32 %r9, %r7, %r9;\nld.shared.u32 %r10, [%r9];\nst.global.u32 [%rd4], %r10;"
        )
    };
    let wait = "$w:\nmbarrier.try_wait.shared.b64 %p1, [%r4], %rd5;\n@!%p1 bra $w;";
    let want: Vec<u32> = (0..64).map(|i| i ^ 63).collect();
    case_with(64, shared, &body(wait)).clean(&want);
    for seed in 0..9 {
        assert!(case_with(64, shared, &body("")).run(seed).classes().contains(&SharedRace));
    }
}

#[test]
fn register_budget() {
    let body = "setmaxnreg.dec.sync.aligned.u32 40;\nst.global.u32 [%rd4], 1;";
    case(128, body).clean(&[1; 128]);
    case(128, "setmaxnreg.dec.sync.aligned.u32 232;\nsetmaxnreg.inc.sync.aligned.u32 240;\nst.global.u32 [%rd4], 1;")
        .clean(&[1; 128]);
    // 384 threads have 168 each; raising all of them to 232 needs more than there is.
    let all =
        Case { dims: LaunchConfig::new([1, 1, 1], [384, 1, 1]), ..case(384, "setmaxnreg.inc.sync.aligned.u32 232;") };
    all.finds(Deadlock, "setmaxnreg");
    let split = "setp.lt.u32 %p1, %r1, 128;\n@%p1 bra $low;\nsetmaxnreg.inc.sync.aligned.u32 208;\nbra $e;\n$low:\n\
                 setmaxnreg.dec.sync.aligned.u32 40;\n$e:\nst.global.u32 [%rd4], 1;";
    case(384, split).clean(&[1; 384]);
}

#[test]
fn cluster_of_one() {
    let body = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n\
                barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\nst.global.u32 [%rd4], 1;";
    case(96, body).clean(&[1; 96]);
    case(32, "barrier.cluster.wait.acquire.aligned;").finds(BarrierMismatch, "barrier.cluster.wait");
}
