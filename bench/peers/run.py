#!/usr/bin/env python3
"""Output tokens per second of llama.cpp, transformers and, if given, sm120 on one checkpoint, on the CPU.

First the engines must agree (agree.py). Then every setting of an engine runs once per case and the quickest
is kept. Then rounds: each runs every engine once per case, in an order that moves on by one from round to
round; the median of the rounds counts. A measurement is a process of its own: no engine inherits another's
threads or memory.

  run.py --checkpoint DIR --llama-cpp SOURCES --sm120 target/release/sm120 --out FOLDER

FOLDER receives README.md (the table) and runs.json (machine, versions, settings, every run).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import ENVIRONMENT, THREADS, Case, machine_facts

HERE = Path(__file__).resolve().parent
OURS = "sm120"


@dataclass(frozen=True)
class Peer:
    """An engine script and the settings among which its best is looked for."""

    name: str
    command: list[str]
    settings: list[dict[str, Any]]


def llama_cpp_peer(gguf: Path) -> Peer:
    """Flash attention halves what attention reads, by rounding keys and values to fp16."""
    settings = [
        {"flash_attention": flash_attention, "n_batch": n_batch, "n_ubatch": n_ubatch}
        for flash_attention in (False, True)
        for n_batch, n_ubatch in ((2048, 512), (2048, 2048), (512, 512))
    ]
    return Peer(
        "llama.cpp", [sys.executable, str(HERE / "llama_cpp_engine.py"), "--gguf", str(gguf)], settings
    )


def transformers_peer() -> Peer:
    """`batched_mm` copies the weights of every chosen expert, which pays for a few tokens only."""
    compiled = ["DeepseekV4HyperConnection"]
    settings = [
        {
            "compiled": compiled,
            "prefill_experts": "grouped_mm",
            "decode_experts": decode,
            "prefill_rows": rows,
        }
        for decode in ("grouped_mm", "batched_mm", "eager")
        for rows in (4, 32)
    ]
    settings.append({**settings[0], "prefill_experts": "eager"})
    settings.append({**settings[0], "compiled": []})
    return Peer("transformers", [sys.executable, str(HERE / "transformers_engine.py")], settings)


def ours(binary: Path) -> Peer:
    """Our binary; it has nothing to choose on the host."""
    return Peer(OURS, [str(binary.resolve(strict=True))], [{}])


class Bench:
    """Runs measurements and keeps every record."""

    def __init__(self, checkpoint: Path):
        self.checkpoint = checkpoint
        self.records: list[dict[str, Any]] = []
        self.versions: dict[str, str] = {}

    def measure(self, peer: Peer, case: Case, settings: dict[str, Any], stage: str) -> float:
        """Output tokens per second of one measurement; 0 if the engine fails, which its record tells."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "record.json"
            if peer.name == OURS:
                command = [
                    *peer.command,
                    "e2e",
                    "--model",
                    str(self.checkpoint),
                    "--device",
                    "host",
                    "--ignore-eos",
                    "--warm-up",
                ]
            else:
                command = [
                    *peer.command,
                    "--checkpoint",
                    str(self.checkpoint),
                    "--settings",
                    json.dumps(settings),
                ]
            command += ["--concurrency", str(case.concurrency), "--prompt-tokens", str(case.prompt_tokens)]
            command += ["--new-tokens", str(case.new_tokens), "--json", str(out)]
            done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
            run = {"stage": stage, "engine": peer.name, **asdict(case), "settings": settings}
            if done.returncode:
                run["error"] = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
                run["output_tokens_per_s"] = 0.0
            else:
                record = json.loads(out.read_text())
                entry = next(entry for entry in record["runs"] if entry["concurrency"] == case.concurrency)
                run["output_tokens_per_s"] = entry["output_tokens_per_s"]
                self.versions[peer.name] = record.get("version", "")
        self.records.append(run)
        print(
            f"{stage}: {peer.name}, {describe(case)}: {run['output_tokens_per_s']:.1f} tok/s {settings}",
            flush=True,
        )
        return run["output_tokens_per_s"]

    def best_settings(self, peer: Peer, case: Case) -> dict[str, Any]:
        """The quickest of the peer's settings in one try each."""
        if len(peer.settings) == 1:
            return peer.settings[0]
        return max(peer.settings, key=lambda settings: self.measure(peer, case, settings, "choice"))

    def median(self, peer: Peer, case: Case) -> float:
        """Median over the rounds."""
        wanted = (peer.name, case.concurrency, case.prompt_tokens)
        return statistics.median(
            run["output_tokens_per_s"]
            for run in self.records
            if run["stage"] != "choice"
            and (run["engine"], run["concurrency"], run["prompt_tokens"]) == wanted
        )


def describe(case: Case) -> str:
    return f"C={case.concurrency}, {case.prompt_tokens} prompt tokens"


def table(bench: Bench, peers: list[Peer], cases: list[Case]) -> str:
    """Markdown: a row a case; tokens per second of every engine, the first engine's ratio to the others."""
    first, others = peers[0], peers[1:]
    heads = ["case", *(peer.name for peer in peers), *(f"{first.name} / {peer.name}" for peer in others)]
    rows = [heads, ["---"] + ["--:"] * (len(heads) - 1)]
    for case in cases:
        figures = [bench.median(peer, case) for peer in peers]
        ratios = [f"{figures[0] / figure:.2f}" if figure else "failed" for figure in figures[1:]]
        rows.append([describe(case), *(f"{figure:.1f}" for figure in figures), *ratios])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def report(bench: Bench, rows: str, chosen: dict[tuple[str, Case], dict], machine: dict, rounds: int) -> str:
    """The folder's README."""
    new_tokens = next(case.new_tokens for _, case in chosen)
    settings = "\n".join(
        f"* {name}, {describe(case)}: `{json.dumps(value)}`"
        for (name, case), value in chosen.items()
        if value
    )
    facts = "\n".join(f"* {name}: {value}" for name, value in machine.items())
    versions = "\n".join(f"* {name}: {version}" for name, version in bench.versions.items() if version)
    return f"""# Output tokens per second beside other engines

`python {" ".join(sys.argv)}`

Median of {rounds} rounds; {new_tokens} new tokens a request, greedy; fp32 weights and cache,
{THREADS} threads. Tokens per second: new tokens over the time from first submission to last token.
Every run: `runs.json`.

{rows}

{versions}

The quickest settings:

{settings}

## Machine

{facts}
"""


def settings_of(record: Path, peers: list[Peer], cases: list[Case]) -> dict[tuple[str, Case], dict[str, Any]]:
    """The settings an earlier run chose, out of its runs.json."""
    earlier = {
        (row["engine"], Case(**row["case"])): row["settings"]
        for row in json.loads(record.read_text())["chosen"]
    }
    return {(peer.name, case): earlier[peer.name, case] for peer in peers for case in cases}


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder in DeepSeek's names, fp32")
    parser.add_argument(
        "--llama-cpp", type=Path, required=True, help="llama.cpp source tree, for its converter"
    )
    parser.add_argument("--sm120", type=Path, help="our binary")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--settings-of", type=Path, metavar="RUNS.JSON", help="choose as that earlier run did"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=integers, default=[1, 32])
    parser.add_argument("--prompt-tokens", type=integers, default=[128, 512])
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()

    machine = machine_facts()
    args.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(args.checkpoint)
    cases = [Case(c, p, args.new_tokens) for p in args.prompt_tokens for c in args.concurrency]
    with tempfile.TemporaryDirectory() as folder:
        gguf = Path(folder) / "model.gguf"
        common = ["--checkpoint", str(args.checkpoint)]
        for script, options in (
            ("to_gguf.py", ["--llama-cpp", str(args.llama_cpp), "--out", str(gguf)]),
            ("agree.py", ["--gguf", str(gguf)]),
        ):
            command = [sys.executable, str(HERE / script), *common, *options]
            subprocess.run(command, env={**os.environ, **ENVIRONMENT}, check=True)
        peers = [*([ours(args.sm120)] if args.sm120 else []), llama_cpp_peer(gguf), transformers_peer()]
        if args.settings_of:
            chosen = settings_of(args.settings_of, peers, cases)
        else:
            chosen = {(peer.name, case): bench.best_settings(peer, case) for peer in peers for case in cases}
        for turn in range(args.rounds):
            first = turn % len(peers)
            for case in cases:
                for peer in peers[first:] + peers[:first]:
                    bench.measure(peer, case, chosen[peer.name, case], f"round {turn + 1}")

    rows = table(bench, peers, cases)
    print(rows)
    (args.out / "README.md").write_text(report(bench, rows, chosen, machine, args.rounds))
    record = {
        "machine": machine,
        "versions": bench.versions,
        "chosen": [
            {"engine": name, "case": asdict(case), "settings": settings}
            for (name, case), settings in chosen.items()
        ],
        "runs": bench.records,
    }
    (args.out / "runs.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
