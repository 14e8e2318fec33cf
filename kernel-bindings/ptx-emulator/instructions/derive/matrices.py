"""Matrix instructions: fragments by the index formulas of the ISA (section 9.7.14.5), products of small integers.

Every sum is exact in the accumulator's format, so a card and an emulator must agree to the bit.
"""

from fractions import Fraction

from files import kernel
from integers import cut
from numbers_exact import decode, encode, number

FORMULAS = "fragments by the index formulas of the ISA, plain product of matrices"


class Random:
    def __init__(self, seed):
        self.state = seed * 2654435761 % 2**32 | 1

    def next(self, n):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return (self.state >> 8) % n


def a_index(m, k, w, lane, i):
    group, member = lane >> 2, lane % 4
    per = 32 // w
    register, j = divmod(i, per)
    registers = m * k * w // 1024
    row = group + (8 if m == 16 and register % 2 else 0)
    column = member * per + j + (4 * per if register >= 2 else 0)
    assert registers in (1, 2, 4)
    return row, column


def b_index(w, lane, i):
    group, member = lane >> 2, lane % 4
    per = 32 // w
    register, j = divmod(i, per)
    return member * per + j + 4 * per * register, group


def c_index(m, lane, i):
    group, member = lane >> 2, lane % 4
    return group + (8 if i >= 2 else 0), member * 2 + (i & 1)


def container(x, ty, w):
    if ty == "s32":
        return cut(int(x), 32)
    if ty[0] in "su":
        return cut(int(x), w)
    if ty == "tf32":
        return encode(Fraction(x), "f32")
    bits = encode(Fraction(x), ty)
    assert number(decode(bits, ty)) == x, (x, ty)
    return bits << 2 if ty == "e2m1" and w == 8 else bits


def element(random, ty):
    if ty in ("s8", "u8"):
        return random.next(256) - (128 if ty == "s8" else 0)
    if ty in ("s4", "u4"):
        return random.next(16) - (8 if ty == "s4" else 0)
    if ty == "e2m1":
        return [Fraction(x, 2) for x in (0, 1, 2, 3, 4, 6, 8, 12)][random.next(8)] * (1 - 2 * random.next(2))
    return Fraction(random.next(9) - 4)


def pack(elements, count, w):
    """Registers from elements, lowest first."""
    per = 32 // w
    return [sum(cut(elements[r * per + j], w) << j * w for j in range(per)) for r in range(count)]


def mma(m, k, a_ty, b_ty, acc, kind="", scale=None, selectors=((0, 0), (0, 0)), satfinite=False, target="sm_80", version="7.1", seed=1):
    w = {"tf32": 32, "f16": 16, "bf16": 16, "s4": 4, "u4": 4}.get(a_ty, 4 if kind in ("mxf4", "mxf4nvf4") else 8)
    acc_w = 16 if acc == "f16" else 32
    random = Random(seed)
    a = [[element(random, a_ty) for _ in range(k)] for _ in range(m)]
    b = [[element(random, b_ty) for _ in range(8)] for _ in range(k)]
    big = 0x7FFFFF00 if satfinite else 0
    c = [[Fraction(random.next(65) - 32 + big) for _ in range(8)] for _ in range(m)]
    counts = [m * k * w // 1024, k * 8 * w // 1024, m * 8 * acc_w // 1024]
    names = [[f"{x}{i}" for i in range(n)] for x, n in zip("abc", counts)] + [[f"d{i}" for i in range(counts[2])]]
    (byte_a, thread_a), (byte_b, thread_b) = selectors
    scale_bytes = [[[0] * 4 for _ in range(32)] for _ in range(2)]
    factor_a = [[Fraction(1)] * k for _ in range(m)]
    factor_b = [[Fraction(1)] * 8 for _ in range(k)]
    if scale:
        vec, ty = scale
        for side in scale_bytes:
            for lane in side:
                for i in range(4):
                    lane[i] = 125 + random.next(5) if ty == "ue8m0" else 0x30 + random.next(16)
        meaning = lambda byte: Fraction(2) ** (byte - 127) if ty == "ue8m0" else decode(byte, "e4m3")
        chunk = k // vec
        for row in range(m):
            # thread-id 0 selects lanes 0 and 1 of every group of four, 1 selects 2 and 3; the second one has row + 8.
            lane = 4 * (row % 8) + 2 * thread_a + row // 8
            factor_a[row] = [meaning(scale_bytes[0][lane][byte_a + x // chunk]) for x in range(k)]
        for x in range(k):
            factor_b[x] = [meaning(scale_bytes[1][4 * column + thread_b][byte_b + x // chunk]) for column in range(8)]
    d = [[sum(a[r][x] * factor_a[r][x] * b[x][n] * factor_b[x][n] for x in range(k)) + c[r][n] for n in range(8)] for r in range(m)]
    if satfinite:
        d = [[min(x, Fraction(2**31 - 1)) for x in row] for row in d]
    rows = []
    for lane in range(32):
        ea = [container(a[r][x], a_ty, w) for r, x in (a_index(m, k, w, lane, i) for i in range(counts[0] * 32 // w))]
        eb = [container(b[x][n], b_ty, w) for x, n in (b_index(w, lane, i) for i in range(counts[1] * 32 // w))]
        ec = [container(c[r][n], acc, acc_w) for r, n in (c_index(m, lane, i) for i in range(counts[2] * 32 // acc_w))]
        ed = [container(d[r][n], acc, acc_w) for r, n in (c_index(m, lane, i) for i in range(counts[2] * 32 // acc_w))]
        ins = pack(ea, counts[0], w) + pack(eb, counts[1], w) + pack(ec, counts[2], acc_w)
        if scale:
            ins += [int.from_bytes(bytes(side[lane]), "little") for side in scale_bytes]
        rows.append((tuple(ins), tuple(pack(ed, counts[2], acc_w))))
    ty32 = "f32" if acc == "f32" else "b32"
    inputs = [(n, "b32") for n in names[0] + names[1]] + [(n, ty32) for n in names[2]]
    if scale:
        inputs += [("sa", "b32"), ("sb", "b32")]
    group = lambda list_: "{" + ", ".join("%" + n for n in list_) + "}"
    suffix = f".{acc}.{a_ty}.{b_ty}.{acc}"
    word = f"mma.sync.aligned.m{m}n8k{k}.row.col"
    if kind:
        word += f".kind::{kind}"
    if scale:
        word += f".block_scale.scale_vec::{scale[0]}X"
        suffix += f".{scale[1]}"
    if satfinite:
        word += ".satfinite"
    word += suffix
    operands = f"{group(names[3])}, {group(names[0])}, {group(names[1])}, {group(names[2])}"
    if scale:
        operands += f", %sa, {{{byte_a}, {thread_a}}}, %sb, {{{byte_b}, {thread_b}}}"
    file = f"mma_m{m}n8k{k}" + (f"_{kind}" if kind else "") + (f"_{scale[0]}x_{scale[1]}" if scale else "") + f"_{acc}_{a_ty}_{b_ty}" + ("_satfinite" if satfinite else "")
    kernel(file, word, inputs, [(n, ty32) for n in names[3]], rows, f"{word} {operands};", derivation=FORMULAS, target=target, version=version)


def products():
    mma(16, 4, "tf32", "tf32", "f32")
    mma(16, 8, "tf32", "tf32", "f32")
    mma(16, 8, "bf16", "bf16", "f32")
    mma(16, 16, "bf16", "bf16", "f32")
    for acc in ("f16", "f32"):
        mma(16, 8, "f16", "f16", acc)
        mma(16, 16, "f16", "f16", acc)
    seed = 1
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            for m, k in ((8, 16), (16, 16), (16, 32)):
                seed += 1
                mma(m, k, a, b, "s32", seed=seed)
    for a in ("s4", "u4"):
        for b in ("s4", "u4"):
            for m, k in ((8, 32), (16, 32), (16, 64)):
                seed += 1
                mma(m, k, a, b, "s32", seed=seed)
    mma(16, 32, "u8", "u8", "s32", satfinite=True, seed=77)
    for a in ("e4m3", "e5m2"):
        for b in ("e4m3", "e5m2"):
            for acc in ("f32", "f16"):
                seed += 1
                mma(16, 32, a, b, acc, target="sm_89", version="8.4" if acc == "f32" else "8.7", seed=seed)
                mma(16, 16, a, b, acc, target="sm_89", version="8.7", seed=seed + 500)
    small = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
    selectors = [((0, 0), (0, 0)), ((1, 1), (2, 1)), ((2, 0), (1, 2)), ((3, 1), (3, 3))]
    for a in small:
        for b in small:
            seed += 1
            mma(16, 32, a, b, "f32", kind="f8f6f4", target="sm_120a", version="8.7", seed=seed)
            if a == b:
                mma(16, 32, a, b, "f16", kind="f8f6f4", target="sm_120a", version="8.7", seed=seed)
            mma(16, 32, a, b, "f32", kind="mxf8f6f4", scale=(1, "ue8m0"), selectors=selectors[seed % 4], target="sm_120a", version="8.7", seed=seed)
    mma(16, 64, "e2m1", "e2m1", "f32", kind="mxf4", scale=(2, "ue8m0"), selectors=((2, 1), (0, 2)), target="sm_120a", version="8.7", seed=900)
    mma(16, 64, "e2m1", "e2m1", "f32", kind="mxf4nvf4", scale=(2, "ue8m0"), selectors=((0, 0), (2, 3)), target="sm_120a", version="8.7", seed=901)
    mma(16, 64, "e2m1", "e2m1", "f32", kind="mxf4nvf4", scale=(4, "ue4m3"), selectors=((0, 1), (0, 1)), target="sm_120a", version="8.7", seed=902)


def moves():
    base = ".shared .align 128 .b8 pool[512];\n.reg .b32 %at, %base;"
    # Row r of 16 bytes is written by lane r; afterwards lane l's address is row l.
    fill = "mov.u32 %base, pool;\nmad.lo.u32 %at, %row, 16, %base;\nst.shared.v4.b32 [%at], {%r0, %r1, %r2, %r3};\nbar.warp.sync -1;\n"
    memory = [bytes((row * 16 + i) * 7 % 251 for i in range(16)) for row in range(32)]
    words = lambda row: tuple(int.from_bytes(memory[row][4 * i:4 * i + 4], "little") for i in range(4))
    inputs = [(f"r{i}", "b32") for i in range(4)]
    half = lambda row, column: int.from_bytes(memory[row][2 * column:2 * column + 2], "little")
    for num in (1, 2, 4):
        for trans in ("", ".trans"):
            rows = []
            for lane in range(32):
                out = []
                for matrix in range(num):
                    r, c = lane // 4, lane % 4 * 2
                    low, high = (half(8 * matrix + c, r), half(8 * matrix + c + 1, r)) if trans else (half(8 * matrix + r, c), half(8 * matrix + r, c + 1))
                    out.append(low | high << 16)
                rows.append((words(lane), tuple(out)))
            outs = [(f"d{i}", "b32") for i in range(num)]
            group = "{" + ", ".join(f"%d{i}" for i in range(num)) + "}"
            kernel(f"ldmatrix_m8n8_x{num}{trans.replace('.', '_')}_b16", f"ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16", inputs, outs, rows,
                   fill + f"ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 {group}, [%at];", derivation="figures of the ISA", declarations=base, target="sm_80")
    for num in (1, 2):
        for form, w in (("b8", 8), ("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)):
            rows = []
            for lane in range(32):
                out = []
                for register in range(2 * num):
                    word = 0
                    for i in range(4):
                        row = 16 * (register // 2) + 4 * (lane % 4) + i
                        at = lane // 4 + 8 * (register % 2)
                        word |= (int.from_bytes(memory[row], "little") >> at * w & (1 << w) - 1) << 8 * i
                    out.append(word)
                rows.append((words(lane), tuple(out)))
            outs = [(f"d{i}", "b32") for i in range(2 * num)]
            group = "{" + ", ".join(f"%d{i}" for i in range(2 * num)) + "}"
            word = f"ldmatrix.sync.aligned.m16n16.x{num}.trans.shared.{form}"
            kernel(f"ldmatrix_m16n16_x{num}_trans_{form.replace('.', '_')}", word, inputs, outs, rows, fill + f"{word} {group}, [%at];", derivation="figures of the ISA", declarations=base, target="sm_120a", version="8.7")
    for num in (1, 2, 4):
        for form, w in (("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)):
            rows = []
            for lane in range(32):
                out = []
                for register in range(num):
                    row = int.from_bytes(memory[8 * register + lane // 4], "little")
                    out.append(sum((row >> (lane % 4 * 4 + i) * w & (1 << w) - 1) << 8 * i for i in range(4)))
                rows.append((words(lane), tuple(out)))
            outs = [(f"d{i}", "b32") for i in range(num)]
            group = "{" + ", ".join(f"%d{i}" for i in range(num)) + "}"
            word = f"ldmatrix.sync.aligned.m8n16.x{num}.shared.{form}"
            kernel(f"ldmatrix_m8n16_x{num}_{form.replace('.', '_')}", word, inputs, outs, rows, fill + f"{word} {group}, [%at];", derivation="figures of the ISA", declarations=base, target="sm_120a", version="8.7")

    # stmatrix: registers to rows; lane r then reads row r. Unwritten rows keep 0x55.
    value = lambda register, lane: (register * 32 + lane) * 0x01030507 + 0x11223344 & 0xFFFFFFFF
    for num in (1, 2, 4):
        for form, trans in (("m8n8", ""), ("m8n8", ".trans"), ("m16n8", ".trans")):
            pool = [bytearray(b"\x55" * 16) for _ in range(32)]
            for register in range(num):
                for lane in range(32):
                    v = value(register, lane).to_bytes(4, "little")
                    r, c = lane // 4, lane % 4 * 2
                    if form == "m16n8":
                        # e0, e1: row r, columns c, c + 1; e2, e3: row r + 8; stored transposed.
                        for i in range(4):
                            pool[8 * register + c + i % 2][r + 8 * (i // 2)] = v[i]
                    elif trans:
                        for i in range(2):
                            pool[8 * register + c + i][2 * r:2 * r + 2] = v[2 * i:2 * i + 2]
                    else:
                        pool[8 * register + r][2 * c:2 * c + 4] = v
            ins = [(f"r{i}", "b32") for i in range(num)]
            rows = []
            for lane in range(32):
                out = tuple(int.from_bytes(pool[lane][4 * i:4 * i + 4], "little") for i in range(4))
                rows.append((tuple(value(i, lane) for i in range(num)), out))
            group = "{" + ", ".join(f"%r{i}" for i in range(num)) + "}"
            ty = "b8" if form == "m16n8" else "b16"
            word = f"stmatrix.sync.aligned.{form}.x{num}{trans}.shared.{ty}"
            kernel(f"stmatrix_{form}_x{num}{trans.replace('.', '_')}_{ty}", word, ins, [(f"d{i}", "b32") for i in range(4)], rows,
                   f"""mov.u32 %base, pool;
                      mad.lo.u32 %at, %row, 16, %base;
                      mov.b32 %f, 0x55555555;
                      st.shared.v4.b32 [%at], {{%f, %f, %f, %f}};
                      bar.warp.sync -1;
                      {word} [%at], {group};
                      bar.warp.sync -1;
                      ld.shared.v4.b32 {{%d0, %d1, %d2, %d3}}, [%at];""", derivation="figures of the ISA", declarations=base + "\n.reg .b32 %f;",
                   target="sm_120a" if form == "m16n8" else "sm_90", version="8.7" if form == "m16n8" else "7.8")
    source = [value(0, lane) for lane in range(32)]
    part = lambda r, c: source[4 * r + c // 2] >> 16 * (c % 2) & 0xFFFF
    rows = [((source[lane],), (part(lane % 4 * 2, lane // 4) | part(lane % 4 * 2 + 1, lane // 4) << 16,)) for lane in range(32)]
    kernel("movmatrix_m8n8_trans_b16", "movmatrix.sync.aligned.m8n8.trans.b16", [("a", "b32")], [("d", "b32")], rows, "movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;", derivation="figures of the ISA", target="sm_80", version="7.8")


def run():
    products()
    moves()
