"""Writes the `triton_*` case folders: kernels compiled by Triton for sm_120, inputs, and results in f64 by numpy.

    pip install triton==3.9.0 numpy --target DIR && PYTHONPATH=DIR python3 cases/sources/triton_kernels.py

No GPU is needed. The folders are committed; nothing runs this at build or test time.
"""

import json
import os
import shutil

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


@triton.jit
def softmax_kernel(x, y, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    v = tl.load(x + row * stride + at, mask=mask, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * stride + at, e / tl.sum(e, axis=0), mask=mask)


@triton.jit
def matmul_kernel(a, b, c, m, n, k, stride_a, stride_b, stride_c, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    pa = a + (rm % m)[:, None] * stride_a + rk[None, :]
    pb = b + rk[:, None] * stride_b + (rn % n)[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        left = k - step * BK
        ta = tl.load(pa, mask=rk[None, :] < left, other=0.0)
        tb = tl.load(pb, mask=rk[:, None] < left, other=0.0)
        acc = tl.dot(ta, tb, acc)
        pa += BK
        pb += BK * stride_b
    tl.store(c + rm[:, None] * stride_c + rn[None, :], acc, mask=(rm[:, None] < m) & (rn[None, :] < n))


@triton.jit
def mx_matmul_kernel(a, sa, b, sb, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # a [m, k] and b [n, k] e4m3, sa [m, k / 32] and sb [n, k / 32] ue8m0.
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    rs = tl.arange(0, BK // 32)
    pa = a + rm[:, None] * k + rk[None, :]
    pb = b + rn[None, :] * k + rk[:, None]
    qa = sa + rm[:, None] * (k // 32) + rs[None, :]
    qb = sb + rn[:, None] * (k // 32) + rs[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, k // BK):
        acc = tl.dot_scaled(tl.load(pa), tl.load(qa), "e4m3", tl.load(pb), tl.load(qb), "e4m3", acc)
        pa += BK
        pb += BK
        qa += BK // 32
        qb += BK // 32
    tl.store(c + rm[:, None] * n + rn[None, :], acc)


def compile_to(folder, fn, signature, constants, aligned=(), **options):
    attrs = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn=fn, signature=signature | {name: "constexpr" for name in constants}, constexprs=constants, attrs=attrs)
    kernel = triton.compile(source, target=GPUTarget("cuda", 120, 32), options={"num_warps": 4} | options)
    # The places of source files are this machine's own business, and DWARF sections repeat them.
    text = kernel.asm["ptx"]
    lines, skip = [], False
    for line in text.split("\n"):
        if line.strip().startswith(".section"):
            skip = True
        if not skip:
            if line.strip().startswith(".file"):
                number = line.split()[1]
                line = f'\t.file\t{number} "/kernels/{line.split(chr(34))[-2].split("/")[-1]}"'
            lines.append(line.split("//")[0].rstrip() if ".loc" in line else line)
        if skip and line.strip() == "}":
            skip = False
    with open(os.path.join(folder, "kernel.ptx"), "w") as file:
        file.write("\n".join(lines))
    return kernel.metadata


def folder_of(name):
    folder = os.path.join(CASES, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def to_bf16(x):
    """Nearest even, as f32 values."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)


def e4m3_values():
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return np.where(codes & 128, -value, value)


def random_e4m3(rng, shape):
    """Codes of numbers between 2^-3 and 3.75, either sign."""
    return ((rng.integers(4, 9, shape) << 3 | rng.integers(0, 8, shape)) | rng.integers(0, 2, shape) << 7).astype(np.uint8)


def write(folder, name, title, buffers, launch, output, want, bound, tolerated=()):
    case = {"format": 1, "name": name, "title": title, "ptx": "kernel.ptx", "buffers": {}, "launches": [launch]}
    for buffer, (dtype, shape, data) in buffers.items():
        size = int(np.prod(shape)) * {"f32": 4, "bf16": 2, "e4m3": 1, "u8": 1}[dtype]
        entry = {"dtype": dtype, "shape": list(shape), "bytes": size, "init": "uninit"}
        if data is not None:
            entry |= {"init": "file", "file": f"{buffer}.bin"}
            data.tofile(os.path.join(folder, f"{buffer}.bin"))
        case["buffers"][buffer] = entry
    want.astype(np.float32).tofile(os.path.join(folder, f"{output}.expected.bin"))
    bound.astype(np.float32).tofile(os.path.join(folder, f"{output}.bound.bin"))
    case["outputs"] = [{"buffer": output, "file": f"{output}.expected.bin", "compare": {"kind": "within", "tolerance_file": f"{output}.bound.bin"}}]
    if tolerated:
        case["tolerated"] = list(tolerated)
    case["findings"] = {"expect": "none"}
    with open(os.path.join(folder, "case.json"), "w") as file:
        json.dump(case, file, indent=1)
        file.write("\n")


NULL = {"scalar": "u64", "value": 0}


def s32(x):
    return {"scalar": "s32", "value": x}


def softmax():
    name = "triton_softmax"
    folder = folder_of(name)
    meta = compile_to(folder, softmax_kernel, {"x": "*fp32", "y": "*fp32", "stride": "i32", "columns": "i32"}, {"BLOCK": 1024})
    rng = np.random.default_rng(1)
    rows, stride, columns = 5, 800, 781
    x = rng.normal(0, 4, (rows, stride)).astype(np.float32)
    x[:, columns:] = np.nan
    e = np.exp(x[:, :columns].astype(np.float64) - x[:, :columns].max(axis=1, keepdims=True))
    want = np.zeros((rows, stride))
    want[:, :columns] = e / e.sum(axis=1, keepdims=True)
    # exp2 of a product rounded to f32: the argument is off by up to 40 * 2^-24, the rest are a few roundings.
    bound = np.where(np.arange(stride) < columns, want * 2e-5 + 1e-12, np.inf)
    launch = {"entry": "softmax_kernel", "grid": [rows, 1, 1], "block": [128, 1, 1], "dynamic_shared": meta.shared,
              "args": [{"buffer": "x"}, {"buffer": "y"}, s32(stride), s32(columns), NULL, NULL]}
    # After the shuffles of a reduction every lane of a warp holds the same number, and all 32 store it to one word.
    text = open(os.path.join(folder, "kernel.ptx")).read().split("\n")
    lines = [i + 1 for i, line in enumerate(text) if "st.shared.b32" in line]
    tolerated = [{"class": "shared_race", "lines": lines, "why": "lanes that hold copies of one value all store it to one word"}]
    write(folder, name, "row softmax, compiled by Triton; columns past the row's end are NaN", {"x": ("f32", x.shape, x), "y": ("f32", x.shape, None)}, launch, "y", want, bound, tolerated)


def matmul(name, dtype, triton_dtype):
    folder = folder_of(name)
    signature = {"a": "*" + triton_dtype, "b": "*" + triton_dtype, "c": "*fp32", "m": "i32", "n": "i32", "k": "i32", "stride_a": "i32", "stride_b": "i32", "stride_c": "i32"}
    meta = compile_to(folder, matmul_kernel, signature, {"BM": 64, "BN": 64, "BK": 64}, aligned=range(9), num_stages=3)
    rng = np.random.default_rng(2)
    m, n, k = 96, 80, 208
    if dtype == "bf16":
        a, b = to_bf16(rng.normal(size=(m, k))), to_bf16(rng.normal(size=(k, n)))
        raw = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    else:
        raw = [random_e4m3(rng, (m, k)), random_e4m3(rng, (k, n))]
        a, b = (e4m3_values()[x] for x in raw)
    a, b = a.astype(np.float64), b.astype(np.float64)
    want = a @ b
    # One rounding to f32 per step of 16 or 32, and one of what came before: far inside k roundings of the whole.
    bound = (np.abs(a) @ np.abs(b)) * k * 2.0**-24
    launch = {"entry": "matmul_kernel", "grid": [2, 2, 1], "block": [128, 1, 1], "dynamic_shared": meta.shared,
              "args": [{"buffer": "a"}, {"buffer": "b"}, {"buffer": "c"}, s32(m), s32(n), s32(k), s32(k), s32(n), s32(n), NULL, NULL]}
    write(folder, name, f"{dtype} matrix product with three stages of cp.async, compiled by Triton",
          {"a": (dtype, (m, k), raw[0]), "b": (dtype, (k, n), raw[1]), "c": ("f32", (m, n), None)}, launch, "c", want, bound)


def mx_matmul():
    name = "triton_matmul_mxfp8"
    folder = folder_of(name)
    signature = {"a": "*fp8e4nv", "sa": "*u8", "b": "*fp8e4nv", "sb": "*u8", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    meta = compile_to(folder, mx_matmul_kernel, signature, {"BM": 64, "BN": 64, "BK": 128}, aligned=range(8), num_stages=2)
    rng = np.random.default_rng(3)
    m, n, k = 64, 64, 256
    ra, rb = random_e4m3(rng, (m, k)), random_e4m3(rng, (n, k))
    sa, sb = (rng.integers(124, 131, (rows, k // 32)).astype(np.uint8) for rows in (m, n))
    a = e4m3_values()[ra] * np.repeat(2.0 ** (sa.astype(np.float64) - 127), 32, axis=1)
    b = e4m3_values()[rb] * np.repeat(2.0 ** (sb.astype(np.float64) - 127), 32, axis=1)
    want = a @ b.T
    bound = (np.abs(a) @ np.abs(b).T) * k * 2.0**-24
    launch = {"entry": "mx_matmul_kernel", "grid": [1, 1, 1], "block": [128, 1, 1], "dynamic_shared": meta.shared,
              "args": [{"buffer": x} for x in ("a", "sa", "b", "sb", "c")] + [s32(m), s32(n), s32(k), NULL, NULL]}
    write(folder, name, "e4m3 matrix product with ue8m0 scales by 32 (block-scaled mma), compiled by Triton",
          {"a": ("e4m3", (m, k), ra), "sa": ("u8", sa.shape, sa), "b": ("e4m3", (n, k), rb), "sb": ("u8", sb.shape, sb), "c": ("f32", (m, n), None)}, launch, "c", want, bound)


if __name__ == "__main__":
    softmax()
    matmul("triton_matmul_bf16", "bf16", "bf16")
    matmul("triton_matmul_e4m3", "e4m3", "fp8e4nv")
    mx_matmul()
