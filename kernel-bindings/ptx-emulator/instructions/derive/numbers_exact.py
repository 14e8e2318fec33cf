"""Exact numbers: rationals, and one rounding into a binary format.

Nothing here uses floating-point arithmetic; the definition of a format is its field widths. Special values are the
strings "nan", "+inf", "-inf", "-0"; everything else is a Fraction (zero is +0).
"""

from fractions import Fraction

# exponent bits, mantissa bits, "ieee" | "nan" (only all ones is NaN, no infinity) | "finite"
FORMATS = {
    "f64": (11, 52, "ieee"),
    "f32": (8, 23, "ieee"),
    "tf32": (8, 10, "ieee"),
    "f16": (5, 10, "ieee"),
    "bf16": (8, 7, "ieee"),
    "e4m3": (4, 3, "nan"),
    "e5m2": (5, 2, "ieee"),
    "e3m2": (3, 2, "finite"),
    "e2m3": (2, 3, "finite"),
    "e2m1": (2, 1, "finite"),
}


def width(fmt):
    exponent, mantissa, _ = FORMATS[fmt]
    return 1 + exponent + mantissa


def canonical_nan(fmt):
    exponent, mantissa, kind = FORMATS[fmt]
    if fmt == "f64":
        return 0x7FF8000000000000
    if kind == "finite":
        return largest(fmt)
    return (1 << (exponent + mantissa)) - 1


def largest(fmt):
    exponent, mantissa, kind = FORMATS[fmt]
    top = 1 << (exponent + mantissa)
    return {"ieee": ((1 << exponent) - 1 << mantissa) - 1, "nan": top - 2, "finite": top - 1}[kind]


def decode(bits, fmt):
    exponent_bits, mantissa_bits, kind = FORMATS[fmt]
    bias = (1 << (exponent_bits - 1)) - 1
    negative = bits >> (exponent_bits + mantissa_bits) & 1
    exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    if exponent == (1 << exponent_bits) - 1:
        if kind == "ieee":
            if mantissa:
                return "nan"
            return "-inf" if negative else "+inf"
        if kind == "nan" and mantissa == (1 << mantissa_bits) - 1:
            return "nan"
    if exponent == 0:
        value = Fraction(mantissa) * Fraction(2) ** (1 - bias - mantissa_bits)
    else:
        value = Fraction(mantissa | 1 << mantissa_bits) * Fraction(2) ** (exponent - bias - mantissa_bits)
    if value == 0:
        return "-0" if negative else Fraction(0)
    return -value if negative else value


def floor_log2(x):
    power = x.numerator.bit_length() - x.denominator.bit_length()
    return power if Fraction(2) ** power <= x else power - 1


def round_integer(x, mode, negative=False):
    """Non-negative rational to an integer."""
    low = x.numerator // x.denominator
    rest = x - low
    half = Fraction(1, 2)
    if mode in ("rn", "rni"):
        up = rest > half or (rest == half and low % 2 == 1)
    elif mode == "rna":
        up = rest >= half
    elif mode in ("rz", "rzi"):
        up = False
    elif mode in ("rm", "rmi"):
        up = negative and rest > 0
    elif mode in ("rp", "rpi"):
        up = not negative and rest > 0
    else:
        raise ValueError(mode)
    return low + up


def encode(x, fmt, mode="rn", satfinite=False):
    """Bits of a value, rounded once."""
    exponent_bits, mantissa_bits, kind = FORMATS[fmt]
    bias = (1 << (exponent_bits - 1)) - 1
    sign = 1 << (exponent_bits + mantissa_bits)
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    if kind != "ieee":
        satfinite = True
    if x == "nan":
        return canonical_nan(fmt)
    if x in ("+inf", "-inf"):
        return (sign if x == "-inf" else 0) | (largest(fmt) if satfinite else infinity)
    if x == "-0":
        return sign
    if x == 0:
        return 0
    negative = x < 0
    x = abs(x)
    unit_power = max(floor_log2(x), 1 - bias) - mantissa_bits
    count = round_integer(x / Fraction(2) ** unit_power, mode, negative)
    value = count * Fraction(2) ** unit_power
    largest_value = decode(largest(fmt), fmt)
    if value > largest_value:
        to_infinity = mode in ("rn", "rna") or (mode == "rp" and not negative) or (mode == "rm" and negative)
        bits = infinity if to_infinity and not satfinite else largest(fmt)
    elif value == 0:
        bits = 0
    else:
        power = floor_log2(value)
        if power < 1 - bias:
            bits = int(value / Fraction(2) ** (1 - bias - mantissa_bits))
        else:
            bits = (power + bias) << mantissa_bits | int(value / Fraction(2) ** (power - mantissa_bits)) - (1 << mantissa_bits)
    return (sign if negative else 0) | bits


def is_negative(x):
    return x in ("-inf", "-0") or (isinstance(x, Fraction) and x < 0)


def negate(x):
    table = {"nan": "nan", "+inf": "-inf", "-inf": "+inf", "-0": Fraction(0)}
    if isinstance(x, str):
        return table[x]
    return "-0" if x == 0 else -x


def zero(negative):
    return "-0" if negative else Fraction(0)


def number(x):
    """A finite value as a Fraction."""
    return Fraction(0) if x == "-0" else x


def add(a, b, mode="rn"):
    if "nan" in (a, b) or {a, b} == {"+inf", "-inf"}:
        return "nan"
    for x in (a, b):
        if x in ("+inf", "-inf"):
            return x
    total = number(a) + number(b)
    if total != 0:
        return total
    if number(a) == 0 and number(b) == 0 and is_negative(a) == is_negative(b):
        return a
    return zero(mode == "rm")


def mul(a, b):
    if "nan" in (a, b):
        return "nan"
    negative = is_negative(a) != is_negative(b)
    infinite = [x in ("+inf", "-inf") for x in (a, b)]
    if any(infinite):
        if any(not i and number(x) == 0 for i, x in zip(infinite, (a, b))):
            return "nan"
        return "-inf" if negative else "+inf"
    product = number(a) * number(b)
    return product if product != 0 else zero(negative)


def div(a, b):
    if "nan" in (a, b):
        return "nan"
    negative = is_negative(a) != is_negative(b)
    a_inf, b_inf = a in ("+inf", "-inf"), b in ("+inf", "-inf")
    if a_inf and b_inf:
        return "nan"
    if a_inf:
        return "-inf" if negative else "+inf"
    if b_inf:
        return zero(negative)
    if number(b) == 0:
        return "nan" if number(a) == 0 else ("-inf" if negative else "+inf")
    quotient = number(a) / number(b)
    return quotient if quotient != 0 else zero(negative)


def sqrt_bits(x, fmt, mode):
    """Bits of the square root: integer square root with enough bits and a sticky one."""
    if x in ("nan", "+inf", "-0") or x == 0:
        return encode(x, fmt, mode)
    if is_negative(x):
        return canonical_nan(fmt)
    import math

    scale = Fraction(4) ** 1300
    root = math.isqrt((x * scale).numerator // (x * scale).denominator)
    exact = Fraction(root, 2**1300)
    if exact * exact != x:
        # Strictly between two neighbours: any value in between rounds alike.
        exact += Fraction(1, 2**1301)
    return encode(exact, fmt, mode)


def bits(x, fmt):
    """Bits of a Python float or int that the format holds exactly, or a hex string."""
    if isinstance(x, str) and x.startswith("0x"):
        return int(x, 16)
    if isinstance(x, str):
        return {"nan": canonical_nan(fmt), "inf": encode("+inf", fmt), "-inf": encode("-inf", fmt), "-0": encode("-0", fmt)}[x]
    return encode(Fraction(x), fmt)


def flush(bits32):
    return bits32 & 0x80000000 if bits32 & 0x7F800000 == 0 else bits32
