#!/usr/bin/env python3
"""Milliseconds of three operations of sparse attention in PyTorch and numpy on two CPU threads.

Each operation has several forms; each form is first checked against plain fp64, then timed in turn with the
others. What a form needs once (tables, queries as fp32) is made outside the clock; what it needs at every
step (decoding of the stored bytes) is inside.

  operations.py [--sm120 target/release/sm120] [--repeats 20] [--only NAME] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import ENVIRONMENT, THREADS, machine_facts

if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
    # Thread counts and malloc thresholds are read when a process starts.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

SEQUENCES = 32


@dataclass(frozen=True)
class Form:
    """One way to compute an operation; `tolerance` bounds its largest error by the largest expected value."""

    name: str
    run: Callable[[], torch.Tensor | np.ndarray]
    tolerance: float


@dataclass(frozen=True)
class Operation:
    """`error` gives a form's largest error over the largest expected value."""

    name: str
    forms: list[Form]
    error: Callable[[np.ndarray], float]


def e4m3_table() -> np.ndarray:
    """The 256 values of e4m3."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """e4m3 bytes to fp32 by bit shifts, subnormals included, one vectorised pass when compiled.

    Exponent and mantissa move into fp32's place, where they are too small by 2^(127-7). NaN codes do not
    occur in stored rows.
    """
    wide = codes.to(torch.int32)
    bits = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
    return bits.view(torch.float32) * 2.0**120


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max())


# ----------------------------------------------------------------------------------------------------
# Index logits: logits[b, j] = k_scale[b, j] * sum_h weights[b, h] * relu(q[b, h] . k[b, j]), keys e4m3
# ----------------------------------------------------------------------------------------------------
def index_logits() -> Operation:
    """32 sequences with 32,768 keys each, 64 heads of 128."""
    keys, heads, width = 32_768, 64, 128
    rng = torch.Generator().manual_seed(1)
    k8 = torch.randn(SEQUENCES, keys, width, generator=rng).to(torch.float8_e4m3fn)
    q = torch.randn(SEQUENCES, heads, width, generator=rng).to(torch.float8_e4m3fn).float()
    weights = torch.randn(SEQUENCES, heads, generator=rng)
    k_scale = torch.rand(SEQUENCES, keys, generator=rng) + 0.5
    codes, q16 = k8.view(torch.uint8), q.bfloat16()
    out = torch.empty(SEQUENCES, keys)

    def combine(scores: torch.Tensor, weights: torch.Tensor, k_scale: torch.Tensor) -> torch.Tensor:
        return (scores.float().relu() * weights[:, None]).sum(0) * k_scale

    combine = torch.compile(combine, dynamic=False)
    decode = torch.compile(decode_e4m3, dynamic=False)

    def by_bits(b: int | slice, rows: slice) -> torch.Tensor:
        return decode(codes[b, rows])

    def by_cast(b: int | slice, rows: slice) -> torch.Tensor:
        return k8[b, rows].float()

    def to_bf16(b: int | slice, rows: slice) -> torch.Tensor:
        return k8[b, rows].bfloat16()

    def blocked(block: int, decode: Callable, query: torch.Tensor) -> torch.Tensor:
        for b in range(SEQUENCES):
            for start in range(0, keys, block):
                rows = slice(start, start + block)
                scores = query[b] @ decode(b, rows).T
                out[b, rows] = combine(scores, weights[b], k_scale[b, rows])
        return out

    def whole(decode: Callable, query: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(query, decode(slice(None), slice(None)).transpose(1, 2)).relu_()
        return torch.bmm(weights[:, None].to(scores.dtype), scores)[:, 0] * k_scale

    table, codes_np, q_np = e4m3_table(), codes.numpy(), q.numpy()
    weights_np, k_scale_np, block_np = weights.numpy(), k_scale.numpy(), 4096

    def numpy_blocked() -> np.ndarray:
        result = np.empty((SEQUENCES, keys), np.float32)
        for b in range(SEQUENCES):
            for start in range(0, keys, block_np):
                rows = slice(start, start + block_np)
                scores = q_np[b] @ table[codes_np[b, rows]].T
                np.maximum(scores, 0, out=scores)
                result[b, rows] = (weights_np[b] @ scores) * k_scale_np[b, rows]
        return result

    part = slice(0, keys, 61)
    exact_k = table.astype(np.float64)[codes_np[:, part]]
    exact = np.maximum(np.einsum("bhd,bjd->bhj", q_np.astype(np.float64), exact_k, optimize=True), 0)
    expected = np.einsum("bhj,bh->bj", exact, weights_np.astype(np.float64)) * k_scale_np[:, part]

    # fp32: 128 + 64 additions of relative error 2^-24 each. bf16 rounds every score to 2^-9.
    exact_bar, bf16_bar = 2e-5, 1e-2
    forms = [
        Form("torch f32, all at once, compiled decoding", lambda: whole(by_bits, q), exact_bar),
        Form("torch f32, all at once, cast", lambda: whole(by_cast, q), exact_bar),
        Form("torch bf16, all at once, cast", lambda: whole(to_bf16, q16), bf16_bar),
        Form("torch f32, blocks of 4096, compiled decoding", lambda: blocked(4096, by_bits, q), exact_bar),
        Form("torch f32, whole sequences, compiled decoding", lambda: blocked(keys, by_bits, q), exact_bar),
        Form("torch f32, blocks of 4096, cast", lambda: blocked(4096, by_cast, q), exact_bar),
        Form("torch bf16, blocks of 4096, cast", lambda: blocked(4096, to_bf16, q16), bf16_bar),
        Form("torch bf16, whole sequences, cast", lambda: blocked(keys, to_bf16, q16), bf16_bar),
        Form("numpy f32, blocks of 4096, table", numpy_blocked, exact_bar),
    ]
    return Operation("index_logits_decode", forms, lambda got: relative_error(got[:, part], expected))


# ----------------------------------------------------------------------------------------------------
# Sparse MLA decode: attention of 64 heads over 640 picked rows of 512 that are keys and values, with a sink
# ----------------------------------------------------------------------------------------------------
NOPE, ROPE, TILE = 448, 64, 64


def v4_fp8_rows(count: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` rows as bytes [count, 584] and their values [count, 512].

    A row is 448 e4m3 bytes, 64 bf16 rope values, 7 power-of-two scales (exponent + 127) of 64 channels each
    and a pad byte.
    """
    nope = torch.randn(count, NOPE, generator=rng).to(torch.float8_e4m3fn)
    rope = torch.randn(count, ROPE, generator=rng).bfloat16()
    exponents = torch.randint(-3, 3, (count, NOPE // TILE), generator=rng)
    parts = [nope.view(torch.uint8), rope.view(torch.uint8), (exponents + 127).to(torch.uint8)]
    values = nope.float().view(count, -1, TILE) * torch.exp2(exponents.float())[:, :, None]
    data = torch.cat([*parts, torch.zeros(count, 1, dtype=torch.uint8)], dim=1)
    return data, torch.cat([values.flatten(1), rope.float()], dim=1)


def decode_v4_fp8(rows: torch.Tensor) -> torch.Tensor:
    """Rows [..., 584] to fp32 [..., 512] by bit shifts."""
    scales = (rows[..., NOPE + 2 * ROPE : -1].to(torch.int32) << 23).view(torch.float32)
    nope = decode_e4m3(rows[..., :NOPE]).unflatten(-1, (NOPE // TILE, TILE)) * scales[..., None]
    pairs = rows[..., NOPE : NOPE + 2 * ROPE].to(torch.int32).unflatten(-1, (ROPE, 2))
    rope = ((pairs[..., 0] << 16) | (pairs[..., 1] << 24)).view(torch.float32)
    return torch.cat([nope.flatten(-2), rope], dim=-1)


def sparse_mla() -> Operation:
    """32 sequences, 640 rows each (window 128, top-k 512) out of 32,768 stored rows."""
    pool, picked, heads, width = 32_768, 640, 64, NOPE + ROPE
    rng = torch.Generator().manual_seed(2)
    rows, values = v4_fp8_rows(pool, rng)
    slots = torch.stack([torch.randperm(pool, generator=rng)[:picked] for _ in range(SEQUENCES)])
    q = torch.randn(SEQUENCES, heads, width, generator=rng)
    sink = torch.randn(heads, generator=rng)
    sm_scale = width**-0.5

    decode = torch.compile(decode_v4_fp8, dynamic=False)

    def with_sink(scores: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        top = torch.maximum(scores.amax(-1), sink)[..., None]
        probabilities = torch.exp(scores - top)
        return probabilities / (probabilities.sum(-1, keepdim=True) + torch.exp(sink[..., None] - top))

    with_sink = torch.compile(with_sink, dynamic=False)

    def attend(query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return with_sink(query @ kv.transpose(-1, -2) * sm_scale, sink) @ kv

    def by_sequence(decode: Callable) -> torch.Tensor:
        return torch.stack([attend(q[b], decode(rows[slots[b]])) for b in range(SEQUENCES)])

    # scaled_dot_product_attention knows no sink: a key of zeros whose mask is the sink, and a value of zeros.
    mask = torch.cat([torch.zeros(heads, picked), sink[:, None]], dim=1)

    def fused(decode: Callable) -> torch.Tensor:
        outputs = []
        for b in range(SEQUENCES):
            kv = F.pad(decode(rows[slots[b]]), (0, 0, 0, 1))[None, None]
            outputs.append(
                F.scaled_dot_product_attention(q[b][None, None], kv, kv, mask, scale=sm_scale)[0, 0]
            )
        return torch.stack(outputs)

    table, rows_np, slots_np = e4m3_table(), rows.numpy(), slots.numpy()
    q_np, sink_np = q.numpy(), sink.numpy()

    def numpy_by_sequence() -> np.ndarray:
        result = np.empty((SEQUENCES, heads, width), np.float32)
        kv = np.empty((picked, width), np.float32)
        for b in range(SEQUENCES):
            data = rows_np[slots_np[b]]
            scales = (data[:, NOPE + 2 * ROPE : -1].astype(np.uint32) << 23).view(np.float32)
            kv[:, :NOPE] = (table[data[:, :NOPE]].reshape(picked, -1, TILE) * scales[:, :, None]).reshape(
                picked, NOPE
            )
            pairs = np.ascontiguousarray(data[:, NOPE : NOPE + 2 * ROPE]).view(np.uint16)
            kv[:, NOPE:] = (pairs.astype(np.uint32) << 16).view(np.float32)
            scores = (q_np[b] @ kv.T) * np.float32(sm_scale)
            top = np.maximum(scores.max(1), sink_np)[:, None]
            probabilities = np.exp(scores - top)
            probabilities /= probabilities.sum(1, keepdims=True) + np.exp(sink_np[:, None] - top)
            result[b] = probabilities @ kv
        return result

    kv = values[slots].double()
    scores = torch.cat(
        [q.double() @ kv.transpose(1, 2) * sm_scale, sink.double().expand(SEQUENCES, -1)[..., None]], -1
    )
    expected = (scores.softmax(-1)[..., :-1] @ kv).numpy()

    # fp32: 512 + 640 additions of relative error 2^-24 each, doubled for the exponential.
    bar = 1.5e-4
    forms = [
        Form("torch f32, all at once, compiled decoding", lambda: attend(q, decode(rows[slots])), bar),
        Form("torch f32, one sequence at a time, compiled decoding", lambda: by_sequence(decode), bar),
        Form("torch f32, one sequence at a time, eager decoding", lambda: by_sequence(decode_v4_fp8), bar),
        Form("torch scaled_dot_product_attention, compiled decoding", lambda: fused(decode), bar),
        Form("numpy f32, one sequence at a time, table", numpy_by_sequence, bar),
    ]
    return Operation("sparse_mla_decode", forms, lambda got: relative_error(got, expected))


# ----------------------------------------------------------------------------------------------------
# Exact top-512 of 32,768 values
# ----------------------------------------------------------------------------------------------------
def top_k() -> Operation:
    """32 rows; the picks as positions, in any order."""
    values, picks = 32_768, 512
    logits = torch.randn(SEQUENCES, values, generator=torch.Generator().manual_seed(3))
    logits_np = logits.numpy()
    expected = np.sort(np.argsort(-logits_np, axis=1, kind="stable")[:, :picks], axis=1)

    def error(got: np.ndarray) -> float:
        """Share of picks that differ; the values are distinct at the boundary."""
        return float((np.sort(got, axis=1) != expected).mean())

    forms = [
        Form("torch.topk, unsorted", lambda: torch.topk(logits, picks, dim=1, sorted=False).indices, 0.0),
        Form("torch.topk, sorted", lambda: torch.topk(logits, picks, dim=1).indices, 0.0),
        Form(
            "numpy.argpartition", lambda: np.argpartition(logits_np, values - picks, axis=1)[:, -picks:], 0.0
        ),
    ]
    return Operation("topk_select", forms, error)


OPERATIONS = {"index_logits_decode": index_logits, "sparse_mla_decode": sparse_mla, "topk_select": top_k}


def time_operation(operation: Operation, repeats: int) -> list[dict]:
    """Checks every form, which also compiles and warms it; then times the forms in turn, `repeats` times."""
    for form in operation.forms:
        error = operation.error(np.asarray(form.run()))
        if not error <= form.tolerance:
            raise SystemExit(
                f"{operation.name}, {form.name}: expected error <= {form.tolerance:g}, got {error:g}"
            )
    milliseconds: dict[str, list[float]] = {form.name: [] for form in operation.forms}
    for _ in range(repeats):
        for form in operation.forms:
            start = time.perf_counter()
            form.run()
            milliseconds[form.name].append(1e3 * (time.perf_counter() - start))
    return [
        {"operation": operation.name, "form": name, "min_ms": min(ms), "median_ms": statistics.median(ms)}
        for name, ms in milliseconds.items()
    ]


def time_ours(binary: Path) -> list[dict]:
    """The same operations by `sm120 bench-host`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "host.json"
        subprocess.run(
            [str(binary.resolve(strict=True)), "bench-host", "--json", str(out)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        entries = json.loads(out.read_text())["operations"]
    keys = ("operation", "min_ms", "median_ms")
    return [{"form": "sm120", **{key: entry[key] for key in keys}} for entry in entries]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sm120", type=Path, help="our binary")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", choices=list(OPERATIONS), help="one operation")
    parser.add_argument("--json", type=Path, help="file for the rows and machine facts")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    machine = machine_facts()
    names = [args.only] if args.only else list(OPERATIONS)
    rows = time_ours(args.sm120) if args.sm120 else []
    with torch.inference_mode():
        for name in names:
            rows += time_operation(OPERATIONS[name](), args.repeats)
    for name in names:
        print(f"{name}: milliseconds, minimum and median")
        for row in sorted((row for row in rows if row["operation"] == name), key=lambda row: row["min_ms"]):
            print(f"  {row['min_ms']:9.2f} {row['median_ms']:9.2f}  {row['form']}")
    if args.json:
        versions = {"torch": torch.__version__, "numpy": np.__version__}
        args.json.write_text(
            json.dumps({"machine": machine, "versions": versions, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
