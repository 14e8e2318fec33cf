"""Writes the case folders beside this file: `python3 cases/derive.py --nvcc PATH/TO/nvcc`.

The PTX comes from `sources/*.cu` (nvcc 13.0, `-O3 -lineinfo`), the expected bytes from plain Python below. The folders
are committed; nothing runs this at build or test time. `row_sum` and `row_sum_missing_barrier` are not made here.
"""

import json
import math
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CODES = {"f32": "f", "f64": "d", "s32": "i", "u32": "I", "u8": "B", "s16": "h", "s64": "q", "u64": "Q"}
SIZES = {"f32": 4, "f64": 8, "s32": 4, "u32": 4, "u8": 1, "s16": 2, "s64": 8, "u64": 8, "e4m3": 1, "e5m2": 1}


def raw(dtype, values):
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


class Case:
    def __init__(self, name, title, source, defines=(), target="sm_89"):
        self.folder = os.path.join(HERE, name)
        os.makedirs(self.folder, exist_ok=True)
        for old in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, old))
        text = open(os.path.join(HERE, "sources", source)).read()
        with open(os.path.join(self.folder, "kernel.cu"), "w") as file:
            file.write("".join(f"#define {d}\n" for d in defines) + text)
        subprocess.run([NVCC, "-ptx", f"-arch={target}", "-O3", "-lineinfo", "-std=c++17", "-o", "kernel.ptx", "kernel.cu"], cwd=self.folder, check=True)
        # The place of the source file is this machine's own business.
        path = os.path.join(self.folder, "kernel.ptx")
        text = open(path).read().replace(self.folder + "/", "")
        lines = [line for line in text.split("\n")]
        for i, line in enumerate(lines):
            if line.strip().startswith(".file"):
                parts = line.split('"')
                if "/" in parts[1]:
                    parts[1] = os.path.basename(parts[1])
                    lines[i] = '"'.join(parts)
        with open(path, "w") as file:
            file.write("\n".join(lines))
        self.json = {"format": 1, "name": name, "title": title, "ptx": "kernel.ptx", "target": target, "buffers": {}, "launches": [], "outputs": [], "findings": {"expect": "none"}}

    def buffer(self, name, dtype, shape, values=None, init=None, data=None, value=None):
        count = math.prod(shape)
        entry = {"dtype": dtype, "shape": list(shape), "bytes": count * SIZES[dtype]}
        if values is not None or data is not None:
            data = raw(dtype, values) if data is None else data
            assert len(data) == entry["bytes"], name
            entry |= {"init": "file", "file": f"{name}.bin"}
            with open(os.path.join(self.folder, f"{name}.bin"), "wb") as file:
                file.write(data)
        else:
            entry["init"] = init or "uninit"
            if init == "fill":
                entry["value"] = value
        self.json["buffers"][name] = entry
        return self

    def launch(self, entry, grid, block, *args, **more):
        out = []
        for arg in args:
            if isinstance(arg, str):
                out.append({"buffer": arg})
            elif isinstance(arg, tuple):
                out.append({"scalar": arg[0], "value": arg[1]})
            else:
                out.append(arg)
        pad = lambda x: [x, 1, 1] if isinstance(x, int) else x
        self.json["launches"].append({"entry": entry, "grid": pad(grid), "block": pad(block), "dynamic_shared": 0} | more | {"args": out})
        return self

    def output(self, name, data, compare=None):
        if isinstance(data, tuple):
            data = raw(*data)
        with open(os.path.join(self.folder, f"{name}.expected.bin"), "wb") as file:
            file.write(data)
        self.json["outputs"].append({"buffer": name, "file": f"{name}.expected.bin", "compare": compare or {"kind": "exact"}})
        return self

    def file(self, name, data):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(data)
        return self

    def bug(self, *classes, also=(), note=""):
        self.json["findings"] = {"expect": "some", "class": list(classes)} | ({"also_accept": list(also)} if also else {}) | {"note": note}
        self.write()

    def write(self):
        with open(os.path.join(self.folder, "case.json"), "w") as file:
            json.dump(self.json, file, indent=1)
            file.write("\n")


def pseudo(n, modulus, seed=1):
    out, state = [], seed
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        out.append((state >> 8) % modulus)
    return out


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bounds():
    x = [float(v) for v in pseudo(1000, 1000)]
    y = [2 * v + 1 for v in x]
    Case("scale_add", "2 x + 1, the grid covers more than the vector", "bounds.cu").buffer("x", "f32", [1000], x).buffer("y", "f32", [1000]).launch("scale_add", 4, 256, "x", "y", ("s32", 1000)).output("y", ("f32", y)).write()
    Case("out_of_bounds", "2 x + 1 without the bound check", "bounds.cu", ["BUG"]).buffer("x", "f32", [1000], x).buffer("y", "f32", [1000]).launch("scale_add", 4, 256, "x", "y", ("s32", 1000)).bug("out_of_bounds", also=["uninitialized"], note="24 threads reach past the end")


def remote_exit():
    x = pseudo(128, 10000)
    y = x[64:] + x[:64]
    for name, title, defines in (("cluster_swap", "two blocks of a cluster swap numbers through shared memory", []), ("use_after_free", "shared memory of a block that has ended", ["BUG"])):
        case = Case(name, title, "remote_exit.cu", defines, "sm_120a").buffer("x", "s32", [128], x).buffer("y", "s32", [128]).launch("swap_blocks", 2, 64, "x", "y", cluster=[2, 1, 1])
        if defines:
            case.bug("use_after_free", note="block 1 ends without waiting for its reader")
        else:
            case.output("y", ("s32", y)).write()


def cluster_sum():
    x = pseudo(8 * 32, 100, 25)
    y = []
    for cluster in range(2):
        members = [row * 4 + cluster * 2 + column for row in range(2) for column in range(2)]
        y.append(sum(sum(x[32 * b:32 * b + 32]) for b in members))
    for block in range(8):
        column, row = block % 4 % 2, block // 4
        y.append((row * 2 + column) * 100 + column * 10 + row)
    for name, title, defines in (("cluster_sum", "remote atomics in clusters of 2 x 2 blocks", []), ("cluster_race", "remote atomics before the word is cleared", ["BUG"])):
        case = Case(name, title, "cluster_sum.cu", defines, "sm_120a").buffer("x", "s32", [256], x).buffer("y", "s32", [10]).launch("cluster_sum", [4, 2, 1], 32, "x", "y", cluster=[2, 2, 1])
        if defines:
            case.bug("shared_race", also=["uninitialized"], note="the first block may clear the word after another block's addition")
        else:
            case.output("y", ("s32", y)).write()


def cluster_wait():
    Case("cluster_deadlock", "a flag that is set behind the barrier its reader has not reached", "cluster_wait.cu", [], "sm_120a").buffer("flag", "s32", [1], init="zero").buffer("y", "s32", [2]).launch("cluster_wait", 2, 32, "flag", "y", cluster=[2, 1, 1]).bug("deadlock")


def alignment():
    x = [float(v) for v in pseudo(136, 100)]
    for name, title, offset in (("sum_of_four", "16-byte loads at an aligned offset", 16), ("misaligned", "16-byte loads at offset 4", 4)):
        case = Case(name, title, "alignment.cu").buffer("x", "f32", [136], x).buffer("y", "f32", [32]).launch("sum4", 1, 32, {"buffer": "x", "offset": offset}, "y")
        if offset == 4:
            case.bug("misaligned", note="every lane")
        else:
            case.output("y", ("f32", [sum(x[4 + 4 * i:8 + 4 * i]) for i in range(32)])).write()


def simple(name, bug_name, title, bug_title, source, entry, x, y, block, classes, also=(), note="", bug="BUG", target="sm_89", grid=1, width=None, dtype="s32"):
    shape = [len(x)]
    Case(name, title, source, [], target).buffer("x", dtype, shape, x).buffer("y", dtype, [len(y)]).launch(entry, grid, block, "x", "y").output("y", (dtype, y)).write()
    if bug_name:
        Case(bug_name, bug_title, source, [bug], target).buffer("x", dtype, shape, x).buffer("y", dtype, [len(y)]).launch(entry, grid, block, "x", "y").bug(*classes, also=also, note=note)


def shared_memory():
    x = pseudo(64, 10000, 3)
    simple("reverse", "uninitialized", "reverses through shared memory", "half of the shared memory is never written", "uninitialized.cu", "reverse", x, x[::-1], 64, ["uninitialized"], note="a value nothing wrote is stored")
    simple("warp_exchange", "warp_race", "lanes of a warp exchange numbers behind __syncwarp", "the same without __syncwarp", "warp_exchange.cu", "exchange", x[:32], [x[i ^ 1] for i in range(32)], 32, ["shared_race"], note="nothing orders one lane before another")
    simple("barrier", "divergent_barrier", "a barrier that all threads reach", "a barrier that 20 lanes of each warp reach", "divergent.cu", "half_barrier", x, [x[i ^ 32] + 1 for i in range(64)], 64, ["divergent_barrier"], also=["barrier_mismatch", "deadlock"])
    simple("named_barrier", "barrier_mismatch", "two warps meet at a named barrier", "they disagree on its thread count", "named_barrier.cu", "meet", x, x[::-1], 64, ["barrier_mismatch"], also=["deadlock"])
    simple("mbarrier_phase", "mbarrier_misuse", "64 arrivals end a phase", "64 arrivals on a barrier of 63", "mbarrier.cu", "phase", x, x[::-1], 64, ["mbarrier_misuse"], also=["shared_race"], note="the 64th arrival falls into the next phase, so one thread's number is not waited for")
    y = [x[(i + 1) % 16] for i in range(16)] + x[16:32]
    simple("half_warp_rotate", "inactive_lane", "16 lanes rotate their numbers", "lane 15 reads from lane 16, which is not in the mask", "shuffle.cu", "rotate", x[:32], y, 32, ["inactive_lane"])


def counters():
    x = pseudo(256, 1000, 5)
    odd = sum(v & 1 for v in x)
    for name, title, defines in (("count_odd", "atomic additions of four blocks", []), ("global_race", "plain additions of four blocks", ["BUG"])):
        case = Case(name, title, "counter.cu", defines).buffer("x", "s32", [256], x).buffer("counter", "s32", [1], init="zero").launch("count_odd", 4, 64, "x", "counter")
        if defines:
            case.bug("global_race")
        else:
            case.output("counter", ("s32", [odd])).write()


def async_copies():
    x = pseudo(256, 100000, 7)
    y = [x[4 * (i ^ 1) + k] for i in range(64) for k in range(4)]
    simple("async_copy", "async_early_access", "cp.async through shared memory", "shared memory is read before the copies are waited for", "async_copy.cu", "through_shared", x, y, 64, ["async_early_access"], also=["uninitialized"], bug="EARLY")
    Case("async_in_flight_at_exit", "the block ends with copies pending", "async_copy.cu", ["LEAVE"]).buffer("x", "s32", [256], x).buffer("y", "s32", [256]).launch("through_shared", 1, 64, "x", "y").bug("async_in_flight_at_exit")
    x = [v - 50 for v in pseudo(128, 100, 9)]
    simple("bulk_store", "missing_proxy_fence", "squares leave shared memory by one bulk copy", "the same without fence.proxy.async", "bulk_store.cu", "square_out", x, [v * v for v in x], 128, ["missing_proxy_fence"], target="sm_120a")


def read_only():
    x = [float(v) for v in pseudo(64, 64, 11)]
    y = [x[i] * 0.5 + x[(i + 1) % 64] * 0.5 for i in range(64)]
    simple("relaxation", "nc_load_of_written", "a step that reads back what it wrote", "the same through the read-only path", "read_only.cu", "step", x, y, 64, ["nc_load_of_written"], dtype="f32")


def warp_wide():
    b = [v % 7 - 3 for v in pseudo(128, 100, 13)]
    matrix = [b[8 * k:8 * k + 8] for k in range(16)]
    bf16 = lambda v: struct.unpack("<I", struct.pack("<f", float(v)))[0] >> 16
    words = []
    for register in range(2):
        for lane in range(32):
            k = lane % 4 * 2 + 8 * register
            words.append(bf16(matrix[k][lane // 4]) | bf16(matrix[k + 1][lane // 4]) << 16)
    y = [float(v) for row in matrix for v in row]
    for name, title, defines in (("identity_mma", "identity times b", []), ("partial_warp", "mma.sync by half a warp", ["BUG"])):
        case = Case(name, title, "partial_mma.cu", defines).buffer("b", "u32", [64], words).buffer("y", "f32", [16, 8]).launch("identity", 1, 32, "b", "y")
        if defines:
            case.bug("partial_warp")
        else:
            case.output("y", ("f32", y)).write()


def waiting():
    for name, title, defines in (("handshake", "a block waits for another one", []), ("deadlock_between_blocks", "the flag is never set", ["BUG"])):
        case = Case(name, title, "handshake.cu", defines).buffer("flag", "s32", [1], init="zero").buffer("data", "s32", [1]).buffer("y", "s32", [1]).launch("handshake", 2, 32, "flag", "data", "y", needs_all_resident=True)
        if defines:
            case.bug("deadlock")
        else:
            case.output("y", ("s32", [42])).write()
    case = Case("deadlock", "one of two warps never comes to the barrier", "lost_warp.cu", ["BUG"]).buffer("y", "s32", [64]).launch("lost", 1, 64, "y")
    case.bug("deadlock", also=["barrier_mismatch"])


def refused():
    Case("unsupported", "a call of printf", "print.cu").buffer("y", "s32", [1], init="zero").launch("hello", 1, 1, "y").bug("unsupported")
    Case("bad_launch", "2048 threads in a block", "fill.cu").buffer("y", "s32", [2048]).launch("fill", 1, 2048, "y").bug("bad_launch")


def features():
    x = [v - 500 for v in pseudo(32, 1000, 15)]
    scalars = [("s8", -3), ("u8", 200), ("s16", -30000), ("u16", 60000), ("s32", -2000000000), ("u32", 4000000000), ("s64", -(2**40)), ("u64", 2**40), ("f16", 0.5), ("bf16", 1.5), ("f32", 0.25), ("f64", 1e-3)]
    total = math.fsum(v for _, v in scalars)
    # The kernel adds in this order, in f64.
    total = 0.0
    for _, v in scalars:
        total += v
    job = struct.pack("<i4xQQQ", 3, 0, 0, 0)
    struct_arg = {"bytes": job.hex(), "pointers": [{"at": 8, "buffer": "x"}, {"at": 16, "buffer": "y"}]}
    Case("parameters", "every scalar type, a null pointer, a struct by value with pointers", "parameters.cu").buffer("x", "s16", [32], x).buffer("y", "f64", [32]).launch(
        "parameters", 1, 32, *scalars, ("u64", 0), struct_arg).output("y", ("f64", [total + 3.0 * v for v in x]), {"kind": "close", "abs": 0, "rel": 1e-14}).write()

    def small(v, exponent_bits, mantissa_bits, top):
        """Nearest even by search over all values of the format."""
        bias = (1 << exponent_bits - 1) - 1
        best = None
        for code in range(1 << exponent_bits + mantissa_bits):
            e, m = code >> mantissa_bits, code & (1 << mantissa_bits) - 1
            value = m * 2.0 ** (1 - bias - mantissa_bits) if e == 0 else (1 + m / (1 << mantissa_bits)) * 2.0 ** (e - bias)
            if value > top:
                continue
            key = (abs(value - min(abs(v), top)), code & 1)
            if best is None or key < best[0]:
                best = (key, code)
        return best[1] | (128 if v < 0 or math.copysign(1, v) < 0 else 0)

    n = 96
    values = [f32((v - 500) * 2.0 ** (i % 20 - 12)) for i, v in enumerate(pseudo(n, 1000, 17))]
    e4m3 = bytes(small(v, 4, 3, 448.0) for v in values[::-1])
    e5m2 = bytes(small(v, 5, 2, 57344.0) for v in values[::-1])
    case = Case("formats", "f32 to e4m3 and e5m2, dynamic shared memory", "formats.cu").buffer("x", "f32", [n], values).buffer("y", "u8", [2, n]).launch("formats", 1, 64, "x", "y", ("s32", n), dynamic_shared=4 * n)
    case.output("y", e4m3 + e5m2).write()
    case = Case("formats_within", "the same against the f32 values, with the number format of each row", "formats.cu").buffer("x", "f32", [n], values).buffer("y", "u8", [2, n]).launch("formats", 1, 64, "x", "y", ("s32", n), dynamic_shared=4 * n)
    # Half a unit in the last place; values above the format's range may become anything.
    bound = []
    for mantissa, least, top in ((3, 2.0**-10, 448.0), (2, 2.0**-17, 57344.0)):
        bound += [math.inf if abs(v) > top else max(abs(v) * 2.0 ** -(mantissa + 1), least) for v in values[::-1]]
    # Expected bytes: the value truncated instead of rounded still lies within a unit, so double the bound.
    case.file("y.bound.bin", raw("f32", [2 * b for b in bound]))
    truncate = lambda code: code - 1 if code & 127 and code & 127 < 120 else code
    case.output("y", bytes(truncate(c) for c in e4m3) + bytes(truncate(c) for c in e5m2), {"kind": "within", "tolerance_file": "y.bound.bin", "element_formats": ["e4m3", "e5m2"]})
    case.json["outputs"][0]["compare"]["tolerance_file"] = "y.bound.bin"
    case.file("y.bound.bin", raw("f32", [4 * b for b in bound])).write()

    x = pseudo(256, 1000, 19)
    even = [v + 1 for v in x if v % 2 == 0]
    padding = 256 - len(even)
    case = Case("compact", "even numbers in any order, then a second launch adds one", "compact.cu").buffer("x", "s32", [256], x).buffer("y", "s32", [256], init="fill", value=255).buffer("count", "s32", [1], init="zero")
    case.launch("keep_even", 4, 64, "x", "y", "count").launch("increment", 2, 128, "y", "count").output("y", ("s32", even + [-1] * padding), {"kind": "multiset"}).output("count", ("s32", [len(even)])).write()

    rows, columns = 3, 70
    logits = [f32((v - 500) / 50) for v in pseudo(rows * columns, 1000, 21)]
    want = []
    for r in range(rows):
        row = logits[r * columns:(r + 1) * columns]
        e = [math.exp(v - max(row)) for v in row]
        want += [v / math.fsum(e) for v in e]
    Case("softmax", "row softmax with shuffles and exp2", "softmax.cu").buffer("x", "f32", [rows, columns], logits).buffer("y", "f32", [rows, columns]).launch("softmax", rows, 32, "x", "y", ("s32", columns)).output("y", ("f32", want), {"kind": "close", "abs": 1e-9, "rel": 1e-5}).write()

    x = [1000]
    case = Case("tolerated_store", "all threads store one value to one word, tolerated by line", "benign.cu").buffer("x", "s32", [1], x).buffer("y", "s32", [64]).launch("broadcast", 1, 64, "x", "y")
    lines = [i + 1 for i, line in enumerate(open(os.path.join(case.folder, "kernel.ptx"))) if "st.shared" in line]
    case.json["tolerated"] = [{"class": "shared_race", "lines": lines, "why": "every thread stores the same value"}]
    case.output("y", ("s32", [1000 + i for i in range(64)]), {"kind": "exact"}).write()
    case = Case("masked_output", "only the low 16 bits of every word are compared", "benign.cu").buffer("x", "s32", [1], x).buffer("y", "s32", [64]).launch("broadcast", 1, 64, "x", "y")
    case.json["tolerated"] = [{"class": "shared_race", "lines": lines, "why": "every thread stores the same value"}]
    case.file("y.mask.bin", raw("u32", [0xFFFF] * 64)).output("y", ("u32", [0x77770000 + 1000 + i for i in range(64)]), {"kind": "exact", "mask_file": "y.mask.bin"}).write()

    x = pseudo(4, 1000, 23)
    for name, title, defines in (("tolerated_rounds", "a tolerated store in a loop", []), ("race_behind_tolerated", "the same without the second barrier", ["BUG"])):
        case = Case(name, title, "hidden_race.cu", defines).buffer("x", "s32", [4], x).buffer("y", "s32", [64]).launch("rounds", 1, 64, "x", "y")
        lines = [i + 1 for i, line in enumerate(open(os.path.join(case.folder, "kernel.ptx"))) if "st.shared" in line]
        case.json["tolerated"] = [{"class": "shared_race", "lines": lines, "why": "every thread stores the same value"}]
        if defines:
            case.bug("shared_race", note="the next round's store meets the read of this one; the stores among themselves are tolerated")
        else:
            case.output("y", ("s32", [sum(x) + i for i in range(64)])).write()


def main():
    bounds()
    remote_exit()
    cluster_sum()
    cluster_wait()
    alignment()
    shared_memory()
    counters()
    async_copies()
    read_only()
    warp_wide()
    waiting()
    refused()
    features()


NVCC = sys.argv[sys.argv.index("--nvcc") + 1] if "--nvcc" in sys.argv else "nvcc"
main()
