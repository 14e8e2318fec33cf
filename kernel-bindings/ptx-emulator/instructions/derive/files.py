"""Writes one instruction file: a head comment with the table of operands and results, and a kernel that runs it.

Thread i reads row i. Every operand and every result has a slot of 8 bytes in its row.
"""

import os

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
WRITTEN = []

# register class, load/store type and register type by column type
REGISTERS = {
    "b8": ("b16", "u8"),
    "b16": ("b16", "b16"),
    "b32": ("b32", "b32"),
    "b64": ("b64", "b64"),
    "f16": ("b16", "b16"),
    "bf16": ("b16", "b16"),
    "f32": ("f32", "f32"),
    "f64": ("f64", "f64"),
    "pred": ("pred", None),
}
for bits in (8, 16, 32, 64):
    for sign in "us":
        REGISTERS[f"{sign}{bits}"] = (f"b{max(bits, 16)}", f"{sign}{bits}")


def kernel(name, title, inputs, outputs, rows, body, derivation="exact rationals, rounded once", target="sm_80",
           version="7.0", declarations="", tolerance=None, preamble="", directives=""):
    """inputs/outputs: [(register, type)]; rows: [(input bits..., ), (output bits...,)] in order of threads."""
    lines = [f"// {title}", f"// derived: {derivation}", "// confirmed on a card: not yet"]
    if tolerance:
        lines.append(f"// tolerance: {tolerance}")
    columns = " ".join(f"{n}:{t}" for n, t in inputs), " ".join(f"{n}:{t}" for n, t in outputs)
    lines.append(f"// table: {columns[0]} -> {columns[1]}")

    def word(value, ty):
        digits = {"b64": 16, "u64": 16, "s64": 16, "f64": 16, "b8": 2, "u8": 2, "s8": 2, "b16": 4, "u16": 4, "s16": 4,
                  "f16": 4, "bf16": 4, "pred": 1}.get(ty, 8)
        return f"{value & (1 << 4 * digits) - 1:0{digits}x}"

    for ins, outs in rows:
        assert len(ins) == len(inputs) and len(outs) == len(outputs), (name, ins, outs)
        left = " ".join(word(v, t) for v, (_, t) in zip(ins, inputs))
        right = " ".join("-" if v is None else word(v, t) for v, (_, t) in zip(outs, outputs))
        lines.append(f"// {left} -> {right}")
    out = ["\n".join(lines), f".version {version}", f".target {target}", ".address_size 64", preamble.strip("\n")]
    out = [x for x in out if x]
    out.append("\n".join(x for x in (".visible .entry t(.param .u64 in, .param .u64 out)", directives, "{") if x))
    out.append("\t.reg .b32 %row;\n\t.reg .b64 %in, %out;")
    for n, t in list(inputs) + list(outputs):
        out.append(f"\t.reg .{REGISTERS[t][0]} %{n};")
    if any(t == "pred" for _, t in outputs):
        out.append("\t.reg .b32 %word;")
    if declarations:
        out.append("\n".join("\t" + x.strip() for x in declarations.strip().split("\n")))
    out.append("\tld.param.u64 %in, [in];\n\tld.param.u64 %out, [out];\n\tmov.u32 %row, %tid.x;")
    if inputs:
        out.append(f"\tmad.wide.u32 %in, %row, {8 * len(inputs)}, %in;")
    out.append(f"\tmad.wide.u32 %out, %row, {8 * len(outputs)}, %out;")
    for i, (n, t) in enumerate(inputs):
        if t == "pred":
            raise ValueError("predicate inputs are made in the body")
        out.append(f"\tld.global.{REGISTERS[t][1]} %{n}, [%in+{8 * i}];")
    out.append("\n".join("\t" + x.strip() if not x.strip().endswith(":") else x.strip() for x in body.strip().split("\n")))
    for i, (n, t) in enumerate(outputs):
        if t == "pred":
            out.append(f"\tselp.b32 %word, 1, 0, %{n};\n\tst.global.b32 [%out+{8 * i}], %word;")
        else:
            out.append(f"\tst.global.{REGISTERS[t][1]} [%out+{8 * i}], %{n};")
    out.append("\tret;\n}\n")
    path = os.path.join(ROOT, name + ".ptx")
    assert name not in WRITTEN, name
    WRITTEN.append(name)
    with open(path, "w") as file:
        file.write("\n".join(out))
