"""Floating-point arithmetic: exact rationals, rounded once; approximate functions with the bound of the ISA."""

import math
from fractions import Fraction

from files import kernel
from numbers_exact import add, bits, canonical_nan, decode, div, encode, flush, is_negative, mul, negate, number, sqrt_bits, width

SPECIAL = ["nan", "inf", "-inf", "-0", 0, 1, -1]
MODES = ("rn", "rz", "rm", "rp")


def samples(fmt):
    """Pairs that meet every rounding and every special case."""
    tiny = {"f32": 2.0**-149, "f64": 5e-324, "f16": 2.0**-24, "bf16": 2.0**-133}[fmt]
    step = {"f32": 2.0**-23, "f64": 2.0**-52, "f16": 2.0**-10, "bf16": 2.0**-7}[fmt]
    big = decode((1 << width(fmt) - 1) - 1 - (1 << {"f32": 23, "f64": 52, "f16": 10, "bf16": 7}[fmt]), fmt)
    pairs = [
        (1, step / 2), (1 + step, step / 2), (-1, step / 2), (1, -step / 4), (3, 7), (-1, 3), (1 + step, 1 + step),
        (1 + step, -1 - 2 * step), (big, big), (-big, big), (big, Fraction(1, 2)), (tiny, tiny), (tiny, Fraction(1, 2)),
        (3 * tiny, Fraction(1, 2)), (-tiny, Fraction(1, 4)), (5, -5), (0, "-0"), ("-0", "-0"), (0, 0), ("nan", 1), (1, "nan"),
        ("inf", "-inf"), ("inf", 0), ("inf", 2), (2, "-inf"), (0, 3), (-3, 0), ("-0", 5),
    ]
    return [(bits(a, fmt), bits(b, fmt)) for a, b in pairs]


def register_type(fmt):
    return fmt if fmt in ("f32", "f64") else "b16"


def target_of(fmt, op):
    if fmt == "bf16" and op in ("add", "sub", "mul"):
        return "sm_90", "7.8"
    return "sm_80", "7.0"


def two_source():
    ops = {"add": add, "sub": lambda a, b, m: add(a, negate(b), m), "mul": lambda a, b, m: mul(a, b), "div": lambda a, b, m: div(a, b)}
    for fmt in ("f32", "f64"):
        for op, f in ops.items():
            rows = []
            for a, b in samples(fmt):
                x, y = decode(a, fmt), decode(b, fmt)
                rows.append(((a, b), tuple(encode(f(x, y, m), fmt, m) for m in MODES)))
            body = "\n".join(f"{op}.{m}.{fmt} %{m}, %a, %b;" for m in MODES)
            kernel(f"{op}_{fmt}", f"{op}.rnd.{fmt}", [("a", fmt), ("b", fmt)], [(m, fmt) for m in MODES], rows, body)
    for op, f in ops.items():
        rows = []
        for a, b in samples("f32"):
            x, y = decode(flush(a), "f32"), decode(flush(b), "f32")
            rows.append(((a, b), (flush(encode(f(x, y, "rn"), "f32")), saturated(f(decode(a, "f32"), decode(b, "f32"), "rn")))))
        sat = f"{op}.rn.sat.f32 %sat, %a, %b;" if op != "div" else "div.rn.f32 %sat, %a, %b;\nadd.sat.f32 %sat, %sat, 0f00000000;"
        kernel(f"{op}_ftz_sat_f32", f"{op}.rn.ftz.f32, {op}.rn.sat.f32" + (" (div by way of add.sat)" if op == "div" else ""),
               [("a", "f32"), ("b", "f32")], [("ftz", "f32"), ("sat", "f32")], rows, f"{op}.rn.ftz.f32 %ftz, %a, %b;\n{sat}")
    for fmt in ("f16", "bf16"):
        for op in ("add", "sub", "mul"):
            rows = []
            for a, b in samples(fmt):
                d = encode(ops[op](decode(a, fmt), decode(b, fmt), "rn"), fmt)
                rows.append(((a, b), (d,)))
            target, version = target_of(fmt, op)
            word = f"{op}.rn.{fmt}"
            kernel(f"{op}_{fmt}", word, [("a", "b16"), ("b", "b16")], [("d", "b16")], rows, f"{word} %d, %a, %b;", target=target, version=version)
            pairs = [(r[0][0] | rows[-1 - i][0][0] << 16, r[0][1] | rows[-1 - i][0][1] << 16, r[1][0] | rows[-1 - i][1][0] << 16) for i, r in enumerate(rows)]
            word = f"{op}.rn.{fmt}x2"
            kernel(f"{op}_{fmt}x2", word, [("a", "b32"), ("b", "b32")], [("d", "b32")], [((a, b), (d,)) for a, b, d in pairs], f"{word} %d, %a, %b;", target=target, version=version)


def saturated(x):
    if x == "nan" or is_negative(x):
        return 0
    if x == "+inf" or number(x) > 1:
        return bits(1, "f32")
    return encode(x, "f32")


def triples(fmt):
    pairs = samples(fmt)
    cs = [bits(x, fmt) for x in (0, "-0", 1, -1, "inf", "nan")] + [p[1] for p in pairs[:6]]
    out = [(a, b, cs[i % len(cs)]) for i, (a, b) in enumerate(pairs)]
    step = {"f32": 2.0**-23, "f64": 2.0**-52, "f16": 2.0**-10, "bf16": 2.0**-7}[fmt]
    # The square of 1 + step minus its rounded value: only a fused operation sees the rest.
    out.append((bits(1 + step, fmt), bits(1 + step, fmt), bits(-(1 + 2 * step), fmt)))
    out.append((bits(1 + step, fmt), bits(1 - step, fmt), bits(-1, fmt)))
    return out


def fused():
    for fmt in ("f32", "f64"):
        rows = []
        for a, b, c in triples(fmt):
            p = mul(decode(a, fmt), decode(b, fmt))
            rows.append(((a, b, c), tuple(encode(add(p, decode(c, fmt), m), fmt, m) for m in MODES)))
        body = "\n".join(f"fma.{m}.{fmt} %{m}, %a, %b, %c;" for m in MODES)
        kernel(f"fma_{fmt}", f"fma.rnd.{fmt}", [("a", fmt), ("b", fmt), ("c", fmt)], [(m, fmt) for m in MODES], rows, body)
    rows = []
    for a, b, c in triples("f32"):
        x, y, z = (decode(flush(v), "f32") for v in (a, b, c))
        full = add(mul(decode(a, "f32"), decode(b, "f32")), decode(c, "f32"))
        rows.append(((a, b, c), (flush(encode(add(mul(x, y), z), "f32")), saturated(full))))
    kernel("fma_ftz_sat_f32", "fma.rn.ftz.f32, fma.rn.sat.f32", [("a", "f32"), ("b", "f32"), ("c", "f32")], [("ftz", "f32"), ("sat", "f32")], rows,
           "fma.rn.ftz.f32 %ftz, %a, %b, %c;\nfma.rn.sat.f32 %sat, %a, %b, %c;")
    for fmt in ("f16", "bf16"):
        rows = []
        for a, b, c in triples(fmt):
            x = add(mul(decode(a, fmt), decode(b, fmt)), decode(c, fmt))
            d = encode(x, fmt)
            relu = d if x == "nan" else (0 if is_negative(x) else d)
            rows.append(((a, b, c), (d, relu)))
        kernel(f"fma_{fmt}", f"fma.rn.{fmt}, fma.rn.relu.{fmt}", [("a", "b16"), ("b", "b16"), ("c", "b16")], [("d", "b16"), ("r", "b16")], rows,
               f"fma.rn.{fmt} %d, %a, %b, %c;\nfma.rn.relu.{fmt} %r, %a, %b, %c;")
        packed = [((a[0][0] | b[0][0] << 16, a[0][1] | b[0][1] << 16, a[0][2] | b[0][2] << 16), (a[1][0] | b[1][0] << 16,)) for a, b in zip(rows, rows[::-1])]
        kernel(f"fma_{fmt}x2", f"fma.rn.{fmt}x2", [("a", "b32"), ("b", "b32"), ("c", "b32")], [("d", "b32")], packed, f"fma.rn.{fmt}x2 %d, %a, %b, %c;")


def one_source():
    for fmt in ("f32", "f64"):
        values = [bits(x, fmt) for x in (1, 2, 3, 4, Fraction(1, 4), 7, 10, 1.5, "nan", "inf", "-inf", "-0", 0, -1)] + [bits("0x1", fmt), bits("0x12345", fmt), encode(decode(bits("inf", fmt) - 1, fmt), fmt)]
        rows = [((a,), tuple(sqrt_bits(decode(a, fmt), fmt, m) for m in MODES)) for a in values]
        kernel(f"sqrt_{fmt}", f"sqrt.rnd.{fmt}", [("a", fmt)], [(m, fmt) for m in MODES], rows, "\n".join(f"sqrt.{m}.{fmt} %{m}, %a;" for m in MODES), derivation="integer square root of the exact rational, rounded once")
        rows = [((a,), tuple(encode(div(Fraction(1), decode(a, fmt)), fmt, m) for m in MODES)) for a in values]
        kernel(f"rcp_{fmt}", f"rcp.rnd.{fmt}", [("a", fmt)], [(m, fmt) for m in MODES], rows, "\n".join(f"rcp.{m}.{fmt} %{m}, %a;" for m in MODES))
    for fmt in ("f32", "f64", "f16", "bf16"):
        ty = register_type(fmt)
        sign = 1 << (width(fmt) - 1)
        values = [bits(x, fmt) for x in (1, -1, 0, "-0", "inf", "-inf", 3, -3)] + [5, sign | 5]
        rows = [((a,), (a ^ sign, a & ~sign)) for a in values]
        kernel(f"neg_abs_{fmt}", f"neg.{fmt}, abs.{fmt}", [("a", ty)], [("n", ty), ("p", ty)], rows, f"neg.{fmt} %n, %a;\nabs.{fmt} %p, %a;", derivation="the sign bit", version="7.0")
    rows = [((a,), (flush(a) ^ 1 << 31, flush(a) & ~(1 << 31))) for a in (1, 0x80000001, 0x3F800000, 0xBF800000, 0x00800000)]
    kernel("neg_abs_ftz_f32", "neg.ftz.f32, abs.ftz.f32", [("a", "f32")], [("n", "f32"), ("p", "f32")], rows, "neg.ftz.f32 %n, %a;\nabs.ftz.f32 %p, %a;", derivation="the sign bit")
    rows = [((a, b), ((a & 1 << 31) | (b & 0x7FFFFFFF),)) for a, b in ((0x3F800000, 0xC0000000), (0x80000000, 0x40000000), (0xFF800000, 0x7FC00000))]
    kernel("copysign_f32", "copysign.f32: the sign of a, the value of b", [("a", "f32"), ("b", "f32")], [("d", "f32")], rows, "copysign.f32 %d, %a, %b;", derivation="the sign bit")
    rows = [((a, b), ((a & 1 << 63) | (b & ~(1 << 63)),)) for a, b in ((bits(1, "f64"), bits(-2, "f64")), (bits("-0", "f64"), bits(2, "f64")))]
    kernel("copysign_f64", "copysign.f64: the sign of a, the value of b", [("a", "f64"), ("b", "f64")], [("d", "f64")], rows, "copysign.f64 %d, %a, %b;", derivation="the sign bit")


def min_max():
    def pick(a, b, fmt, largest, nan_wins=False):
        x, y = decode(a, fmt), decode(b, fmt)
        if x == "nan" and y == "nan" or nan_wins and "nan" in (x, y):
            return canonical_nan(fmt)
        if x == "nan":
            return b
        if y == "nan":
            return a
        order = lambda v: (-math.inf if v == "-inf" else math.inf if v == "+inf" else number(v), 0 if is_negative(v) else 1)
        first, second = (a, x), (b, y)
        better = max if largest else min
        return better(first, second, key=lambda v: order(v[1]))[0]

    for fmt in ("f32", "f64", "f16", "bf16"):
        ty = register_type(fmt)
        pairs = [(bits(a, fmt), bits(b, fmt)) for a, b in ((1, 2), (2, 1), (-1, 1), (-1, -2), (0, "-0"), ("-0", 0), ("nan", 1), (1, "nan"), ("nan", "nan"), ("inf", 5), ("-inf", 5), (7, 7))]
        rows = [((a, b), (pick(a, b, fmt, False), pick(a, b, fmt, True))) for a, b in pairs]
        kernel(f"min_max_{fmt}", f"min.{fmt}, max.{fmt}: a number beats NaN, -0 is below +0", [("a", ty), ("b", ty)], [("n", ty), ("x", ty)], rows, f"min.{fmt} %n, %a, %b;\nmax.{fmt} %x, %a, %b;", derivation="the rules of the ISA by hand")
        if fmt == "f64":
            continue
        rows = [((a, b), (pick(a, b, fmt, False, True), pick(a, b, fmt, True, True))) for a, b in pairs]
        kernel(f"min_max_nan_{fmt}", f"min.NaN.{fmt}, max.NaN.{fmt}", [("a", ty), ("b", ty)], [("n", ty), ("x", ty)], rows, f"min.NaN.{fmt} %n, %a, %b;\nmax.NaN.{fmt} %x, %a, %b;", derivation="the rules of the ISA by hand")
        sign = 1 << (width(fmt) - 1)
        rows = []
        for a, b in pairs:
            if "nan" in (decode(a, fmt), decode(b, fmt)):
                continue
            s = (a ^ b) & sign
            rows.append(((a, b), (pick(a & ~sign, b & ~sign, fmt, False) | s, pick(a & ~sign, b & ~sign, fmt, True) | s)))
        kernel(f"min_max_xorsign_{fmt}", f"min.xorsign.abs.{fmt}, max.xorsign.abs.{fmt}", [("a", ty), ("b", ty)], [("n", ty), ("x", ty)], rows, f"min.xorsign.abs.{fmt} %n, %a, %b;\nmax.xorsign.abs.{fmt} %x, %a, %b;", target="sm_86", version="7.2", derivation="the rules of the ISA by hand")
        if fmt in ("f16", "bf16"):
            packed = []
            for (a, b), (c, d) in zip(pairs, pairs[::-1]):
                packed.append(((a | c << 16, b | d << 16), (pick(a, b, fmt, False) | pick(c, d, fmt, False) << 16, pick(a, b, fmt, True) | pick(c, d, fmt, True) << 16)))
            kernel(f"min_max_{fmt}x2", f"min.{fmt}x2, max.{fmt}x2", [("a", "b32"), ("b", "b32")], [("n", "b32"), ("x", "b32")], packed, f"min.{fmt}x2 %n, %a, %b;\nmax.{fmt}x2 %x, %a, %b;", derivation="the rules of the ISA by hand")
    rows = [((bits(a, "f32"), bits(b, "f32"), bits(c, "f32")), (bits(x, "f32"), bits(y, "f32"))) for a, b, c, x, y in ((1, 2, 3, 1, 3), (3, "nan", 2, 2, 3), ("-0", 0, 0, "-0", 0), (-1, "inf", "-inf", "-inf", "inf"))]
    kernel("min_max_3_f32", "min.f32, max.f32 with three sources", [("a", "f32"), ("b", "f32"), ("c", "f32")], [("n", "f32"), ("x", "f32")], rows, "min.f32 %n, %a, %b, %c;\nmax.f32 %x, %a, %b, %c;", target="sm_100", version="8.8", derivation="the rules of the ISA by hand")


def comparisons():
    ordered = {"eq": (0,), "ne": (-1, 1), "lt": (-1,), "le": (-1, 0), "gt": (1,), "ge": (0, 1)}
    for fmt in ("f32", "f64", "f16", "bf16"):
        ty = register_type(fmt)
        key = lambda v: math.inf if v == "+inf" else -math.inf if v == "-inf" else number(v)
        rows = []
        for a, b in ((1, 2), (2, 1), (1, 1), (0, "-0"), ("nan", 1), (1, "nan"), ("nan", "nan"), ("inf", "inf"), ("-inf", 3)):
            a, b = bits(a, fmt), bits(b, fmt)
            x, y = decode(a, fmt), decode(b, fmt)
            nan = "nan" in (x, y)
            order = None if nan else (key(x) > key(y)) - (key(x) < key(y))
            outs = [int(order in allowed) for allowed in ordered.values()] + [int(nan or order in allowed) for allowed in ordered.values()] + [int(not nan), int(nan)]
            rows.append(((a, b), tuple(outs)))
        names = list(ordered) + [op + "u" for op in ordered] + ["num", "nan"]
        body = "\n".join(f"setp.{op}.{fmt} %{op}, %a, %b;" for op in names)
        kernel(f"setp_{fmt}", f"setp.CmpOp.{fmt}", [("a", ty), ("b", ty)], [(op, "pred") for op in names], rows, body, target="sm_90", version="7.8", derivation="the rules of the ISA by hand")
    classes = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
    for fmt, small in (("f32", 1), ("f64", 1)):
        rows = []
        for a, want in ((bits(1, fmt), "101010"), (bits("-0", fmt), "101010"), (small, "101001"), (bits("inf", fmt), "011000"), (bits("nan", fmt), "000100")):
            rows.append(((a,), tuple(int(c) for c in want)))
        kernel(f"testp_{fmt}", f"testp.op.{fmt}: zeros are normal", [("a", fmt)], [(c, "pred") for c in classes], rows, "\n".join(f"testp.{c}.{fmt} %{c}, %a;" for c in classes), derivation="the rules of the ISA by hand")
    rows = [((bits(a, "f32"), bits(b, "f32")), (0xFFFFFFFF if r else 0, 0x3F800000 if r else 0)) for a, b, r in ((1, 2, 1), (2, 1, 0), ("nan", 1, 0))]
    kernel("set_f32", "set.lt.u32.f32, set.lt.f32.f32", [("a", "f32"), ("b", "f32")], [("d", "u32"), ("f", "f32")], rows, "set.lt.u32.f32 %d, %a, %b;\nset.lt.f32.f32 %f, %a, %b;", derivation="the rules of the ISA by hand")


def approximate():
    """Expected values are rounded to nearest from 60 digits; a result may differ from them by the documented bound."""
    from decimal import Decimal, getcontext

    getcontext().prec = 80
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")

    def exact(x):
        return Decimal(x.numerator) / Decimal(x.denominator)

    def rational(x):
        return Fraction(x)

    def sine(x):
        x = x % (2 * pi)
        total, term, n = Decimal(0), x, 1
        while abs(term) > Decimal(10) ** -70:
            total += term
            term *= -x * x / ((n + 1) * (n + 2))
            n += 2
        return total

    ln2 = Decimal(2).ln()
    functions = {
        "ex2": lambda x: (exact(x) * ln2).exp(),
        "lg2": lambda x: exact(x).ln() / ln2,
        "rcp": lambda x: 1 / exact(x),
        "rsqrt": lambda x: 1 / exact(x).sqrt(),
        "sqrt": lambda x: exact(x).sqrt(),
        "sin": lambda x: sine(exact(x)),
        "cos": lambda x: sine(exact(x) + pi / 2),
        "tanh": lambda x: 1 - 2 / ((2 * exact(x)).exp() + 1),
    }
    special = {
        "ex2": [("-inf", 0), ("-0", 1), (0, 1), ("inf", "inf"), ("nan", "nan")],
        "lg2": [("-inf", "nan"), ("-0", "-inf"), (0, "-inf"), ("inf", "inf"), ("nan", "nan"), (-1, "nan")],
        "rcp": [("-inf", "-0"), ("-0", "-inf"), (0, "inf"), ("inf", 0), ("nan", "nan")],
        "rsqrt": [("-inf", "nan"), ("-0", "-inf"), (0, "inf"), ("inf", 0), ("nan", "nan"), (-1, "nan")],
        "sqrt": [("-inf", "nan"), ("-0", "-0"), (0, 0), ("inf", "inf"), ("nan", "nan"), (-1, "nan")],
        "sin": [("-inf", "nan"), ("-0", "-0"), (0, 0), ("inf", "nan"), ("nan", "nan")],
        "cos": [("-inf", "nan"), ("-0", 1), (0, 1), ("inf", "nan"), ("nan", "nan")],
        "tanh": [("-inf", -1), ("-0", "-0"), (0, 0), ("inf", 1), ("nan", "nan")],
    }
    values = {
        "ex2": [0.5, 1, -1, 3.7, -20.25, 100, -100, 127.5, 1e-3, -0.3],
        "lg2": [1, 2, 3, 0.75, 10, 1e-30, 1e30, 1.0001],
        "rcp": [1, 3, -7, 1e20, 1e-20, 0.1],
        "rsqrt": [1, 2, 3, 1e20, 1e-20, 0.1],
        "sqrt": [1, 2, 3, 1e20, 1e-20, 0.1],
        "sin": [0.5, -1, 3, -3.1, 1e-3, 2],
        "cos": [0.5, -1, 3, -3.1, 1e-3, 2],
        "tanh": [0.5, -1, 3, -3.1, 1e-3, 8],
    }
    bounds = {"ex2": "2 ulp", "lg2": "rel 2^-22 abs 2^-22", "rcp": "1 ulp", "rsqrt": "rel 2^-22", "sqrt": "1 ulp", "sin": "abs 2^-20", "cos": "abs 2^-20", "tanh": "rel 2^-11"}
    import struct

    as_f32 = lambda v: Fraction(struct.unpack("<f", struct.pack("<f", v))[0])
    for op, f in functions.items():
        rows = [((bits(a, "f32"),), (bits(d, "f32"),)) for a, d in special[op]]
        for v in values[op]:
            x = as_f32(v)
            rows.append(((bits(x, "f32"),), (encode(rational(f(x)), "f32"),)))
        kernel(f"{op}_approx_f32", f"{op}.approx.f32", [("a", "f32")], [("d", "f32")], rows, f"{op}.approx.f32 %d, %a;", derivation="80-digit decimal arithmetic, rounded once; special values by the table of the ISA", tolerance=bounds[op], target="sm_80")
    rows = [((bits(a, "f32"),), (bits(d, "f32"),)) for a, d in (("0x1", 1), (-127, 0), (-130, 0), (-126, 2.0**-126), (4, 16))]
    kernel("ex2_approx_ftz_f32", "ex2.approx.ftz.f32", [("a", "f32")], [("d", "f32")], rows, "ex2.approx.ftz.f32 %d, %a;", derivation="powers of two, sub-normals flushed by hand", tolerance="2 ulp")
    rows = [((bits(a, "f32"),), (bits(d, "f32"),)) for a, d in (("0x1", "inf"), (-4, -0.25), (2.0**127, 0))]
    kernel("rcp_approx_ftz_f32", "rcp.approx.ftz.f32", [("a", "f32")], [("d", "f32")], rows, "rcp.approx.ftz.f32 %d, %a;", derivation="powers of two, sub-normals flushed by hand", tolerance="1 ulp")
    rows = []
    for a, b in ((1, 3), (7, 2), (-10, 4), (1e10, 3e-5), (0, 5), (5, 0), (-5, 0), ("inf", 2), (2, "inf"), ("nan", 1)):
        x, y = (as_f32(v) if isinstance(v, float) else v for v in (a, b))
        q = encode(div(decode(bits(x, "f32"), "f32"), decode(bits(y, "f32"), "f32")), "f32")
        rows.append(((bits(x, "f32"), bits(y, "f32")), (q, q)))
    kernel("div_approx_full_f32", "div.approx.f32, div.full.f32", [("a", "f32"), ("b", "f32")], [("d", "f32"), ("e", "f32")], rows, "div.approx.f32 %d, %a, %b;\ndiv.full.f32 %e, %a, %b;", tolerance="2 ulp")
    rows = [((bits(a, "f32"), bits(2.0**127, "f32")), (bits(d, "f32"),)) for a, d in ((1, 0), ("inf", "nan"))]
    kernel("div_approx_huge_f32", "div.approx.f32 by a divisor above 2^126", [("a", "f32"), ("b", "f32")], [("d", "f32")], rows, "div.approx.f32 %d, %a, %b;", derivation="the rule of the ISA")
    for fmt in ("f16", "bf16"):
        ftz = "" if fmt == "f16" else ".ftz"
        for op in ("ex2", "tanh"):
            # The ISA has 2^-9.9, 2^-7, 2^-10.987 and 2^-8.
            bound = {"ex2f16": "rel 2^-9", "ex2bf16": "rel 2^-7", "tanhf16": "abs 2^-10", "tanhbf16": "abs 2^-8"}[op + fmt]
            vals = [bits(v, fmt) for v in (0, "-0", 1, -1, 2, 0.5, -3, "inf", "-inf", "nan")]
            rows = []
            for a in vals:
                x = decode(a, fmt)
                if isinstance(x, Fraction) and x != 0:
                    d = encode(rational(functions[op](x)), fmt)
                else:
                    d = bits({k if isinstance(k, str) else float(k): v for k, v in special[op]}[{"+inf": "inf"}.get(x, x) if isinstance(x, str) else 0.0], fmt)
                rows.append(((a,), (d,)))
            word = f"{op}.approx{ftz if op == 'ex2' else ''}.{fmt}"
            kernel(f"{op}_approx_{fmt}", word, [("a", "b16")], [("d", "b16")], rows, f"{word} %d, %a;", derivation="80-digit decimal arithmetic, rounded once", tolerance=f"{bound} in {fmt}", target="sm_90", version="7.8")
            packed = [((a[0][0] | b[0][0] << 16,), (a[1][0] | b[1][0] << 16,)) for a, b in zip(rows, rows[::-1])]
            word += "x2"
            kernel(f"{op}_approx_{fmt}x2", word, [("a", "b32")], [("d", "b32")], packed, f"{word} %d, %a;", derivation="80-digit decimal arithmetic, rounded once", tolerance=f"{bound} in {fmt}", target="sm_90", version="7.8")
    rows = [((bits(a, "f64"),), (d,)) for a, d in ((1, 0x3FF0000000000000), (4, 0x3FD0000000000000), (3, 0x3FD5555500000000), ("inf", 0), (0, 0x7FF0000000000000), ("nan", 0x7FFFFFFF00000000))]
    kernel("rcp_approx_ftz_f64", "rcp.approx.ftz.f64: upper halves only", [("a", "f64")], [("d", "f64")], rows, "rcp.approx.ftz.f64 %d, %a;", derivation="truncated to the upper 32 bits by hand", tolerance="rel 2^-20")
    rows = [((bits(a, "f64"),), (d,)) for a, d in ((1, 0x3FF0000000000000), (4, 0x3FE0000000000000), ("inf", 0), (0, 0x7FF0000000000000))]
    kernel("rsqrt_approx_ftz_f64", "rsqrt.approx.ftz.f64: upper halves only", [("a", "f64")], [("d", "f64")], rows, "rsqrt.approx.ftz.f64 %d, %a;", derivation="truncated to the upper 32 bits by hand", tolerance="rel 2^-20")
    rows = [((bits(a, "f64"),), (bits(d, "f64"),)) for a, d in ((1, 1), (4, 0.5), (Fraction(1, 16), 4), ("inf", 0), (0, "inf"), ("-0", "-inf"), (-1, "nan"))]
    kernel("rsqrt_approx_f64", "rsqrt.approx.f64", [("a", "f64")], [("d", "f64")], rows, "rsqrt.approx.f64 %d, %a;", derivation="powers of four, special values by the table of the ISA", tolerance="rel 2^-50")


def run():
    two_source()
    fused()
    one_source()
    min_max()
    comparisons()
    approximate()
