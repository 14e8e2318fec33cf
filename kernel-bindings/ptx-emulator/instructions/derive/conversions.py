"""cvt: exact rationals, rounded once; clamping by the rules of the ISA."""

from fractions import Fraction

from files import kernel
from integers import corners, cut, signed, value
from numbers_exact import FORMATS, bits, canonical_nan, decode, encode, flush, is_negative, largest, number, round_integer, width

INTEGERS = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]


def store_type(ty):
    """Register type of a conversion's operand: 8-bit integers live in 16-bit registers."""
    if ty in ("f32", "f64"):
        return ty
    n = int(ty[1:]) if ty[0] in "su" else width(ty)
    return f"b{max(n, 16)}"


def extend(x, ty):
    """Bits of an integer in its register: signed results fill it."""
    n = int(ty[1:])
    return cut(value(x, ty), max(n, 16))


def integers():
    for source in INTEGERS:
        n = int(source[1:])
        values = [v for v in corners(n)]
        for ty in INTEGERS:
            if ty == source:
                continue
            m = int(ty[1:])
            low, high = (-(1 << m - 1), (1 << m - 1) - 1) if ty[0] == "s" else (0, (1 << m) - 1)
            rows = []
            for a in values:
                a_register = extend(a, source)
                x = value(a, source)
                rows.append(((a_register,), (extend(cut(x, m), ty), extend(cut(max(low, min(high, x)), m), ty))))
            source_low, source_high = (-(1 << n - 1), (1 << n - 1) - 1) if source[0] == "s" else (0, (1 << n) - 1)
            if low <= source_low and source_high <= high:
                # `.sat` exists only where it can clamp.
                kernel(f"cvt_{ty}_{source}", f"cvt.{ty}.{source}", [("a", store_type(source))], [("d", store_type(ty))],
                       [(ins, outs[:1]) for ins, outs in rows], f"cvt.{ty}.{source} %d, %a;", derivation="integer ranges by hand")
                continue
            kernel(f"cvt_{ty}_{source}", f"cvt.{ty}.{source}, cvt.sat.{ty}.{source}", [("a", store_type(source))],
                   [("d", store_type(ty)), ("s", store_type(ty))], rows, f"cvt.{ty}.{source} %d, %a;\ncvt.sat.{ty}.{source} %s, %a;",
                   derivation="integer ranges by hand")


def to_integers():
    modes = ("rni", "rzi", "rmi", "rpi")
    for source in ("f32", "f64", "f16", "bf16"):
        values = [bits(v, source) for v in (0, "-0", 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 100, 200, -200, "inf", "-inf", "nan")]
        values.append(encode(Fraction("3e9"), source))
        values.append(encode(Fraction("-3e9"), source))
        values.append(encode(Fraction("1e19"), source))
        values.append(encode(Fraction("0.49999"), source))
        for ty in INTEGERS if source == "f32" else ("s32", "u32", "s64", "u64"):
            m = int(ty[1:])
            low, high = (-(1 << m - 1), (1 << m - 1) - 1) if ty[0] == "s" else (0, (1 << m) - 1)
            rows = []
            for a in values:
                x = decode(a, source)
                outs = []
                for mode in modes:
                    if x == "nan":
                        d = 1 << (m - 1) if source == "f64" or m == 64 else 0
                    elif x in ("+inf", "-inf"):
                        d = cut(high if x == "+inf" else low, m)
                    else:
                        q = number(x)
                        q = round_integer(abs(q), mode, q < 0) * (-1 if q < 0 else 1)
                        d = cut(max(low, min(high, q)), m)
                    outs.append(extend(d, ty))
                rows.append(((a,), tuple(outs)))
            target, version = ("sm_90", "7.8") if source == "bf16" else ("sm_80", "7.0")
            kernel(f"cvt_{ty}_{source}", f"cvt.irnd.{ty}.{source}: NaN is 0, or the top bit alone for f64 and 64-bit results",
                   [("a", store_type(source))], [(m_, store_type(ty)) for m_ in modes], rows,
                   "\n".join(f"cvt.{m_}.{ty}.{source} %{m_}, %a;" for m_ in modes), target=target, version=version)


def from_integers():
    modes = ("rn", "rz", "rm", "rp")
    for source in INTEGERS:
        n = int(source[1:])
        values = corners(n) + ([16777217, cut(-16777217, n), 33554431] if n >= 32 else []) + ([cut(-(2**53 + 1), n), 2**63 - 1] if n == 64 else [])
        for ty in ("f32", "f64", "f16") if source != "s32" else ("f32", "f64", "f16", "bf16"):
            rows = []
            for a in values:
                x = Fraction(value(a, source))
                rows.append(((extend(a, source),), tuple(encode(x, ty, m) for m in modes)))
            target, version = ("sm_90", "7.8") if ty == "bf16" else ("sm_80", "7.0")
            kernel(f"cvt_{ty}_{source}", f"cvt.frnd.{ty}.{source}", [("a", store_type(source))], [(m, store_type(ty)) for m in modes], rows,
                   "\n".join(f"cvt.{m}.{ty}.{source} %{m}, %a;" for m in modes), target=target, version=version)


def float_values(fmt):
    """Values of f32 around everything that matters to a narrower format."""
    exponent, mantissa, kind = FORMATS[fmt]
    out = ["nan", "inf", "-inf", "-0", 0]
    top = number(decode(largest(fmt), fmt))
    step = top - number(decode(largest(fmt) - 1, fmt))
    out += [top, top + step / 4, top + step / 2, top + step * 3 / 4, -top * 2, top * 2]
    one = Fraction(1)
    unit = Fraction(2) ** -mantissa
    for x in (one, one + unit):
        for part in (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)):
            out += [x + unit * part, -(x + unit * part)]
    least = Fraction(2) ** (2 - (1 << exponent - 1) - mantissa)
    for part in (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), 1, Fraction(3, 2), Fraction(5, 2), 7):
        out += [least * part, -least * part]
    good = []
    for x in out:
        if isinstance(x, str) or number(decode(encode(x, "f32"), "f32")) == x and abs(x) < Fraction(2) ** 127:
            good.append(bits(x, "f32"))
    return good


def between_floats():
    for fmt in ("f16", "bf16"):
        rows = []
        for a in float_values(fmt):
            x = decode(a, "f32")
            outs = [encode(x, fmt, "rn"), encode(x, fmt, "rz")]
            relu = outs[0] if x == "nan" else 0 if is_negative(x) else outs[0]
            rows.append(((a,), (*outs, relu)))
        kernel(f"cvt_{fmt}_f32", f"cvt.rn.{fmt}.f32, .rz, .rn.relu", [("a", "f32")], [("n", "b16"), ("z", "b16"), ("r", "b16")], rows,
               f"cvt.rn.{fmt}.f32 %n, %a;\ncvt.rz.{fmt}.f32 %z, %a;\ncvt.rn.relu.{fmt}.f32 %r, %a;")
        rows = [((a,), (encode(decode(a, "f32"), fmt, "rn", True),)) for a in float_values(fmt)]
        kernel(f"cvt_satfinite_{fmt}_f32", f"cvt.rn.satfinite.{fmt}.f32", [("a", "f32")], [("d", "b16")], rows, f"cvt.rn.satfinite.{fmt}.f32 %d, %a;", version="8.1")
        values = float_values(fmt)
        rows = [((a, b), (encode(decode(a, "f32"), fmt) << 16 | encode(decode(b, "f32"), fmt), encode(decode(a, "f32"), fmt, "rz") << 16 | encode(decode(b, "f32"), fmt, "rz"))) for a, b in zip(values, values[::-1])]
        kernel(f"cvt_{fmt}x2_f32", f"cvt.rn.{fmt}x2.f32, .rz: the first source is the upper half", [("a", "f32"), ("b", "f32")], [("n", "b32"), ("z", "b32")], rows,
               f"cvt.rn.{fmt}x2.f32 %n, %a, %b;\ncvt.rz.{fmt}x2.f32 %z, %a, %b;")
        halves = [bits(v, fmt) for v in (1, -2, "nan", "inf", "-inf", "-0", 0)] + [1, 0x8001, 0x3FF, 0x7F7F if fmt == "bf16" else 0x7BFF]
        rows = [((a,), (encode(decode(a, fmt), "f32"),)) for a in halves]
        kernel(f"cvt_f32_{fmt}", f"cvt.f32.{fmt}", [("a", "b16")], [("d", "f32")], rows, f"cvt.f32.{fmt} %d, %a;", derivation="every value of the narrow format is one of the wide one", version="7.1", target="sm_90" if fmt == "bf16" else "sm_80") if fmt == "f16" else kernel(
            f"cvt_f32_{fmt}", f"cvt.f32.{fmt}", [("a", "b16")], [("d", "f32")], rows, f"cvt.f32.{fmt} %d, %a;", derivation="every value of the narrow format is one of the wide one", version="7.8", target="sm_90")
    rows = []
    for a in float_values("tf32"):
        x = decode(a, "f32")
        tf = lambda mode: (encode(x, "tf32", mode) << 13) if x != "nan" else 0x7FFFFFFF
        rows.append(((a,), (tf("rna"), tf("rn"), tf("rz"))))
    kernel("cvt_tf32_f32", "cvt.rna.tf32.f32, .rn, .rz", [("a", "f32")], [("d", "b32"), ("n", "b32"), ("z", "b32")], rows,
           "cvt.rna.tf32.f32 %d, %a;\ncvt.rn.tf32.f32 %n, %a;\ncvt.rz.tf32.f32 %z, %a;", target="sm_90", version="7.8")
    modes = ("rn", "rz", "rm", "rp")
    doubles = [bits(v, "f64") for v in (1, Fraction(1, 3) * 0 + 1, "nan", "inf", "-inf", "-0")] + [encode(Fraction(1, 3), "f64"), encode(Fraction(-1, 3), "f64"), encode(Fraction(10) ** 39, "f64"), encode(-Fraction(10) ** 39, "f64"), encode(Fraction(1, 10**46), "f64"), encode(Fraction(3, 2 * 10**39), "f64"), encode(1 + Fraction(1, 2**24), "f64")]
    rows = [((a,), tuple(encode(decode(a, "f64"), "f32", m) for m in modes)) for a in doubles]
    kernel("cvt_f32_f64", "cvt.frnd.f32.f64", [("a", "f64")], [(m, "f32") for m in modes], rows, "\n".join(f"cvt.{m}.f32.f64 %{m}, %a;" for m in modes))
    rows = [((a,), (encode(decode(a, "f32"), "f64"), encode(decode(flush(a), "f32"), "f64"))) for a in (1, 0x3F800000, 0xFF800000, 0x80000000, 0x80000005, 0x7F7FFFFF)]
    kernel("cvt_f64_f32", "cvt.f64.f32, cvt.ftz.f64.f32", [("a", "f32")], [("d", "f64"), ("z", "f64")], rows, "cvt.f64.f32 %d, %a;\ncvt.ftz.f64.f32 %z, %a;")
    # Rounding to an integral value keeps the sign of zero.
    modes = ("rni", "rzi", "rmi", "rpi")
    for fmt in ("f32", "f64"):
        rows = []
        for v in (0.5, 1.5, 2.5, -0.5, -1.5, 1e10, "-0", "inf", "nan", 0.25, -0.75):
            a = bits(Fraction(v), fmt) if not isinstance(v, str) else bits(v, fmt)
            x = decode(a, fmt)
            outs = []
            for mode in modes:
                if isinstance(x, str):
                    outs.append(encode(x, fmt))
                else:
                    q = round_integer(abs(x), mode, x < 0)
                    outs.append(encode("-0" if q == 0 and x < 0 else Fraction(q if x >= 0 else -q), fmt))
            rows.append(((a,), tuple(outs)))
        kernel(f"cvt_integral_{fmt}", f"cvt.irnd.{fmt}.{fmt}", [("a", fmt)], [(m, fmt) for m in modes], rows, "\n".join(f"cvt.{m}.{fmt}.{fmt} %{m}, %a;" for m in modes))
    rows = [((bits(a, "f32"),), (bits(d, "f32"),)) for a, d in ((2, 1), (-1, 0), ("nan", 0), (0.5, 0.5), ("-0", 0), ("inf", 1))]
    kernel("cvt_sat_f32", "cvt.sat.f32.f32", [("a", "f32")], [("d", "f32")], rows, "cvt.sat.f32.f32 %d, %a;", derivation="clamped to [0, 1] by hand")


def small():
    for fmt, target, version in (("e4m3", "sm_89", "8.1"), ("e5m2", "sm_89", "8.1"), ("e2m1", "sm_120a", "8.7"), ("e2m3", "sm_120a", "8.7"), ("e3m2", "sm_120a", "8.7")):
        space = 4 if fmt == "e2m1" else 8
        narrow = "b8" if fmt == "e2m1" else "b16"
        values = float_values(fmt)
        rows = []
        for a, b in zip(values, values[::-1]):
            x, y = decode(a, "f32"), decode(b, "f32")
            relu = lambda v: 0 if v != "nan" and is_negative(v) else encode(v, fmt, "rn", True)
            rows.append(((a, b), (encode(x, fmt, "rn", True) << space | encode(y, fmt, "rn", True), relu(x) << space | relu(y))))
        word = f"cvt.rn.satfinite.{fmt}x2.f32"
        more = {"declarations": ".reg .b8 %n, %m;", "body": f"{word} %n, %a, %b;\ncvt.rn.satfinite.relu.{fmt}x2.f32 %m, %a, %b;\ncvt.u32.u8 %d, %n;\ncvt.u32.u8 %r, %m;"} if narrow == "b8" else {"declarations": "", "body": f"{word} %d, %a, %b;\ncvt.rn.satfinite.relu.{fmt}x2.f32 %r, %a, %b;"}
        out = "b32" if narrow == "b8" else "b16"
        kernel(f"cvt_{fmt}x2_f32", f"{word}, .relu", [("a", "f32"), ("b", "f32")], [("d", out), ("r", out)], rows, more["body"], declarations=more["declarations"], target=target, version=version)
        patterns = range(0, 1 << width(fmt), 1 if width(fmt) < 8 else 7)
        rows = []
        for low in patterns:
            high = (low * 5 + 3) % (1 << width(fmt))
            d = encode(decode(high, fmt), "f16") << 16 | encode(decode(low, fmt), "f16")
            rows.append(((high << space | low,), (d,)))
        body = f"cvt.u8.u32 %n, %a;\ncvt.rn.f16x2.{fmt}x2 %d, %n;" if narrow == "b8" else f"cvt.rn.f16x2.{fmt}x2 %d, %a;"
        kernel(f"cvt_f16x2_{fmt}x2", f"cvt.rn.f16x2.{fmt}x2", [("a", "b32" if narrow == "b8" else "b16")], [("d", "b32")], rows, body, declarations=".reg .b8 %n;" if narrow == "b8" else "", derivation="every value of the narrow format is one of the wide one", target=target, version=version)
        if fmt in ("e4m3", "e5m2"):
            rows = []
            for a in values:
                h = encode(decode(a, "f32"), "f16")
                packed = h << 16 | bits(-1.5, "f16")
                rows.append(((packed,), (encode(decode(h, "f16"), fmt, "rn", True) << 8 | encode(Fraction(-3, 2), fmt),)))
            kernel(f"cvt_{fmt}x2_f16x2", f"cvt.rn.satfinite.{fmt}x2.f16x2", [("a", "b32")], [("d", "b16")], rows, f"cvt.rn.satfinite.{fmt}x2.f16x2 %d, %a;", target=target, version=version)
    # ue8m0: the power of two above (rp) or below (rz) the magnitude.
    def power(a, mode):
        if decode(a, "f32") == "nan":
            return 255
        magnitude = decode(a & 0x7FFFFFFF, "f32")
        if magnitude == "+inf":
            return 254
        if magnitude == 0:
            return 0
        p = 0
        while p < 254 and Fraction(2) ** (p - 127) < magnitude:
            p += 1
        if mode == "rz" and Fraction(2) ** (p - 127) > magnitude and p > 0:
            p -= 1
        return p

    values = [bits(v, "f32") for v in (0, 1, 1.5, 2, 3, 2.0**-127, 2.0**-126, 2.0**-128, 2.0**127, "inf", "nan")] + [0x00400001, 0x7F7FFFFF, 0x3F800001, 0x3FFFFFFF]
    rows = [((a, b), (power(a, "rp") << 8 | power(b, "rp"), power(a, "rz") << 8 | power(b, "rz"))) for a, b in zip(values, values[::-1])]
    kernel("cvt_ue8m0x2_f32", "cvt.rp.satfinite.ue8m0x2.f32, .rz", [("a", "f32"), ("b", "f32")], [("p", "b16"), ("z", "b16")], rows,
           "cvt.rp.satfinite.ue8m0x2.f32 %p, %a, %b;\ncvt.rz.satfinite.ue8m0x2.f32 %z, %a, %b;", derivation="smallest power not below, largest power not above, by search", target="sm_120a", version="8.7")
    rows = []
    for v in values:
        upper = v >> 16
        a = upper << 16 | 0x3F80
        wide = upper << 16
        rows.append(((a,), (power(wide, "rp") << 8 | 127, power(wide, "rz") << 8 | 127)))
    kernel("cvt_ue8m0x2_bf16x2", "cvt.rp.satfinite.ue8m0x2.bf16x2, .rz", [("a", "b32")], [("p", "b16"), ("z", "b16")], rows,
           "cvt.rp.satfinite.ue8m0x2.bf16x2 %p, %a;\ncvt.rz.satfinite.ue8m0x2.bf16x2 %z, %a;", derivation="smallest power not below, largest power not above, by search", target="sm_120a", version="8.7")
    rows = []
    for e in (0, 1, 127, 128, 200, 254, 255):
        up = canonical_nan("bf16") if e == 255 else encode(Fraction(2) ** (e - 127), "bf16")
        rows.append(((e << 8 | 127,), (up << 16 | 0x3F80,)))
    kernel("cvt_bf16x2_ue8m0x2", "cvt.rn.bf16x2.ue8m0x2", [("a", "b16")], [("d", "b32")], rows, "cvt.rn.bf16x2.ue8m0x2 %d, %a;", derivation="2^(e - 127), 255 is NaN", target="sm_120a", version="8.7")


def run():
    integers()
    to_integers()
    from_integers()
    between_floats()
    small()
