"""Loads, stores, spaces, atomics, asynchronous copies: what was stored comes back."""

from fractions import Fraction

from files import kernel
from integers import cut, value
from numbers_exact import add, bits, decode, encode

BY_HAND = "by hand"
A32 = [0x00000001, 0xFFFFFFFE, 0x12345678, 0x80000000, 0x7FFFFFFF]
A64 = [0x0000000000000001, 0xFEDCBA9876543210, 0x8000000080000000]


def plain():
    for ty in ("u8", "s8", "u16", "s16", "u32", "s32"):
        n = int(ty[1:])
        for space, address, declarations, fill in (
            ("global", "%in", "", ""),
            ("shared", "%own", ".shared .align 8 .b8 pool[256];\n.reg .b32 %own;", "mov.u32 %own, pool;\nmad.lo.u32 %own, %row, 8, %own;\nst.shared.b32 [%own], %a;"),
            ("local", "pool", ".local .align 8 .b8 pool[8];", "st.local.b32 [pool], %a;"),
        ):
            rows = [((a,), (cut(value(a, ty), 32),)) for a in A32]
            kernel(f"ld_{space}_{ty}", f"ld.{space}.{ty} into a 32-bit register", [("a", "b32")], [("d", "b32")], rows, f"{fill}\nld.{space}.{ty} %d, [{address}];", derivation=BY_HAND, declarations=declarations)
            if ty[0] == "u":
                rows = [((a,), ((0x55555555 & ~((1 << n) - 1)) | cut(a, n),)) for a in A32]
                target = {"global": "%in", "shared": "%own", "local": "pool"}[space]
                fill2 = fill.split("st.")[0] + f"mov.b32 %fives, 0x55555555;\nst.{space}.b32 [{target}], %fives;"
                kernel(f"st_{space}_{ty}", f"st.{space}.{ty} leaves the neighbours alone", [("a", "b32")], [("d", "b32")], rows, f"{fill2}\nst.{space}.{ty} [{target}], %a;\nld.{space}.b32 %d, [{target}];", derivation=BY_HAND, declarations=declarations + "\n.reg .b32 %fives;")
    names = [f"{c}{i}" for c in "a" for i in range(4)]
    four = [(n, "b32") for n in names]
    rows = [(tuple(A32[i:] + A32[:i])[:4], tuple(A32[i:] + A32[:i])[:4]) for i in range(5)]
    # A row has 8-byte slots; vectors are gathered in shared memory first.
    pool = ".shared .align 16 .b8 pool[256];\n.reg .b32 %own;\n.reg .b64 %long;\n.reg .b64 %long2;\n.reg .b16 %h<4>;"
    own = "mov.u32 %own, pool;\nmad.lo.u32 %own, %row, 16, %own;\n"
    for op, out in (
        ("v4.b32", "st.shared.v4.b32 [%own], {%a0, %a1, %a2, %a3};\nld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%own];"),
        ("v2.b32", "st.shared.v2.b32 [%own], {%a0, %a1};\nst.shared.v2.b32 [%own+8], {%a2, %a3};\nld.shared.v2.b32 {%d0, %d1}, [%own];\nld.shared.v2.b32 {%d2, %d3}, [%own+8];"),
        ("v2.b64", "mov.b64 %long, {%a0, %a1};\nmov.b64 %long2, {%a2, %a3};\nst.shared.v2.b64 [%own], {%long, %long2};\nld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%own];"),
        ("f32", "st.shared.b32 [%own], %a0;\nst.shared.b32 [%own+4], %a1;\nst.shared.b32 [%own+8], %a2;\nst.shared.b32 [%own+12], %a3;\nld.shared.v4.f32 {%d0, %d1, %d2, %d3}, [%own];"),
    ):
        kernel(f"ld_st_shared_{op.replace('.', '_')}", f"ld.shared and st.shared, {op}", four, [(f"d{i}", "b32") for i in range(4)], rows, own + out, derivation=BY_HAND, declarations=pool)
    rows = [((a,), (a & 0xFFFF, a >> 16 & 0xFFFF, a & 0xFF, a >> 24)) for a in A32]
    kernel("ld_shared_v2_v4_narrow", "ld.shared.v2.b16, ld.shared.v4.u8", [("a", "b32")], [("x", "b16"), ("y", "b16"), ("l", "b16"), ("h", "b16")], rows,
           own + "st.shared.b32 [%own], %a;\nld.shared.v2.b16 {%x, %y}, [%own];\nld.shared.v4.u8 {%l, %h1, %h2, %h}, [%own];", derivation=BY_HAND, declarations=pool)
    rows = [((a, b), (a, b)) for a, b in zip(A64, A64[1:] + A64[:1])]
    kernel("ld_global_v2_b64", "ld.global.nc.v2.u64, st.global.v2.u64", [("a", "b64"), ("b", "b64")], [("d", "b64"), ("e", "b64")], rows,
           "ld.global.nc.v2.u64 {%d, %e}, [%in];\nst.global.v2.u64 [%out], {%a, %b};", derivation=BY_HAND)
    rows = [((a,), (a, a, a, a, a, a)) for a in A32]
    kernel("ld_global_forms", "ld.global with cache operators, volatile, relaxed, acquire", [("a", "b32")], [(f"d{i}", "b32") for i in range(6)], rows,
           """ld.global.ca.u32 %d0, [%in];
              ld.global.cg.u32 %d1, [%in];
              ld.global.cs.u32 %d2, [%in];
              ld.volatile.global.u32 %d3, [%in];
              ld.relaxed.gpu.global.u32 %d4, [%in];
              ld.acquire.sys.global.u32 %d5, [%in];""", derivation=BY_HAND)
    kernel("st_global_forms", "st.global with cache operators, volatile, relaxed, release", [("a", "b32")], [(f"d{i}", "b32") for i in range(6)], rows,
           """st.global.wb.u32 [%in], %a;
              ld.global.u32 %d0, [%in];
              st.global.cg.u32 [%in], %a;
              ld.global.u32 %d1, [%in];
              st.global.wt.u32 [%in], %a;
              ld.global.u32 %d2, [%in];
              st.volatile.global.u32 [%in], %a;
              ld.global.u32 %d3, [%in];
              st.relaxed.gpu.global.u32 [%in], %a;
              ld.global.u32 %d4, [%in];
              st.release.sys.global.u32 [%in], %a;
              ld.global.u32 %d5, [%in];""", derivation=BY_HAND)
    rows = [((a,), (a,)) for a in A32]
    kernel("ld_cache_hint", "createpolicy and ld.global.L2::cache_hint", [("a", "b32")], [("d", "b32")], rows,
           "createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;\nld.global.L1::no_allocate.L2::cache_hint.u32 %d, [%in], %policy;", derivation=BY_HAND, version="7.4", declarations=".reg .b64 %policy;")


def spaces():
    rows = [((i,), (10 * i + 3, 100 + i)) for i in range(4)]
    kernel("ld_const_and_global_variable", "ld.const of a .const variable, ld.global of a .global variable with an initialiser", [("a", "u32")], [("c", "u32"), ("g", "u32")], rows,
           """mov.u64 %base, table;
              mul.wide.u32 %offset, %a, 4;
              add.u64 %base, %base, %offset;
              ld.const.u32 %c, [%base];
              mov.u64 %base, words;
              add.u64 %base, %base, %offset;
              ld.global.u32 %g, [%base];""", derivation=BY_HAND, declarations=".reg .b64 %base, %offset;",
           preamble=".const .align 4 .u32 table[4] = {3, 13, 23, 33};\n.global .align 4 .u32 words[4] = {100, 101, 102, 103};")
    rows = [((a,), (a, a, a, 0, 1, 0, 0, 1)) for a in A32]
    kernel("cvta_isspacep", "cvta.shared, cvta.to.shared, cvta.global, isspacep and generic loads", [("a", "b32")], [("d", "b32"), ("e", "b32"), ("f", "b32"), ("p", "pred"), ("q", "pred"), ("r", "pred"), ("s", "pred"), ("l", "pred")], rows,
           """mov.u32 %own, pool;
              mad.lo.u32 %own, %row, 4, %own;
              st.shared.b32 [%own], %a;
              cvt.u64.u32 %own64, %own;
              cvta.shared.u64 %generic, %own64;
              ld.b32 %d, [%generic];
              cvta.to.shared.u64 %back, %generic;
              ld.shared.b32 %e, [%back];
              cvta.global.u64 %gen2, %in;
              ld.b32 %f, [%gen2];
              isspacep.global %p, %generic;
              isspacep.shared %q, %generic;
              isspacep.shared %r, %gen2;
              isspacep.local %s, %gen2;
              mov.u64 %own64, spot;
              cvta.local.u64 %gen3, %own64;
              isspacep.local %l, %gen3;""", derivation=BY_HAND,
           declarations=".shared .align 4 .b8 pool[64];\n.local .align 4 .b8 spot[4];\n.reg .b32 %own;\n.reg .b64 %own64, %generic, %back, %gen2, %gen3;")
    rows = [((a, b), (a & 0xFFFFFFFF, a >> 32, a & 0xFFFF, b << 16 & 0xFFFFFFFF | a & 0xFFFF, b << 32 | a & 0xFFFFFFFF, a & 0xFF)) for a, b in ((0x123456789ABCDEF0, 0x1111), (0xFFFFFFFF00000000, 0x8000), (1, 2))]
    kernel("mov_pack_unpack", "mov.b64 and mov.b32 between a scalar and its parts", [("a", "b64"), ("b", "b16")], [("l", "b32"), ("h", "b32"), ("q", "b16"), ("p", "b32"), ("w", "b64"), ("o", "b16")], rows,
           """mov.b64 {%l, %h}, %a;
              mov.b64 {%q, %q1, %q2, %q3}, %a;
              mov.b32 %p, {%q, %b};
              cvt.u32.u16 %wide, %b;
              mov.b64 %w, {%l, %wide};
              and.b16 %o, %q, 255;""", derivation=BY_HAND, declarations=".reg .b16 %q1, %q2, %q3;\n.reg .b32 %wide;")
    rows = [((), (i, 8, 1, 0, 1, i % 32, 0, 1 << i, (1 << i) - 1, (2 << i) - 1, cut(0xFFFFFFFF << i, 32), cut(0xFFFFFFFE << i, 32))) for i in range(8)]
    kernel("special_registers", "special registers of a block of 8 threads", [], [(f"d{i}", "b32") for i in range(12)], rows,
           """mov.u32 %d0, %tid.x;
              mov.u32 %d1, %ntid.x;
              mov.u32 %d2, %ntid.y;
              mov.u32 %d3, %ctaid.x;
              mov.u32 %d4, %nctaid.z;
              mov.u32 %d5, %laneid;
              mov.u32 %d6, %ctaid.y;
              mov.u32 %d7, %lanemask_eq;
              mov.u32 %d8, %lanemask_lt;
              mov.u32 %d9, %lanemask_le;
              mov.u32 %d10, %lanemask_ge;
              mov.u32 %d11, %lanemask_gt;""", derivation=BY_HAND)
    rows = [((a,), (a, a, a)) for a in A32]
    kernel("hints", "prefetch, nanosleep, griddepcontrol-free hints change nothing", [("a", "b32")], [("d", "b32"), ("e", "b32"), ("f", "b32")], rows,
           """prefetch.global.L2 [%in];
              prefetch.global.L1 [%in];
              ld.global.u32 %d, [%in];
              nanosleep.u32 20;
              mov.u32 %e, %a;
              discard.global.L2 [%line], 128;
              mov.u32 %f, %d;""".replace("discard.global.L2 [%line], 128;\n", ""), derivation=BY_HAND, version="7.4")


ATOMS = {
    "add": ("u32 s32 u64 f32 f64", None),
    "min": ("u32 s32 u64 s64", min),
    "max": ("u32 s32 u64 s64", max),
    "and": ("b32 b64", lambda a, b: a & b),
    "or": ("b32 b64", lambda a, b: a | b),
    "xor": ("b32 b64", lambda a, b: a ^ b),
    "exch": ("b32 b64", lambda a, b: b),
    "inc": ("u32", lambda a, b: 0 if a >= b else a + 1),
    "dec": ("u32", lambda a, b: b if a == 0 or a > b else a - 1),
}


def atomics():
    for op, (types, f) in ATOMS.items():
        for ty in types.split():
            n = int(ty[1:])
            if ty[0] == "f":
                vals = [(bits(1, ty), bits(2.5, ty)), (bits(-1, ty), bits(1, ty)), (bits("inf", ty), bits("-inf", ty)), (bits(1, ty), encode(Fraction(1, 3), ty))]
                rows = [((a, b), (a, encode(add(decode(a, ty), decode(b, ty)), ty))) for a, b in vals]
            else:
                vals = [(5, 3), (3, 5), (cut(-1, n), 1), (0, 7), (1 << (n - 1), cut(-2, n))]
                g = (lambda a, b: a + b) if op == "add" else f
                t = ty.replace("b", "u")
                rows = [((a, b), (a, cut(g(value(a, t), value(b, t)), n))) for a, b in vals]
            for space in ("global", "shared"):
                pool = "" if space == "global" else ".shared .align 8 .b8 pool[64];\n.reg .b32 %own;"
                where = "%in" if space == "global" else "%own"
                first = "" if space == "global" else f"mov.u32 %own, pool;\nmad.lo.u32 %own, %row, 8, %own;\nst.shared.b{n} [%own], %a;\n"
                register = ty if ty[0] == "f" else f"b{n}"
                kernel(f"atom_{space}_{op}_{ty}", f"atom.{space}.{op}.{ty}", [("a", register), ("b", register)], [("d", register), ("m", register)], rows,
                       f"{first}atom.{space}.{op}.{ty} %d, [{where}], %b;\nld.{space}.b{n} %m, [{where}];", derivation=BY_HAND, declarations=pool)
                if op in ("add", "min", "or", "inc"):
                    red = [((a, b), (m,)) for (a, b), (_, m) in rows]
                    kernel(f"red_{space}_{op}_{ty}", f"red.{space}.{op}.{ty}", [("a", register), ("b", register)], [("m", register)], red,
                           f"{first}red.{space}.{op}.{ty} [{where}], %b;\nld.{space}.b{n} %m, [{where}];", derivation=BY_HAND, declarations=pool)
    for n in (32, 64):
        rows = [((a, b, c), (a, c if a == b else a)) for a, b, c in ((5, 5, 9), (5, 6, 9), (0, 0, cut(-1, n)))]
        kernel(f"atom_global_cas_b{n}", f"atom.global.cas.b{n}", [("a", f"b{n}"), ("b", f"b{n}"), ("c", f"b{n}")], [("d", f"b{n}"), ("m", f"b{n}")], rows,
               f"atom.global.cas.b{n} %d, [%in], %b, %c;\nld.global.b{n} %m, [%in];", derivation=BY_HAND)
    rows = [((a, b, c), (a, c if a == b else a)) for a, b, c in ((5, 5, 9), (5, 6, 9))]
    kernel("atom_shared_cas_b32", "atom.shared.cas.b32", [("a", "b32"), ("b", "b32"), ("c", "b32")], [("d", "b32"), ("m", "b32")], rows,
           "mov.u32 %own, pool;\nmad.lo.u32 %own, %row, 8, %own;\nst.shared.b32 [%own], %a;\natom.shared.cas.b32 %d, [%own], %b, %c;\nld.shared.b32 %m, [%own];", derivation=BY_HAND, declarations=".shared .align 8 .b8 pool[64];\n.reg .b32 %own;")
    kernel("atom_global_cas_b16", "atom.global.cas.b16", [("a", "b16"), ("b", "b16"), ("c", "b16")], [("d", "b16"), ("m", "b16")], rows,
           "atom.global.cas.b16 %d, [%in], %b, %c;\nld.global.b16 %m, [%in];", derivation=BY_HAND)
    for fmt, target, version in (("f16", "sm_80", "7.0"), ("bf16", "sm_90", "7.8")):
        pair = lambda x, y: bits(x, fmt) << 16 | bits(y, fmt)
        rows = [((pair(1, 2), pair(3, -2)), (pair(1, 2), pair(4, 0))), ((pair(0.5, 100), pair(0.25, 1)), (pair(0.5, 100), pair(0.75, 101)))]
        kernel(f"atom_global_add_{fmt}x2", f"atom.global.add.noftz.{fmt}x2", [("a", "b32"), ("b", "b32")], [("d", "b32"), ("m", "b32")], rows,
               f"atom.global.add.noftz.{fmt}x2 %d, [%in], %b;\nld.global.b32 %m, [%in];", derivation="sums that the format holds exactly", target=target, version=version)
        rows = [((bits(1, fmt), bits(2, fmt)), (bits(1, fmt), bits(3, fmt)))]
        kernel(f"atom_global_add_{fmt}", f"atom.global.add.noftz.{fmt}", [("a", "b16"), ("b", "b16")], [("d", "b16"), ("m", "b16")], rows,
               f"atom.global.add.noftz.{fmt} %d, [%in], %b;\nld.global.b16 %m, [%in];", derivation="sums that the format holds exactly", target=target, version=version)
    # All lanes add to one word: the old values are a permutation of the partial sums, the sum is certain.
    rows = [((1,), (32,)) for _ in range(32)]
    kernel("atom_shared_contended", "atom.shared.add.u32 by 32 lanes on one word", [("a", "b32")], [("m", "b32")], rows,
           """setp.eq.u32 %first, %row, 0;
              mov.b32 %zero, 0;
              @%first st.shared.b32 [pool], %zero;
              bar.sync 0;
              atom.shared.add.u32 %old, [pool], %a;
              bar.sync 0;
              ld.shared.b32 %m, [pool];""", derivation=BY_HAND, declarations=".shared .align 4 .b8 pool[4];\n.reg .pred %first;\n.reg .b32 %zero, %old;")
    rows = [((a, b), (a, cut(a + b, 32))) for a, b in ((1, 2), (7, 8))]
    kernel("atom_forms", "atom with scopes and orderings: acq_rel.gpu, relaxed.sys, acquire.cta, release.cluster", [("a", "b32"), ("b", "b32")], [("d", "b32"), ("m", "b32")], rows,
           """atom.acq_rel.gpu.global.add.u32 %d, [%in], %b;
              atom.relaxed.sys.global.add.u32 %x, [%in], 1;
              atom.acquire.cta.global.add.u32 %x, [%in], 2;
              atom.release.cluster.global.add.u32 %x, [%in], 3;
              red.release.gpu.global.add.u32 [%in], -6;
              ld.global.u32 %m, [%in];""", derivation=BY_HAND, target="sm_90", version="7.8", declarations=".reg .b32 %x;")


def run():
    plain()
    spaces()
    atomics()
