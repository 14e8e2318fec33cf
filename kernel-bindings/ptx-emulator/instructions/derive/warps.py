"""Warp and block instructions: 32 or 64 threads, expected values by the pseudo-code of the ISA."""

from files import kernel

BY_HAND = "by the pseudo-code of the ISA"
FULL = 0xFFFFFFFF


def lanes(f, n=32):
    return [f(i) for i in range(n)]


def shuffle():
    data = lanes(lambda i: 1000 + 7 * i)
    for mode, b_values in (("up", (1, 3, 16, 31)), ("down", (1, 3, 16, 31)), ("bfly", (1, 5, 16, 31)), ("idx", (0, 3, 20, 31))):
        for segment in (32, 8):
            # c: clamp in bits 0..4, segment mask in bits 8..12.
            c = ((32 - segment) << 8) | (0 if mode == "up" else 31)
            rows = []
            outs = []
            for lane in range(32):
                row = []
                for b in b_values:
                    mask, cval = c >> 8 & 31, c & 31
                    max_lane = (lane & mask) | (cval & ~mask & 31)
                    min_lane = lane & mask
                    if mode == "up":
                        j = lane - b
                        good = j >= max_lane
                    elif mode == "down":
                        j = lane + b
                        good = j <= max_lane
                    elif mode == "bfly":
                        j = lane ^ b
                        good = j <= max_lane
                    else:
                        j = min_lane | (b & ~mask & 31)
                        good = j <= max_lane
                    if not good:
                        j = lane
                    row += [data[j], int(good)]
                outs.append(tuple(row))
                rows.append(((data[lane],), tuple(row)))
            columns = []
            body = ""
            for i, b in enumerate(b_values):
                columns += [(f"d{i}", "b32"), (f"p{i}", "pred")]
                body += f"shfl.sync.{mode}.b32 %d{i}|%p{i}, %a, {b}, {c:#x}, -1;\n"
            kernel(f"shfl_{mode}_{segment}", f"shfl.sync.{mode}.b32 in segments of {segment}", [("a", "b32")], columns, rows, body, derivation=BY_HAND)
    rows = [((data[i], (i * 5 + 2) % 32), (data[(i * 5 + 2) % 32],)) for i in range(32)]
    kernel("shfl_idx_register", "shfl.sync.idx.b32 with a lane number per lane", [("a", "b32"), ("b", "b32")], [("d", "b32")], rows, "shfl.sync.idx.b32 %d, %a, %b, 31, -1;", derivation=BY_HAND)


def votes():
    rows = []
    bits = 0xF00F1234
    for i in range(32):
        p = bits >> i & 1
        rows.append(((p,), (0, 1, 0, bits, 1, FULL)))
    kernel("vote_sync", "vote.sync.all, .any, .uni, .ballot", [("a", "u32")], [("all", "pred"), ("any", "pred"), ("uni", "pred"), ("b", "b32"), ("same", "pred"), ("ones", "b32")], rows,
           """setp.ne.u32 %p, %a, 0;
              setp.eq.u32 %q, %a, %a;
              vote.sync.all.pred %all, %p, -1;
              vote.sync.any.pred %any, %p, -1;
              vote.sync.uni.pred %uni, %p, -1;
              vote.sync.ballot.b32 %b, %p, -1;
              vote.sync.uni.pred %same, %q, -1;
              vote.sync.ballot.b32 %ones, %q, -1;""", derivation=BY_HAND, declarations=".reg .pred %p, %q;")
    values = [i % 3 for i in range(32)]
    masks = {v: sum(1 << i for i in range(32) if values[i] == v) for v in set(values)}
    rows = [((values[i],), (masks[values[i]], 0, 0, FULL, 1)) for i in range(32)]
    kernel("match_sync", "match.any.sync, match.all.sync of b32", [("a", "b32")], [("any", "b32"), ("all", "b32"), ("p", "pred"), ("all2", "b32"), ("p2", "pred")], rows,
           """match.any.sync.b32 %any, %a, -1;
              match.all.sync.b32 %all|%p, %a, -1;
              mov.b32 %same, 7;
              match.all.sync.b32 %all2|%p2, %same, -1;""", derivation=BY_HAND, declarations=".reg .b32 %same;")
    wide = [0x100000000 * (i & 1) + 5 for i in range(32)]
    masks = {v: sum(1 << i for i in range(32) if wide[i] == v) for v in set(wide)}
    rows = [((wide[i],), (masks[wide[i]],)) for i in range(32)]
    kernel("match_any_sync_b64", "match.any.sync.b64", [("a", "b64")], [("any", "b32")], rows, "match.any.sync.b64 %any, %a, -1;", derivation=BY_HAND)
    values = [(i * 0x9E3779B9 + 0x12345) & FULL for i in range(32)]
    signed = [v - (1 << 32) if v >> 31 else v for v in values]
    total = sum(values) & FULL
    a, o, x = FULL, 0, 0
    for v in values:
        a, o, x = a & v, o | v, x ^ v
    rows = [((values[i],), (total, total, min(values), max(values), min(signed) & FULL, max(signed) & FULL, a, o, x)) for i in range(32)]
    names = [("add.u32", "d0"), ("add.s32", "d1"), ("min.u32", "d2"), ("max.u32", "d3"), ("min.s32", "d4"), ("max.s32", "d5"), ("and.b32", "d6"), ("or.b32", "d7"), ("xor.b32", "d8")]
    kernel("redux_sync", "redux.sync", [("a", "b32")], [(d, "b32") for _, d in names], rows, "\n".join(f"redux.sync.{op} %{d}, %a, -1;" for op, d in names), derivation=BY_HAND)
    rows = [((i,), (0x0000FF00 if 8 <= i < 16 else None, (sum(range(8, 16)) if 8 <= i < 16 else None))) for i in range(32)]
    kernel("partial_masks", "vote, redux and shfl by 8 of 32 lanes with their mask", [("a", "u32")], [("b", "b32"), ("s", "u32")], rows,
           """setp.lt.u32 %low, %a, 8;
              setp.ge.or.u32 %rest, %a, 16, %low;
              @%rest bra end;
              setp.eq.u32 %p, %a, %a;
              vote.sync.ballot.b32 %b, %p, 0xff00;
              redux.sync.add.u32 %s, %a, 0xff00;
              bar.warp.sync 0xff00;
              bra store;
              end:
              ret;
              store:""", derivation=BY_HAND, declarations=".reg .pred %low, %rest, %p;")
    rows = [((), (FULL, 1, 1)) for i in range(32)]
    kernel("activemask_elect", "activemask, elect.sync: one leader, known to all", [], [("m", "b32"), ("c", "b32"), ("ok", "b32")], rows,
           """bar.warp.sync -1;
              activemask.b32 %m;
              elect.sync %leader|%p, -1;
              vote.sync.ballot.b32 %votes, %p, -1;
              popc.b32 %c, %votes;
              mov.b32 %one, 1;
              shl.b32 %one, %one, %leader;
              setp.eq.b32 %same, %one, %votes;
              selp.b32 %ok, 1, 0, %same;""", derivation=BY_HAND, target="sm_90", version="8.0", declarations=".reg .b32 %leader, %votes, %one;\n.reg .pred %p, %same;")


def control():
    rows = [((n,), (n * (n + 1) // 2,)) for n in (0, 1, 5, 100, 17)]
    kernel("bra_loop", "bra: a loop with a trip count per thread", [("a", "u32")], [("d", "u32")], rows,
           """mov.u32 %d, 0;
              mov.u32 %i, 0;
              head:
              setp.ge.u32 %done, %i, %a;
              @%done bra end;
              add.u32 %i, %i, 1;
              add.u32 %d, %d, %i;
              bra head;
              end:""", derivation=BY_HAND, declarations=".reg .b32 %i;\n.reg .pred %done;")
    rows = [((n,), ([11, 22, 33, 22][n],)) for n in (0, 1, 2, 3, 1, 0)]
    kernel("brx_idx", "brx.idx", [("a", "u32")], [("d", "u32")], rows,
           """table: .branchtargets zero, one, two, one;
              brx.idx %a, table;
              zero:
              mov.u32 %d, 11;
              bra end;
              one:
              mov.u32 %d, 22;
              bra end;
              two:
              mov.u32 %d, 33;
              end:""", derivation=BY_HAND)
    rows = [((n,), (None if n == 3 else n + 1,)) for n in range(8)]
    kernel("exit_one_thread", "exit by one thread, guards @p and @!p", [("a", "u32")], [("d", "u32")], rows,
           """setp.eq.u32 %p, %a, 3;
              @%p exit;
              @!%p add.u32 %d, %a, 1;""", derivation=BY_HAND, declarations=".reg .pred %p;")


def barriers():
    rows = [((i,), (63 - i,)) for i in range(64)]
    kernel("bar_sync", "bar.sync: threads read what the others wrote before it", [("a", "u32")], [("d", "u32")], rows,
           """shl.b32 %at, %a, 2;
              mov.u32 %base, pool;
              add.u32 %at, %at, %base;
              st.shared.u32 [%at], %a;
              bar.sync 0;
              sub.u32 %from, 63, %a;
              shl.b32 %from, %from, 2;
              add.u32 %from, %from, %base;
              ld.shared.u32 %d, [%from];""", derivation=BY_HAND, declarations=".shared .align 4 .b8 pool[256];\n.reg .b32 %at, %base, %from;")
    rows = [((i % 3 == 0,), (22, 0, 1, 22)) for i in range(64)]
    kernel("bar_red", "bar.red.popc, .and, .or, barrier.red.popc with a thread count", [("a", "u32")], [("c", "u32"), ("all", "pred"), ("any", "pred"), ("k", "u32")], [((int(a[0]),), b) for a, b in rows],
           """setp.ne.u32 %p, %a, 0;
              bar.red.popc.u32 %c, 0, %p;
              bar.red.and.pred %all, 0, %p;
              bar.red.or.pred %any, 0, %p;
              barrier.red.popc.u32 %k, 3, 64, %p;""", derivation=BY_HAND, declarations=".reg .pred %p;")
    rows = [((i,), (i + 100 if i >= 32 else 0,)) for i in range(64)]
    kernel("bar_arrive", "bar.arrive by the producer, bar.sync by the consumer, on barrier 1 of 64 threads", [("a", "u32")], [("d", "u32")], rows,
           """mov.u32 %d, 0;
              and.b32 %lane, %a, 31;
              shl.b32 %at, %lane, 2;
              mov.u32 %base, pool;
              add.u32 %at, %at, %base;
              setp.ge.u32 %consumer, %a, 32;
              @%consumer bra consume;
              add.u32 %x, %a, 132;
              st.shared.u32 [%at], %x;
              bar.arrive 1, 64;
              bra end;
              consume:
              bar.sync 1, 64;
              ld.shared.u32 %d, [%at];
              end:""", derivation=BY_HAND, declarations=".shared .align 4 .b8 pool[128];\n.reg .b32 %lane, %at, %base, %x;\n.reg .pred %consumer;")
    rows = [((i,), (31 - i,)) for i in range(32)]
    kernel("bar_warp_sync", "bar.warp.sync orders the lanes of a warp", [("a", "u32")], [("d", "u32")], rows,
           """shl.b32 %at, %a, 2;
              mov.u32 %base, pool;
              add.u32 %at, %at, %base;
              st.shared.u32 [%at], %a;
              bar.warp.sync -1;
              sub.u32 %from, 31, %a;
              shl.b32 %from, %from, 2;
              add.u32 %from, %from, %base;
              ld.shared.u32 %d, [%from];""", derivation=BY_HAND, declarations=".shared .align 4 .b8 pool[128];\n.reg .b32 %at, %base, %from;")
    rows = [((i,), (i,)) for i in range(4)]
    kernel("fences", "fence and membar change no value", [("a", "u32")], [("d", "u32")], rows,
           """fence.sc.sys;
              fence.acq_rel.gpu;
              fence.acq_rel.cta;
              membar.cta;
              membar.gl;
              membar.sys;
              fence.proxy.async;
              fence.proxy.async.shared::cta;
              fence.proxy.async.global;
              fence.mbarrier_init.release.cluster;
              mov.u32 %d, %a;""", derivation=BY_HAND, target="sm_90", version="8.0")
    rows = [((i,), (0, 1, 0, i + 5)) for i in range(4)]
    kernel("cluster_of_one", "barrier.cluster, mapa and %cluster registers of a cluster of one block", [("a", "u32")], [("r", "u32"), ("n", "u32"), ("i", "u32"), ("d", "u32")], rows,
           """mov.u32 %r, %cluster_ctarank;
              mov.u32 %n, %cluster_nctarank;
              mov.u32 %i, %cluster_ctaid.x;
              shl.b32 %at, %a, 2;
              mov.u32 %base, pool;
              add.u32 %at, %at, %base;
              add.u32 %x, %a, 5;
              st.shared.u32 [%at], %x;
              barrier.cluster.arrive;
              barrier.cluster.wait;
              mapa.shared::cluster.u32 %there, %at, 0;
              ld.shared::cluster.u32 %d, [%there];""", derivation=BY_HAND, target="sm_90", version="8.0", declarations=".shared .align 4 .b8 pool[16];\n.reg .b32 %at, %base, %x, %there;")
    rows = [((i,), (i,)) for i in range(4)]
    kernel("griddepcontrol", "griddepcontrol.launch_dependents, griddepcontrol.wait without a dependent launch", [("a", "u32")], [("d", "u32")], rows,
           "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\nmov.u32 %d, %a;", derivation=BY_HAND, target="sm_90", version="7.8")


def run():
    shuffle()
    votes()
    control()
    barriers()
