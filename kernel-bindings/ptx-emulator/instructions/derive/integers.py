"""Integer arithmetic, bits, predicates: plain Python integers."""

from files import kernel

BY_HAND = "integer arithmetic by the pseudo-code of the ISA"


def signed(x, n):
    x &= (1 << n) - 1
    return x - (1 << n) if x >> (n - 1) else x


def cut(x, n):
    return x & ((1 << n) - 1)


def value(x, ty):
    n = int(ty[1:])
    return signed(x, n) if ty[0] == "s" else cut(x, n)


def corners(n):
    return [0, 1, 2, 3, (1 << n) - 1, 1 << (n - 1), (1 << (n - 1)) - 1, cut(0x123456789ABCDEF0, n), cut(-12345, n)]


def pairs(n):
    c = corners(n)
    return [(a, c[(i * 4 + 1) % len(c)]) for i, a in enumerate(c)] + [(c[5], c[4]), (c[7], c[8]), (c[8], c[7])]


def trunc_div(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def table(name, title, ty, columns, rows, body, **more):
    inputs = [(n, ty if t is None else t) for n, t in columns]
    kernel(name, title, inputs, more.pop("outputs"), rows, body, derivation=more.pop("derivation", BY_HAND), **more)


def two_source():
    ops = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul.lo": lambda a, b: a * b,
        "div": trunc_div,
        "rem": lambda a, b: a - b * trunc_div(a, b),
        "min": min,
        "max": max,
    }
    for ty in ("s32", "u32", "s64", "u64", "s16", "u16"):
        n = int(ty[1:])
        for op, f in ops.items():
            rows = []
            for a, b in pairs(n):
                if op in ("div", "rem") and (b == 0 or (ty[0] == "s" and signed(b, n) == -1 and a == 1 << (n - 1))):
                    continue
                rows.append(((a, b), (cut(f(value(a, ty), value(b, ty)), n),)))
            word = f"{op}.{ty}"
            table(word.replace(".", "_"), word, ty, [("a", None), ("b", None)], rows, f"{word} %d, %a, %b;", outputs=[("d", ty)])
        rows = [((a, b), (cut(value(a, ty) * value(b, ty) >> n, n),)) for a, b in pairs(n)]
        table(f"mul_hi_{ty}", f"mul.hi.{ty}", ty, [("a", None), ("b", None)], rows, f"mul.hi.{ty} %d, %a, %b;", outputs=[("d", ty)])
        if n < 64:
            wide = f"{ty[0]}{2 * n}"
            rows = [((a, b), (cut(value(a, ty) * value(b, ty), 2 * n),)) for a, b in pairs(n)]
            table(f"mul_wide_{ty}", f"mul.wide.{ty}", ty, [("a", None), ("b", None)], rows, f"mul.wide.{ty} %d, %a, %b;", outputs=[("d", wide)])
            rows = [((a, b, c), (cut(value(a, ty) * value(b, ty) + c, 2 * n),)) for (a, b), c in zip(pairs(n), pairs(2 * n)[0] * 8)]
            table(f"mad_wide_{ty}", f"mad.wide.{ty}", ty, [("a", None), ("b", None), ("c", wide)], rows, f"mad.wide.{ty} %d, %a, %b, %c;", outputs=[("d", wide)])
        triples = [(a, b, corners(n)[(i * 3 + 2) % 9]) for i, (a, b) in enumerate(pairs(n))]
        for op, f in {
            "mad.lo": lambda a, b, c: a * b + c,
            "mad.hi": lambda a, b, c: (a * b >> n) + c,
            "sad": lambda a, b, c: c + abs(a - b),
        }.items():
            rows = [((a, b, c), (cut(f(value(a, ty), value(b, ty), value(c, ty)), n),)) for a, b, c in triples]
            word = f"{op}.{ty}"
            table(word.replace(".", "_"), word, ty, [("a", None), ("b", None), ("c", None)], rows, f"{word} %d, %a, %b, %c;", outputs=[("d", ty)])
    for ty in ("s32", "u32"):
        for half in ("lo", "hi"):
            shift = 16 if half == "hi" else 0
            rows, more = [], []
            for a, b in pairs(32):
                low = (lambda x: signed(x, 24)) if ty[0] == "s" else (lambda x: cut(x, 24))
                # The ISA asks for operands that hold 24-bit values.
                a, b = cut(low(a), 32), cut(low(b), 32)
                t = value(a, ty) * value(b, ty)
                rows.append(((a, b), (cut(t >> shift, 32),)))
                more.append(((a, b, 1000), (cut((t >> shift) + 1000, 32),)))
            table(f"mul24_{half}_{ty}", f"mul24.{half}.{ty}", ty, [("a", None), ("b", None)], rows, f"mul24.{half}.{ty} %d, %a, %b;", outputs=[("d", ty)])
            table(f"mad24_{half}_{ty}", f"mad24.{half}.{ty}", ty, [("a", None), ("b", None), ("c", None)], more, f"mad24.{half}.{ty} %d, %a, %b, %c;", outputs=[("d", ty)])
    for op in ("add", "min", "max"):
        for ty in ("u16x2", "s16x2"):
            part = ty[:3]
            f = {"add": lambda a, b: a + b, "min": min, "max": max}[op]
            rows = []
            for a, b in pairs(32):
                d = sum(cut(f(value(a >> s, part), value(b >> s, part)), 16) << s for s in (0, 16))
                rows.append(((a, b), (d,)))
            table(f"{op}_{ty}", f"{op}.{ty}", "b32", [("a", None), ("b", None)], rows, f"{op}.{ty} %d, %a, %b;", outputs=[("d", "b32")], target="sm_90", version="8.0")


def one_source():
    for ty in ("s16", "s32", "s64"):
        n = int(ty[1:])
        for op, f in {"abs": abs, "neg": lambda a: -a}.items():
            rows = [((a,), (cut(f(signed(a, n)), n),)) for a in corners(n)]
            table(f"{op}_{ty}", f"{op}.{ty}", ty, [("a", None)], rows, f"{op}.{ty} %d, %a;", outputs=[("d", ty)])
    for n in (16, 32, 64):
        ty = f"b{n}"
        for op, f in {"not": lambda a: ~a, "cnot": lambda a: int(a == 0)}.items():
            rows = [((a,), (cut(f(a), n),)) for a in corners(n)]
            table(f"{op}_{ty}", f"{op}.{ty}", ty, [("a", None)], rows, f"{op}.{ty} %d, %a;", outputs=[("d", ty)])
        for op, f in {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}.items():
            rows = [((a, b), (f(a, b),)) for a, b in pairs(n)]
            table(f"{op}_{ty}", f"{op}.{ty}", ty, [("a", None), ("b", None)], rows, f"{op}.{ty} %d, %a, %b;", outputs=[("d", ty)])
        # Shift amounts above the width are clamped to it.
        amounts = [0, 1, n // 2, n - 1, n, n + 1, 255, 0xFFFFFFFF]
        a = cut(0x9234567890ABCDEF, n)
        rows = [((a, s), (cut(a << min(s, n), n),)) for s in amounts]
        table(f"shl_{ty}", f"shl.{ty}", ty, [("a", None), ("b", "u32")], rows, f"shl.{ty} %d, %a, %b;", outputs=[("d", ty)])
        for sign in "us":
            rows = [((a, s), (cut(value(a, f"{sign}{n}") >> min(s, n), n),)) for s in amounts]
            table(f"shr_{sign}{n}", f"shr.{sign}{n}", ty, [("a", None), ("b", "u32")], rows, f"shr.{sign}{n} %d, %a, %b;", outputs=[("d", ty)])
    for n in (32, 64):
        ty = f"b{n}"
        rows = [((a,), (bin(a).count("1"), n - a.bit_length(), int(f"{a:0{n}b}"[::-1], 2))) for a in corners(n)]
        table(f"popc_clz_brev_{ty}", f"popc.{ty}, clz.{ty}, brev.{ty}", ty, [("a", None)], rows,
              f"popc.{ty} %p, %a;\nclz.{ty} %c, %a;\nbrev.{ty} %r, %a;", outputs=[("p", "u32"), ("c", "u32"), ("r", ty)])
        for sign in "us":
            rows = []
            for a in corners(n):
                x = cut(~a, n) if sign == "s" and a >> (n - 1) else a
                d = x.bit_length() - 1
                rows.append(((a,), (cut(d, 32), cut(n - 1 - d, 32) if d >= 0 else 0xFFFFFFFF)))
            table(f"bfind_{sign}{n}", f"bfind.{sign}{n}, bfind.shiftamt.{sign}{n}", ty, [("a", None)], rows,
                  f"bfind.{sign}{n} %d, %a;\nbfind.shiftamt.{sign}{n} %s, %a;", outputs=[("d", "u32"), ("s", "u32")])
        positions = [(0, 8), (4, 12), (n - 4, 8), (n - 1, 1), (3, 0), (0, n), (n, 4), (256 + 5, 256 + 3), (200, 200)]
        a, b = cut(0xFEDCBA9876543210, n), cut(0x5555AAAA33337777, n)
        for sign in "us":
            rows = []
            for pos, length in positions:
                p, ln = pos & 255, length & 255
                sbit = 0 if sign == "u" or ln == 0 else a >> min(p + ln - 1, n - 1) & 1
                d = sum((a >> (p + i) & 1 if i < ln and p + i < n else sbit) << i for i in range(n))
                rows.append(((a, pos, length), (d,)))
            table(f"bfe_{sign}{n}", f"bfe.{sign}{n}", ty, [("a", None), ("b", "u32"), ("c", "u32")], rows,
                  f"bfe.{sign}{n} %d, %a, %b, %c;", outputs=[("d", ty)])
        rows = []
        for pos, length in positions:
            d = b
            for i in range(length & 255):
                if (pos & 255) + i < n:
                    bit = 1 << ((pos & 255) + i)
                    d = d & ~bit | (bit if a >> i & 1 else 0)
            rows.append(((a, b, pos, length), (d,)))
        table(f"bfi_{ty}", f"bfi.{ty}", ty, [("a", None), ("b", None), ("c", "u32"), ("e", "u32")], rows,
              f"bfi.{ty} %d, %a, %b, %c, %e;", outputs=[("d", ty)])


def bit_tools():
    masks = [(0, 4), (4, 8), (28, 8), (31, 1), (0, 32), (40, 4), (5, 0), (0, 31), (33, 2)]
    for mode in ("clamp", "wrap"):
        rows = []
        for a, b in masks:
            mask0, total = cut(0xFFFFFFFF << (a & 31), 32), (a & 31) + (b & 31)
            position, wide = mode == "clamp" and a >= 32, mode == "clamp" and b >= 32
            if position:
                mask0 = 0
            if total >= 32 or position or wide:
                mask1 = 0
            elif b & 31 == 0:
                mask1 = 0xFFFFFFFF
            else:
                mask1 = cut(0xFFFFFFFF << total, 32)
            rows.append(((a, b), (mask0 & ~mask1 & 0xFFFFFFFF,)))
        table(f"bmsk_{mode}", f"bmsk.{mode}.b32", "b32", [("a", None), ("b", None)], rows, f"bmsk.{mode}.b32 %d, %a, %b;", outputs=[("d", "b32")], version="7.6")
        for ty in ("u32", "s32"):
            rows = []
            for a in (0x89ABCDEF, 0x7FFFFFFF, 0xFFFFFF80):
                for b in (0, 1, 8, 31, 32, 40):
                    b1, large = b & 31, mode == "clamp" and b >= 32
                    mask = 0 if large else cut(0xFFFFFFFF << b1, 32)
                    sign = 0 if b1 == 0 or large or ty == "u32" else a >> ((b1 - 1) & 31) & 1
                    rows.append(((a, b), (a & ~mask & 0xFFFFFFFF | (mask if sign else 0),)))
            table(f"szext_{mode}_{ty}", f"szext.{mode}.{ty}", "b32", [("a", None), ("b", None)], rows, f"szext.{mode}.{ty} %d, %a, %b;", outputs=[("d", "b32")], version="7.6")
    rows = []
    for mask, base, offset in [(0xAAAAAAAA, 3, 0), (0xAAAAAAAA, 2, 0), (0xAAAAAAAA, 2, 1), (0xAAAAAAAA, 2, 3), (0xAAAAAAAA, 20, -2), (0x1, 31, -1), (0x1, 1, 1), (0, 0, 1)]:
        d = 0xFFFFFFFF
        if offset == 0:
            if mask >> base & 1:
                d = base
        else:
            pos, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
            while 0 <= pos < 32:
                if mask >> pos & 1:
                    if count == 0:
                        d = pos
                        break
                    count -= 1
                pos += step
        rows.append(((mask, base, cut(offset, 32)), (d,)))
    table("fns_b32", "fns.b32", "b32", [("a", None), ("b", None), ("c", None)], rows, "fns.b32 %d, %a, %b, %c;", outputs=[("d", "b32")])

    for side in "lr":
        for mode in ("clamp", "wrap"):
            rows = []
            a, b = 0x89ABCDEF, 0x12345678
            for c in (0, 1, 8, 31, 32, 33, 100):
                n = min(c, 32) if mode == "clamp" else c & 31
                both = b << 32 | a
                d = cut(both << n >> 32, 32) if side == "l" else cut(both >> n, 32)
                rows.append(((a, b, c), (d,)))
            table(f"shf_{side}_{mode}", f"shf.{side}.{mode}.b32", "b32", [("a", None), ("b", None), ("c", None)], rows, f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", outputs=[("d", "b32")])

    source = [0x83, 0x12, 0xA4, 0x35, 0xC6, 0x57, 0xE8, 0x79]
    a, b = (int.from_bytes(bytes(source[i:i + 4]), "little") for i in (0, 4))
    rows = []
    for c in (0x3210, 0x7654, 0x0123, 0xFEDC, 0x8888, 0x1234, 0x9AB0):
        picks = [c >> 4 * i & 15 for i in range(4)]
        d = [(0xFF if source[p & 7] & 0x80 else 0) if p & 8 else source[p & 7] for p in picks]
        rows.append(((a, b, c), (int.from_bytes(bytes(d), "little"),)))
    table("prmt_b32", "prmt.b32", "b32", [("a", None), ("b", None), ("c", None)], rows, "prmt.b32 %d, %a, %b, %c;", outputs=[("d", "b32")], derivation="byte selection by the table of the ISA")
    modes = {
        "f4e": [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)],
        "b4e": [(0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)],
        "rc8": [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)],
        "ecl": [(0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)],
        "ecr": [(0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)],
        "rc16": [(0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)],
    }
    for mode, picks in modes.items():
        rows = [((a, b, c), (int.from_bytes(bytes(source[i] for i in picks[c & 3]), "little"),)) for c in (0, 1, 2, 3, 7)]
        table(f"prmt_{mode}", f"prmt.b32.{mode}", "b32", [("a", None), ("b", None), ("c", None)], rows, f"prmt.b32.{mode} %d, %a, %b, %c;", outputs=[("d", "b32")], derivation="byte selection by the table of the ISA")

    for lut in (0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x1B):
        a, b, c = 0xF0F0A5A5, 0xCCCC3C3C, 0xAAAA0FF0
        d = sum((lut >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))
        table(f"lop3_{lut:02x}", f"lop3.b32, table {lut:#x}", "b32", [("a", None), ("b", None), ("c", None)], [((a, b, c), (d,))], f"lop3.b32 %d, %a, %b, %c, {lut:#x};", outputs=[("d", "b32")])

    for a_ty in ("u32", "s32"):
        for b_ty in ("u32", "s32"):
            a, b, c = 0x80FF017F, 0x7F02FF80, 1000
            part = lambda x, i, n, ty: value(x >> n * i, f"{ty[0]}{n}")
            d = c + sum(part(a, i, 8, a_ty) * part(b, i, 8, b_ty) for i in range(4))
            table(f"dp4a_{a_ty}_{b_ty}", f"dp4a.{a_ty}.{b_ty}", "b32", [("a", None), ("b", None), ("c", None)], [((a, b, c), (cut(d, 32),))], f"dp4a.{a_ty}.{b_ty} %d, %a, %b, %c;", outputs=[("d", "b32")])
            for half, first in (("lo", 0), ("hi", 2)):
                d = c + sum(part(a, i, 16, a_ty) * part(b, first + i, 8, b_ty) for i in range(2))
                table(f"dp2a_{half}_{a_ty}_{b_ty}", f"dp2a.{half}.{a_ty}.{b_ty}", "b32", [("a", None), ("b", None), ("c", None)], [((a, b, c), (cut(d, 32),))], f"dp2a.{half}.{a_ty}.{b_ty} %d, %a, %b, %c;", outputs=[("d", "b32")])


def carries():
    big, small = 0xFFFFFFFF_FFFFFFFF_00000001, 0x1_00000000_FFFFFFFF
    words = lambda x, n=3: tuple(x >> 32 * i & 0xFFFFFFFF for i in range(n))
    names = [(f"a{i}", "u32") for i in range(3)] + [(f"b{i}", "u32") for i in range(3)]
    outs = [(f"d{i}", "u32") for i in range(3)]
    rows = [(words(a) + words(b), words(cut(a + b, 96))) for a, b in ((big, small), (small, big), (big, 1), (0, 0), (small, small))]
    kernel("add_cc_addc", "add.cc.u32, addc.cc.u32, addc.u32: 96-bit addition", names, outs, rows,
           "add.cc.u32 %d0, %a0, %b0;\naddc.cc.u32 %d1, %a1, %b1;\naddc.u32 %d2, %a2, %b2;", derivation=BY_HAND)
    rows = [(words(a) + words(b), words(cut(a - b, 96))) for a, b in ((big, small), (small, big), (0, 1), (0, 0), (small, small))]
    kernel("sub_cc_subc", "sub.cc.u32, subc.cc.u32, subc.u32: 96-bit subtraction", names, outs, rows,
           "sub.cc.u32 %d0, %a0, %b0;\nsubc.cc.u32 %d1, %a1, %b1;\nsubc.u32 %d2, %a2, %b2;", derivation=BY_HAND)
    # 64 x 64 -> 128 bits by schoolbook multiplication, as compilers emit it.
    rows = []
    for a, b in ((0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF), (0x123456789ABCDEF0, 0xFEDCBA9876543210), (1, 0x8000000000000000), (0, 5)):
        rows.append((words(a, 2) + words(b, 2), words(a * b, 4)))
    kernel("mad_cc_madc", "mad.lo.cc.u32, madc.hi.cc.u32, madc.lo.cc.u32, madc.hi.u32: 64 x 64 -> 128 bits",
           [("a0", "u32"), ("a1", "u32"), ("b0", "u32"), ("b1", "u32")], [(f"d{i}", "u32") for i in range(4)], rows,
           """mul.lo.u32 %d0, %a0, %b0;
              mul.hi.u32 %d1, %a0, %b0;
              mad.lo.cc.u32 %d1, %a0, %b1, %d1;
              madc.hi.u32 %d2, %a0, %b1, 0;
              mad.lo.cc.u32 %d1, %a1, %b0, %d1;
              madc.hi.cc.u32 %d2, %a1, %b0, %d2;
              addc.u32 %d3, 0, 0;
              mad.lo.cc.u32 %d2, %a1, %b1, %d2;
              madc.hi.u32 %d3, %a1, %b1, %d3;""", derivation=BY_HAND)


def predicates():
    tests = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
             "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b}
    unsigned = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
    for ty in ("s32", "u32", "s64", "u64", "s16", "u16"):
        n = int(ty[1:])
        rows = []
        for a, b in pairs(n) + [(7, 7)]:
            rows.append(((a, b), tuple(int(f(value(a, ty), value(b, ty))) for f in tests.values())))
        body = "\n".join(f"setp.{op}.{ty} %{op}, %a, %b;" for op in tests)
        table(f"setp_{ty}", f"setp.CmpOp.{ty}", ty, [("a", None), ("b", None)], rows, body, outputs=[(op, "pred") for op in tests])
    rows = [((a, b), tuple(int(tests[op](a, b)) for op in unsigned.values())) for a, b in pairs(32) + [(7, 7)]]
    body = "\n".join(f"setp.{op}.u32 %{op}, %a, %b;" for op in unsigned)
    table("setp_unsigned_names", "setp.lo, .ls, .hi, .hs of u32", "u32", [("a", None), ("b", None)], rows, body, outputs=[(op, "pred") for op in unsigned])
    rows = []
    for a, b in pairs(32):
        less, odd = int(signed(a, 32) < signed(b, 32)), b & 1
        rows.append(((a, b), (less & odd, (1 - less) & odd, less | (1 - odd), less ^ odd)))
    table("setp_combine", "setp with .and, .or, .xor and a second destination", "s32", [("a", None), ("b", None)], rows,
          """and.b32 %bit, %b, 1;
             setp.eq.s32 %odd, %bit, 1;
             setp.lt.and.s32 %p|%q, %a, %b, %odd;
             setp.lt.or.s32 %r, %a, %b, !%odd;
             setp.lt.xor.s32 %s, %a, %b, %odd;""", outputs=[("p", "pred"), ("q", "pred"), ("r", "pred"), ("s", "pred")],
          declarations=".reg .pred %odd;\n.reg .b32 %bit;")
    rows = []
    for x in range(8):
        a, b, c = x & 1, x >> 1 & 1, x >> 2
        rows.append(((a, b, c), (a & b, a | b, a ^ b, 1 - a, a if c else b)))
    table("predicate_logic", "and.pred, or.pred, xor.pred, not.pred, selp.u32", "u32", [("a", None), ("b", None), ("c", None)], rows,
          """setp.ne.u32 %pa, %a, 0;
             setp.ne.u32 %pb, %b, 0;
             setp.ne.u32 %pc, %c, 0;
             and.pred %d, %pa, %pb;
             or.pred %e, %pa, %pb;
             xor.pred %f, %pa, %pb;
             not.pred %g, %pa;
             selp.u32 %h, %a, %b, %pc;""", outputs=[("d", "pred"), ("e", "pred"), ("f", "pred"), ("g", "pred"), ("h", "u32")],
          declarations=".reg .pred %pa, %pb, %pc;")
    rows = []
    for a, b in pairs(32):
        less = signed(a, 32) < signed(b, 32)
        rows.append(((a, b), (0xFFFFFFFF if less else 0, 0x3F800000 if less else 0)))
    table("set_s32", "set.lt.u32.s32, set.lt.f32.s32", "s32", [("a", None), ("b", None)], rows,
          "set.lt.u32.s32 %d, %a, %b;\nset.lt.f32.s32 %f, %a, %b;", outputs=[("d", "u32"), ("f", "f32")])
    rows = [((1, 2, c), (1 if signed(c, 32) >= 0 else 2,)) for c in (0, 5, 0xFFFFFFFF, 0x80000000)]
    table("slct_s32", "slct.u32.s32", "u32", [("a", None), ("b", None), ("c", "s32")], rows, "slct.u32.s32 %d, %a, %b, %c;", outputs=[("d", "u32")])
    rows = [((1, 2, c), (1 if ge else 2,)) for c, ge in ((0, True), (0x80000000, True), (0x3F800000, True), (0xBF800000, False), (0x7FC00000, False))]
    table("slct_f32", "slct.u32.f32: -0 counts as >= 0, NaN does not", "u32", [("a", None), ("b", None), ("c", "f32")], rows, "slct.u32.f32 %d, %a, %b, %c;", outputs=[("d", "u32")])
    rows = [((a, b), (cut(max(-128, min(127, signed(a, 32))), 8) << 8 | cut(max(-128, min(127, signed(b, 32))), 8) | 0x12340000,)) for a, b in ((300, cut(-300, 32)), (5, cut(-5, 32)), (127, 128))]
    table("cvt_pack_sat_s8", "cvt.pack.sat.s8.s32.b32", "s32", [("a", None), ("b", None)], rows,
          "mov.b32 %c, 0x56781234;\ncvt.pack.sat.s8.s32.b32 %d, %a, %b, %c;", outputs=[("d", "b32")], declarations=".reg .b32 %c;", target="sm_80")


def run():
    two_source()
    one_source()
    bit_tools()
    carries()
    predicates()
