"""cp.async, mbarrier, cp.async.bulk: the copied bytes, and the phases of a barrier."""

from files import kernel

BY_HAND = "by hand"
POOL = ".shared .align 16 .b8 pool[1024];\n.reg .b32 %own, %base;"
OWN = "mov.u32 %base, pool;\nmad.lo.u32 %own, %row, 16, %base;\n"


def cp_async():
    # A row of the table is one 8-byte slot; 16 bytes are two rows' worth, so copy from the block's table as a whole.
    for size, form in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")):
        rows = []
        words = [0x11110000 + i for i in range(16)]
        count = 4
        for i in range(count):
            ins = tuple(words[(i * 4 + k) % 16] for k in range(2))
            memory = [ins[0], 0, ins[1], 0]  # slots of 8 bytes, the upper halves are zero
            want = [memory[k] if 4 * k < size else 0x55555555 for k in range(4)]
            rows.append((ins, tuple(want)))
        kernel(f"cp_async_{form}_{size}", f"cp.async.{form}.shared.global of {size} bytes, commit_group, wait_group", [("a", "b32"), ("b", "b32")], [(f"d{i}", "b32") for i in range(4)], rows,
               OWN + f"""mov.b32 %f, 0x55555555;
                  st.shared.v4.b32 [%own], {{%f, %f, %f, %f}};
                  cp.async.{form}.shared.global [%own], [%in], {size};
                  cp.async.commit_group;
                  cp.async.wait_group 0;
                  ld.shared.v4.b32 {{%d0, %d1, %d2, %d3}}, [%own];""", derivation=BY_HAND, declarations=POOL + "\n.reg .b32 %f;")
    rows = []
    for size in (0, 4, 12, 16):
        ins = (size, 0x22220000 + size)
        memory = [size, 0, ins[1], 0]
        want = [memory[k] if 4 * k < size else 0 for k in range(4)]
        rows.append((ins, tuple(want)))
    kernel("cp_async_zfill", "cp.async with a source size: the rest is zero", [("a", "b32"), ("b", "b32")], [(f"d{i}", "b32") for i in range(4)], rows,
           OWN + """mov.b32 %f, 0x55555555;
              st.shared.v4.b32 [%own], {%f, %f, %f, %f};
              cp.async.cg.shared.global [%own], [%in], 16, %a;
              cp.async.wait_all;
              ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%own];""", derivation=BY_HAND, declarations=POOL + "\n.reg .b32 %f;")
    rows = [((7 + i, 9), (7 + i, 0)) for i in range(4)]
    kernel("cp_async_groups", "cp.async.wait_group 1 leaves the newest group in flight", [("a", "b32"), ("b", "b32")], [("d", "b32"), ("e", "b32")], rows,
           OWN + """cp.async.ca.shared.global [%own], [%in], 4;
              cp.async.commit_group;
              cp.async.ca.shared.global [%own+8], [%in+4], 4;
              cp.async.commit_group;
              cp.async.wait_group 1;
              ld.shared.b32 %d, [%own];
              cp.async.wait_group 0;
              ld.shared.b32 %e, [%own+8];""", derivation=BY_HAND, declarations=POOL)
    rows = [((40 + i,), (40 + (i + 1) % 4,)) for i in range(4)]
    kernel("cp_async_mbarrier_arrive", "cp.async.mbarrier.arrive.noinc: a phase ends when every thread's copies have", [("a", "b32")], [("d", "b32")], rows,
           OWN + """setp.eq.u32 %first, %row, 0;
              mov.u32 %bar, barrier;
              @%first mbarrier.init.shared.b64 [%bar], 4;
              bar.sync 0;
              cp.async.ca.shared.global [%own], [%in], 4;
              cp.async.mbarrier.arrive.noinc.shared.b64 [%bar];
              again:
              mbarrier.test_wait.parity.shared.b64 %done, [%bar], 0;
              @!%done bra again;
              add.u32 %next, %row, 1;
              and.b32 %next, %next, 3;
              mad.lo.u32 %next, %next, 16, %base;
              ld.shared.b32 %d, [%next];""", derivation=BY_HAND, target="sm_80", version="7.1",
           declarations=POOL + "\n.shared .align 8 .b64 barrier;\n.reg .b32 %bar, %next;\n.reg .pred %first, %done;")


def mbarrier():
    rows = [((), (4, 1, 0, 1)) for _ in range(4)]
    kernel("mbarrier_phases", "mbarrier: pending count, test_wait by state and by parity over two phases", [], [("n", "b32"), ("p", "pred"), ("q", "pred"), ("r", "pred")], rows,
           """setp.eq.u32 %first, %row, 0;
              mov.u32 %bar, barrier;
              @%first mbarrier.init.shared.b64 [%bar], 4;
              bar.sync 0;
              mov.u32 %n, 4;
              mbarrier.arrive.shared.b64 %state, [%bar];
              wait1:
              mbarrier.test_wait.shared.b64 %done, [%bar], %state;
              @!%done bra wait1;
              mbarrier.test_wait.parity.shared.b64 %p, [%bar], 0;
              mbarrier.test_wait.parity.shared.b64 %q, [%bar], 1;
              bar.sync 0;
              mbarrier.arrive.shared.b64 %state, [%bar];
              wait2:
              mbarrier.test_wait.parity.shared.b64 %done, [%bar], 1;
              @!%done bra wait2;
              mov.pred %r, %done;
              bar.sync 0;
              @%first mbarrier.inval.shared.b64 [%bar];""", derivation=BY_HAND, target="sm_80", version="7.1",
           declarations=".shared .align 8 .b64 barrier;\n.reg .b32 %bar;\n.reg .b64 %state;\n.reg .pred %first, %done;")
    kernel("mbarrier_pending_count", "mbarrier.arrive with a count, arrive_drop, arrive.noComplete, pending_count", [], [("a", "b32"), ("b", "b32"), ("c", "b32"), ("d", "b32")],
           [((), (6, 4, 3, 2))],
           """mov.u32 %bar, barrier;
              mbarrier.init.shared.b64 [%bar], 6;
              mbarrier.arrive.noComplete.shared.b64 %s0, [%bar], 2;
              mbarrier.arrive.shared.b64 %s1, [%bar];
              mbarrier.arrive_drop.shared.b64 %s2, [%bar];
              mbarrier.arrive.noComplete.shared.b64 %s3, [%bar], 1;
              mbarrier.pending_count.b64 %a, %s0;
              mbarrier.pending_count.b64 %b, %s1;
              mbarrier.pending_count.b64 %c, %s2;
              mbarrier.pending_count.b64 %d, %s3;""", derivation="the state before each arrival, counted by hand", target="sm_80", version="7.1",
           declarations=".shared .align 8 .b64 barrier;\n.reg .b32 %bar;\n.reg .b64 %s0, %s1, %s2, %s3;")
    rows = [((50 + i,), (50 + i, 1)) for i in range(32)]
    kernel("mbarrier_try_wait", "mbarrier.try_wait.parity with acquire, arrive with release and a sink", [("a", "b32")], [("d", "b32"), ("p", "pred")], rows,
           """setp.eq.u32 %first, %row, 0;
              mov.u32 %bar, barrier;
              mov.u32 %base, pool;
              mad.lo.u32 %own, %row, 4, %base;
              @%first mbarrier.init.shared::cta.b64 [%bar], 32;
              bar.sync 0;
              st.shared.b32 [%own], %a;
              mbarrier.arrive.release.cta.shared::cta.b64 _, [%bar];
              again:
              mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [%bar], 0;
              @!%p bra again;
              ld.shared.b32 %d, [%own];""", derivation=BY_HAND, target="sm_90", version="8.0",
           declarations=".shared .align 8 .b64 barrier;\n.shared .align 4 .b8 pool[128];\n.reg .b32 %bar, %base, %own;\n.reg .pred %first;")


def bulk():
    rows = [((0x1000 + i,), (0x1000 + i,)) for i in range(8)]
    kernel("cp_async_bulk_load", "cp.async.bulk global to shared::cluster with mbarrier complete_tx", [("a", "b64")], [("d", "b64")], rows,
           """setp.eq.u32 %first, %row, 0;
              mov.u32 %bar, barrier;
              mov.u32 %base, pool;
              @!%first bra ready;
              mbarrier.init.shared::cta.b64 [%bar], 1;
              fence.mbarrier_init.release.cluster;
              mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 64;
              cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%in], 64, [%bar];
              ready:
              bar.sync 0;
              again:
              mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;
              @!%done bra again;
              mad.lo.u32 %own, %row, 8, %base;
              ld.shared.b64 %d, [%own];""", derivation=BY_HAND, target="sm_90", version="8.0",
           declarations=".shared .align 8 .b64 barrier;\n.shared .align 128 .b8 pool[64];\n.reg .b32 %bar, %base, %own;\n.reg .pred %first, %done;")
    rows = [((0x2000 + i,), (0x2000 + i,)) for i in range(8)]
    kernel("cp_async_bulk_store", "cp.async.bulk shared::cta to global, bulk commit_group and wait_group", [("a", "b64")], [("d", "b64")], rows,
           """setp.eq.u32 %first, %row, 0;
              mov.u32 %base, pool;
              mad.lo.u32 %own, %row, 8, %base;
              st.shared.b64 [%own], %a;
              fence.proxy.async.shared::cta;
              bar.sync 0;
              @!%first bra stored;
              cp.async.bulk.global.shared::cta.bulk_group [%out], [%base], 64;
              cp.async.bulk.commit_group;
              cp.async.bulk.wait_group 0;
              stored:
              bar.sync 0;
              ld.global.b64 %d, [%out];""", derivation=BY_HAND, target="sm_90", version="8.0",
           declarations=".shared .align 128 .b8 pool[64];\n.reg .b32 %base, %own;\n.reg .pred %first;")
    kernel("cp_reduce_async_bulk", "cp.reduce.async.bulk.add.u64 shared::cta to global", [("a", "b64")], [("d", "b64")], [((10 + i,), (10 + i + 100 * i,)) for i in range(8)],
           """setp.eq.u32 %first, %row, 0;
              mov.u32 %base, pool;
              mad.lo.u32 %own, %row, 8, %base;
              st.shared.b64 [%own], %a;
              mul.wide.u32 %start, %row, 100;
              st.global.b64 [%out], %start;
              fence.proxy.async;
              bar.sync 0;
              @!%first bra stored;
              cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%out], [%base], 64;
              cp.async.bulk.commit_group;
              cp.async.bulk.wait_group.read 0;
              cp.async.bulk.wait_group 0;
              stored:
              bar.sync 0;
              ld.global.b64 %d, [%out];""", derivation=BY_HAND, target="sm_90", version="8.0",
           declarations=".shared .align 128 .b8 pool[64];\n.reg .b32 %base, %own;\n.reg .b64 %start;\n.reg .pred %first;")
    rows = [((77 + i,), (77 + i,)) for i in range(128)]
    kernel("setmaxnreg", "setmaxnreg.dec and .inc by a whole warpgroup", [("a", "b32")], [("d", "b32")], rows,
           "setmaxnreg.dec.sync.aligned.u32 40;\nmov.b32 %d, %a;\nsetmaxnreg.inc.sync.aligned.u32 64;", derivation="no value changes", target="sm_120a", version="8.7", directives=".maxntid 128, 1, 1\n.maxnreg 64")


def run():
    cp_async()
    mbarrier()
    bulk()
