//! Asynchronous copies and the async proxy.

use crate::case_with;
use ptx_emulator::FindingClass::*;

const SHARED: &str = ".shared .align 128 .b8 s[1024];\n.shared .align 8 .b64 m;";

/// Each of 32 threads copies 16 bytes, then reads its neighbour's.
fn copy(middle: &str) -> String {
    format!(
        "mov.u32 %r4, s;\nshl.b32 %r5, %r1, 4;\nadd.u32 %r6, %r4, %r5;\nmul.wide.u32 %rd5, %r1, 16;\nadd.s64 %rd6, %rd0, %rd5;\n\
         cp.async.cg.shared.global [%r6], [%rd6], 16;\n{middle}\nxor.b32 %r7, %r5, 16;\nadd.u32 %r7, %r4, %r7;\n\
         ld.shared.u32 %r8, [%r7];\nst.global.u32 [%rd4], %r8;"
    )
}

#[test]
fn copies_and_groups() {
    let want: Vec<u32> = (0..32).map(|i| (i ^ 1) * 4).collect();
    case_with(32, SHARED, &copy("cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;")).clean(&want);
    case_with(32, SHARED, &copy("cp.async.wait_all;\nbar.sync 0;")).clean(&want);
}

#[test]
fn copies_read_too_early() {
    for middle in [
        "cp.async.commit_group;\nbar.sync 0;",
        "cp.async.commit_group;\ncp.async.wait_group 1;\nbar.sync 0;",
        "cp.async.wait_group 0;\nbar.sync 0;",
    ] {
        let early = case_with(32, SHARED, &copy(middle));
        for seed in 0..9 {
            let outcome = early.run(seed);
            assert!(outcome.classes().contains(&AsyncEarlyAccess), "seed {seed} {middle}: {:?}", outcome.findings);
        }
    }
    // Waited for, but the neighbour does not know.
    let outcome = case_with(32, SHARED, &copy("cp.async.commit_group;\ncp.async.wait_group 0;")).run(0);
    assert!(!outcome.findings.is_empty());
}

#[test]
fn copies_in_flight_at_exit() {
    let body = "mov.u32 %r4, s;\nshl.b32 %r5, %r1, 4;\nadd.u32 %r6, %r4, %r5;\nmul.wide.u32 %rd5, %r1, 16;\nadd.s64 %rd6, %rd0, %rd5;\n\
                cp.async.ca.shared.global [%r6], [%rd6], 16;\ncp.async.commit_group;";
    case_with(32, SHARED, body).finds(AsyncInFlightAtExit, "cp.async.ca");
}

#[test]
fn copies_that_read_less() {
    // 4 of 16 bytes, the rest zero; or nothing at all from a null pointer.
    let body = "mov.u32 %r4, s;\ncp.async.ca.shared.global [%r4], [%rd0+4], 16, 4;\n";
    let tail = "cp.async.wait_all;\nld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r4];\nst.global.v4.u32 [%rd1], {%r5, %r6, %r7, %r8};";
    case_with(1, SHARED, &format!("{}{tail}", body.replace("+4]", "+16]"))).clean(&[4, 0, 0, 0]);
    let null =
        "mov.u32 %r4, s;\nmov.u64 %rd5, 0;\nmov.u32 %r9, 0;\ncp.async.ca.shared.global [%r4], [%rd5], 16, %r9;\n";
    case_with(1, SHARED, &format!("{null}{tail}")).clean(&[0; 4]);
    case_with(1, SHARED, &format!("{body}{tail}")).finds(Misaligned, "cp.async.ca");
}

#[test]
fn copies_that_arrive_at_an_mbarrier() {
    let body = |wait: &str| {
        format!(
            "mov.u32 %r3, m;\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 mbarrier.init.shared.b64 [%r3], 32;\nbar.sync 0;\n{}",
            copy(&format!("cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];\n{wait}"))
        )
    };
    let wait = "$w:\nmbarrier.test_wait.parity.shared.b64 %p1, [%r3], 0;\n@!%p1 bra $w;";
    let want: Vec<u32> = (0..32).map(|i| (i ^ 1) * 4).collect();
    case_with(32, SHARED, &body(wait)).clean(&want);
    // With the increment the object has to count the threads' own arrivals.
    let inc = body(&format!("mbarrier.arrive.shared.b64 %rd9, [%r3];\n{wait}")).replace(".noinc", "");
    case_with(32, SHARED, &inc).clean(&want);
    let outcome = case_with(32, SHARED, &body("")).run(0);
    assert!(outcome.classes().contains(&AsyncEarlyAccess), "{:?}", outcome.findings);
}

/// Thread 0 of 32 fetches 512 bytes; all read their word.
fn bulk(init_fence: &str, expect: u32, wait: &str, before: &str) -> String {
    format!(
        "mov.u32 %r4, s;\nmov.u32 %r3, m;\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 mbarrier.init.shared.b64 [%r3], 1;\n@%p0 {init_fence}\n\
         {before}\nbar.sync 0;\n@!%p0 bra $wait;\nmbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], {expect};\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd0], 512, [%r3];\n$wait:\n{wait}\n\
         shl.b32 %r5, %r1, 2;\nadd.u32 %r5, %r4, %r5;\nld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd4], %r6;"
    )
}

const WAIT: &str = "$w:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;\n@!%p1 bra $w;";
const INIT_FENCE: &str = "fence.mbarrier_init.release.cluster;";

#[test]
fn bulk_loads() {
    let want: Vec<u32> = (0..32).collect();
    case_with(32, SHARED, &bulk(INIT_FENCE, 512, WAIT, "")).clean(&want);
    let early = case_with(32, SHARED, &bulk(INIT_FENCE, 512, "", ""));
    for seed in 0..9 {
        let classes = early.run(seed).classes();
        assert!(classes.contains(&AsyncEarlyAccess), "seed {seed}: {classes:?}");
    }
    // Too many bytes expected: nobody completes the phase.
    case_with(32, SHARED, &bulk(INIT_FENCE, 528, WAIT, "")).finds(Deadlock, "");
    // Too few: the phase ends before the bytes have landed, or not at all.
    let few = case_with(32, SHARED, &bulk(INIT_FENCE, 256, WAIT, ""));
    for seed in 0..9 {
        assert!(!few.run(seed).findings.is_empty(), "seed {seed}");
    }
}

#[test]
fn bulk_loads_and_proxies() {
    let write = "shl.b32 %r5, %r1, 2;\nadd.u32 %r5, %r4, %r5;\nst.shared.u32 [%r5], %r1;\n";
    let want: Vec<u32> = (0..32).collect();
    case_with(32, SHARED, &bulk(INIT_FENCE, 512, WAIT, &format!("{write}fence.proxy.async.shared::cta;"))).clean(&want);
    case_with(32, SHARED, &bulk(INIT_FENCE, 512, WAIT, write)).finds(MissingProxyFence, "cp.async.bulk");
    case_with(32, SHARED, &bulk("add.u32 %r9, %r1, 1;", 512, WAIT, "")).finds(MissingProxyFence, "cp.async.bulk");
}

#[test]
fn bulk_rules() {
    let base = bulk(INIT_FENCE, 512, WAIT, "");
    case_with(32, SHARED, &base.replace("[%r4], [%rd0], 512", "[%r4], [%rd0+8], 512").replace(WAIT, "exit;"))
        .finds(Misaligned, "cp.async.bulk");
    case_with(
        32,
        SHARED,
        &base
            .replace("[%rd0], 512", "[%rd0], %r8")
            .replace("@!%p0 bra", "mov.u32 %r8, 500;\n@!%p0 bra")
            .replace(WAIT, "exit;"),
    )
    .finds(Misaligned, "cp.async.bulk");
    case_with(32, SHARED, &base.replace("[%r4], [%rd0], 512", "[%r4], [%rd0+3600], 512").replace(WAIT, "exit;"))
        .finds(OutOfBounds, "cp.async.bulk");
    case_with(32, SHARED, &base.replace(WAIT, "exit;").replace("AtWait", "")).run(0);
}

/// 32 threads write shared memory, thread 0 stores it to global memory.
fn store(fence: &str, wait: &str) -> String {
    format!(
        "mov.u32 %r4, s;\nshl.b32 %r5, %r1, 2;\nadd.u32 %r5, %r4, %r5;\nadd.u32 %r6, %r1, 5;\nst.shared.u32 [%r5], %r6;\n{fence}\n\
         bar.sync 0;\nsetp.ne.u32 %p0, %r1, 0;\n@%p0 bra $e;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r4], 128;\n{wait}\n$e:"
    )
}

#[test]
fn bulk_stores() {
    let want: Vec<u32> = (5..37).collect();
    let fence = "fence.proxy.async.shared::cta;";
    let group = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;";
    case_with(32, SHARED, &store(fence, group)).clean(&want);
    case_with(32, SHARED, &store(fence, &group.replace("wait_group", "wait_group.read"))).clean(&want);
    case_with(32, SHARED, &store("", group)).finds(MissingProxyFence, "cp.async.bulk");
    case_with(32, SHARED, &store(fence, "cp.async.bulk.commit_group;"))
        .finds(AsyncInFlightAtExit, "cp.async.bulk.global");
    // The source is overwritten before it was read.
    let reuse = |wait: &str| store(fence, &format!("{wait}\nst.shared.u32 [%r4], 0;"));
    case_with(32, SHARED, &reuse(&group.replace("wait_group", "wait_group.read"))).clean(&want);
    let early = case_with(32, SHARED, &reuse("cp.async.bulk.commit_group;"));
    for seed in 0..9 {
        assert!(early.run(seed).classes().contains(&AsyncEarlyAccess), "seed {seed}");
    }
    // The destination is read before it was written.
    let back =
        |wait: &str| store(fence, &format!("{wait}\nld.global.u32 %r7, [%rd1];\nst.global.u32 [%rd1+256], %r7;"));
    let early = case_with(32, SHARED, &back(&group.replace("wait_group", "wait_group.read")));
    for seed in 0..9 {
        assert!(early.run(seed).classes().contains(&AsyncEarlyAccess), "seed {seed}");
    }
}

#[test]
fn bulk_reductions() {
    let body = store("fence.proxy.async.shared::cta;", "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;")
        .replace(
            "cp.async.bulk.global.shared::cta.bulk_group",
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32",
        );
    let want: Vec<u32> = (5..37).map(|x| x * 3).collect();
    case_with(32, SHARED, &body).grid(3).clean(&want);
}

#[test]
fn uninitialised_bytes_travel_with_copies() {
    let body = "mov.u32 %r4, s;\nsetp.ne.u32 %p0, %r1, 0;\n@%p0 bra $e;\nst.shared.u32 [%r4], 1;\nfence.proxy.async.shared::cta;\n\
                cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r4], 16;\ncp.async.bulk.commit_group;\n\
                cp.async.bulk.wait_group 0;\n$e:";
    case_with(32, SHARED, body).finds(Uninitialized, "cp.async.bulk");
}
