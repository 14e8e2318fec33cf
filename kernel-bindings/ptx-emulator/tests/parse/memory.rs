//! Memory, atomics, asynchronous copies, barriers: text to checked form.

use crate::parse;
use ptx_emulator::ir::*;

fn at(base: AddressBase, offset: i64) -> Address {
    Address { base, offset }
}

#[test]
fn loads() {
    let p = parse("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f0, _, %f2, %f3}, [%rd1+-16];");
    let d = Dst::Vector(p.dv(&["%f0", "_", "%f2", "%f3"]));
    let addr = at(AddressBase::Reg(p.reg("%rd1")), -16);
    let load = Op::Ld { space: Space::Global, ty: Type::F32, d, addr, ordering: Ordering::Weak, scope: None, nc: true };
    assert_eq!(*p.op(), load);

    let p = parse("ld.acquire.sys.global.u32 %r0, [gv+4];");
    let (d, addr) = (p.d("%r0"), at(AddressBase::Symbol(Symbol::Module(0)), 4));
    let (ordering, scope) = (Ordering::Acquire, Some(Scope::Sys));
    assert_eq!(*p.op(), Op::Ld { space: Space::Global, ty: Type::U32, d, addr, ordering, scope, nc: false });

    // A register may be wider than the value.
    let p = parse("ld.shared.s8 %r0, [%r1];");
    let (d, addr) = (p.d("%r0"), at(AddressBase::Reg(p.reg("%r1")), 0));
    let ordering = Ordering::Weak;
    assert_eq!(*p.op(), Op::Ld { space: Space::Shared, ty: Type::S8, d, addr, ordering, scope: None, nc: false });

    let p = parse("ld.param.v2.u64 {%rd0, %rd1}, [pb+48];");
    let d = Dst::Vector(p.dv(&["%rd0", "%rd1"]));
    let addr = at(AddressBase::Symbol(Symbol::Param(1)), 48);
    assert_eq!(*p.op(), Op::Ld { space: Space::Param, ty: Type::U64, d, addr, ordering, scope: None, nc: false });

    let p = parse("ld.local.b64 %rd0, [240];");
    let (d, addr) = (p.d("%rd0"), at(AddressBase::Absolute, 240));
    assert_eq!(*p.op(), Op::Ld { space: Space::Local, ty: Type::B64, d, addr, ordering, scope: None, nc: false });

    let p = parse("ld.global.L2::evict_last.L2::cache_hint.v8.b32 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [%rd1], %rd2;");
    let Op::Ld { d: Dst::Vector(d), ty: Type::B32, .. } = p.op() else { panic!("{:?}", p.op()) };
    assert_eq!(d.len(), 8);

    let p = parse("@%p0 ld.volatile.global.b32 { %r1 }, [ %rd8 + 0 ];".replace("%rd8", "%rd7").as_str());
    let Op::Ld { d, ordering: Ordering::Volatile, .. } = p.op() else { panic!("{:?}", p.op()) };
    assert_eq!(*d, p.d("%r1"), "a vector of one is the register");
}

#[test]
fn stores() {
    let p = parse("st.release.cluster.shared::cluster.v2.u32 [%r9], {%r1, 5};");
    let a = Operand::Vector(vec![p.a("%r1"), Operand::Imm(5)]);
    let addr = at(AddressBase::Reg(p.reg("%r9")), 0);
    let (ordering, scope) = (Ordering::Release, Some(Scope::Cluster));
    assert_eq!(*p.op(), Op::St { space: Space::SharedCluster, ty: Type::U32, addr, a, ordering, scope });

    let p = parse("st.u8 [%rd1], %r2;");
    let (addr, a) = (at(AddressBase::Reg(p.reg("%rd1")), 0), p.a("%r2"));
    let ordering = Ordering::Weak;
    assert_eq!(*p.op(), Op::St { space: Space::Generic, ty: Type::U8, addr, a, ordering, scope: None });
}

#[test]
fn atomics() {
    let p = parse("atom.acq_rel.cluster.shared::cluster.cas.b64 %rd0, [%r1+8], %rd2, 3;");
    let (d, addr) = (Some(p.d("%rd0")), at(AddressBase::Reg(p.reg("%r1")), 8));
    let (b, c) = (p.a("%rd2"), Some(Operand::Imm(3)));
    let atom = Op::Atom {
        op: Atomic::Cas,
        space: Space::SharedCluster,
        ty: Type::B64,
        d,
        addr,
        b,
        c,
        ordering: Ordering::AcqRel,
        scope: Scope::Cluster,
        noftz: false,
    };
    assert_eq!(*p.op(), atom);

    // Relaxed at the scope of the device by default; red has no destination.
    let p = parse("red.global.add.noftz.v4.bf16x2 [%rd1], {%r0, %r1, %r2, %r3};");
    let Op::Atom { op: Atomic::Add, ty: Type::BF16x2, d: None, b, ordering, scope, noftz: true, .. } = p.op() else {
        panic!("{:?}", p.op());
    };
    assert_eq!(*b, Operand::Vector(p.av(&["%r0", "%r1", "%r2", "%r3"])));
    assert_eq!((*ordering, *scope), (Ordering::Relaxed, Scope::Gpu));
}

#[test]
fn address_conversion() {
    let p = parse("cvta.to.shared.u64 %rd0, %rd1;");
    let (d, a) = (p.d("%rd0"), p.a("%rd1"));
    assert_eq!(*p.op(), Op::Cvta { to_space: true, space: Space::Shared, ty: Type::U64, d, a });
    let p = parse("cvta.global.u64 %rd0, gv;");
    let (d, a) = (p.d("%rd0"), Operand::Symbol(Symbol::Module(0), 0));
    assert_eq!(*p.op(), Op::Cvta { to_space: false, space: Space::Global, ty: Type::U64, d, a });
    let p = parse("mapa.shared::cluster.u32 %r0, sv, %r1;");
    let (d, a, b) = (p.d("%r0"), Operand::Symbol(Symbol::Module(2), 0), p.a("%r1"));
    assert_eq!(*p.op(), Op::Mapa { ty: Type::U32, space: Space::SharedCluster, d, a, b });
    for hint in ["prefetch.global.L2 [%rd0];", "discard.global.L2 [%rd0], 128;", "prefetchu.L1 [%rd0];"] {
        assert_eq!(*parse(hint).op(), Op::Hint);
    }
    let p = parse("createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd0, 0.5;");
    assert_eq!(*p.op(), Op::CreatePolicy { d: p.d("%rd0") });
}

#[test]
fn copies_by_thread() {
    let p = parse("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%r0+16], [%rd1], 16, %r2, %rd3;");
    let dst = at(AddressBase::Reg(p.reg("%r0")), 16);
    let src = at(AddressBase::Reg(p.reg("%rd1")), 0);
    let src_size = Some(p.a("%r2"));
    assert_eq!(*p.op(), Op::CpAsync { dst, src, size: 16, src_size, ignore: None, cg: true });

    let p = parse("cp.async.ca.shared::cta.global [sv], [gv], 4, !%p1;");
    let (dst, src) = (at(AddressBase::Symbol(Symbol::Module(2)), 0), at(AddressBase::Symbol(Symbol::Module(0)), 0));
    let ignore = Some(Operand::NotPred(p.reg("%p1")));
    assert_eq!(*p.op(), Op::CpAsync { dst, src, size: 4, src_size: None, ignore, cg: false });

    assert_eq!(*parse("cp.async.commit_group;").op(), Op::CpAsyncCommit);
    assert_eq!(*parse("cp.async.wait_group 3;").op(), Op::CpAsyncWait { groups: Some(3) });
    assert_eq!(*parse("cp.async.wait_all;").op(), Op::CpAsyncWait { groups: None });
    let p = parse("cp.async.mbarrier.arrive.noinc.b64 [%rd0];");
    let addr = at(AddressBase::Reg(p.reg("%rd0")), 0);
    assert_eq!(*p.op(), Op::CpAsyncMbarrierArrive { addr, noinc: true, space: Space::Generic });
}

#[test]
fn bulk_copies() {
    let p = parse("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%rd1], %r2, [%r3+8];");
    let dst = at(AddressBase::Reg(p.reg("%r0")), 0);
    let src = at(AddressBase::Reg(p.reg("%rd1")), 0);
    let (size, mbar) = (p.a("%r2"), Some(at(AddressBase::Reg(p.reg("%r3")), 8)));
    assert_eq!(*p.op(), Op::Bulk { direction: BulkDirection::GlobalToShared, dst, src, size, mbar });

    let p = parse("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1], [%r0], 64, %rd2;");
    let dst = at(AddressBase::Reg(p.reg("%rd1")), 0);
    let src = at(AddressBase::Reg(p.reg("%r0")), 0);
    let size = Operand::Imm(64);
    assert_eq!(*p.op(), Op::Bulk { direction: BulkDirection::SharedToGlobal, dst, src, size, mbar: None });

    let p = parse("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd1], [%r0], 64;");
    let Op::BulkReduce { op: Atomic::Add, ty: Type::BF16, .. } = p.op() else { panic!("{:?}", p.op()) };
    assert_eq!(*parse("cp.async.bulk.wait_group.read 2;").op(), Op::BulkWait { groups: 2, read: true });
    assert_eq!(*parse("cp.async.bulk.commit_group;").op(), Op::BulkCommit);
}

#[test]
fn mbarriers() {
    let p = parse("mbarrier.init.shared.b64 [%r0], %r1;");
    let addr = at(AddressBase::Reg(p.reg("%r0")), 0);
    let (count, space) = (p.a("%r1"), Space::Shared);
    assert_eq!(*p.op(), Op::Mbarrier(Mbarrier::Init { addr: addr.clone(), count, space }));

    let p = parse("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r0], 128;");
    let arrive = Mbarrier::Arrive {
        state: Some(Dst::Sink),
        addr,
        count: Some(Operand::Imm(128)),
        expect_tx: true,
        no_complete: false,
        drop: false,
        ordering: Ordering::Release,
        scope: Scope::Cluster,
        space: Space::SharedCluster,
    };
    assert_eq!(*p.op(), Op::Mbarrier(arrive));

    let p = parse("mbarrier.arrive_drop.noComplete.b64 %rd0, [%rd1], 2;");
    let arrive = Mbarrier::Arrive {
        state: Some(p.d("%rd0")),
        addr: at(AddressBase::Reg(p.reg("%rd1")), 0),
        count: Some(Operand::Imm(2)),
        expect_tx: false,
        no_complete: true,
        drop: true,
        ordering: Ordering::Release,
        scope: Scope::Cta,
        space: Space::Generic,
    };
    assert_eq!(*p.op(), Op::Mbarrier(arrive));

    let p = parse("mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p0, [%r0], %r1, 1000;");
    let wait = Mbarrier::Wait {
        done: p.d("%p0"),
        addr: at(AddressBase::Reg(p.reg("%r0")), 0),
        state_or_parity: p.a("%r1"),
        parity: true,
        may_suspend: true,
        hint: Some(Operand::Imm(1000)),
        ordering: Ordering::Relaxed,
        scope: Scope::Cta,
        space: Space::Shared,
    };
    assert_eq!(*p.op(), Op::Mbarrier(wait));

    let p = parse("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [sv], 64;");
    let addr = at(AddressBase::Symbol(Symbol::Module(2)), 0);
    let bytes = Operand::Imm(64);
    assert_eq!(*p.op(), Op::Mbarrier(Mbarrier::Tx { addr, bytes, complete: false, space: Space::Shared }));
    let p = parse("mbarrier.pending_count.b64 %r0, %rd1;");
    assert_eq!(*p.op(), Op::Mbarrier(Mbarrier::PendingCount { d: p.d("%r0"), state: p.a("%rd1") }));
}

#[test]
fn barriers_and_fences() {
    let imm = Operand::Imm;
    assert_eq!(*parse("bar.sync 0;").op(), Op::BarSync { id: imm(0), threads: None, aligned: true });
    let sync = Op::BarSync { id: imm(2), threads: Some(imm(64)), aligned: false };
    assert_eq!(*parse("barrier.cta.sync 2, 64;").op(), sync);
    let p = parse("bar.arrive %r0, %r1;");
    assert_eq!(*p.op(), Op::BarArrive { id: p.a("%r0"), threads: p.a("%r1"), aligned: true });
    let p = parse("barrier.red.or.aligned.pred %p0, 1, 96, !%p1;");
    let (d, q) = (p.d("%p0"), Operand::NotPred(p.reg("%p1")));
    let red = Op::BarRed { id: imm(1), threads: Some(imm(96)), aligned: true, op: BarRed::Or, d, p: q };
    assert_eq!(*p.op(), red);
    let p = parse("bar.red.popc.u32 %r0, 0, %p1;");
    let red = Op::BarRed { id: imm(0), threads: None, aligned: true, op: BarRed::Popc, d: p.d("%r0"), p: p.a("%p1") };
    assert_eq!(*p.op(), red);
    assert_eq!(*parse("bar.warp.sync 0xff;").op(), Op::WarpSync { mask: imm(255) });
    let arrive = Op::ClusterArrive { ordering: Ordering::Relaxed, aligned: true };
    assert_eq!(*parse("barrier.cluster.arrive.relaxed.aligned;").op(), arrive);
    assert_eq!(*parse("barrier.cluster.wait;").op(), Op::ClusterWait { aligned: false });
    for (text, fence) in [
        ("membar.gl;", Fence::Sc(Scope::Gpu)),
        ("fence.sc.sys;", Fence::Sc(Scope::Sys)),
        ("fence.gpu;", Fence::AcqRel(Scope::Gpu)),
        ("fence.acquire.cluster;", Fence::Acquire(Scope::Cluster)),
        ("fence.release.cta;", Fence::Release(Scope::Cta)),
        ("fence.mbarrier_init.release.cluster;", Fence::MbarrierInit),
        ("fence.proxy.async;", Fence::ProxyAsync(Space::Generic)),
        ("fence.proxy.async.shared::cta;", Fence::ProxyAsync(Space::Shared)),
        ("fence.proxy.alias;", Fence::ProxyAlias),
    ] {
        assert_eq!(*parse(text).op(), Op::Fence(fence), "{text}");
    }
}
