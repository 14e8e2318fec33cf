"""What every engine's script shares: prompts, the cases, the command line, the JSON record, machine facts."""

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

THREADS = 2
FIRST_TOKEN = 2  # ids 0 and 1 are begin and end of sequence

# glibc gives every large activation back to the kernel when it is freed and faults it in again at the next
# step; with these thresholds it keeps the memory. Read at process start, as the thread counts are.
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "OPENBLAS_NUM_THREADS": str(THREADS),
    "RAYON_NUM_THREADS": str(THREADS),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class Case:
    """`concurrency` closed-loop clients: each sends a request, waits for its end and sends the next."""

    concurrency: int
    prompt_tokens: int
    new_tokens: int

    @property
    def requests(self) -> int:
        """Of all clients together; at least 8, since a single request is over too soon to be timed well."""
        return max(8, self.concurrency)


class Engine(Protocol):
    """An engine set up for one case."""

    def serve(self, prompts: list[list[int]]) -> list[list[int]]:
        """Greedy continuations of `prompts` in their order, `case.new_tokens` each, end tokens ignored."""


def random_prompts(count: int, tokens: int, vocab_size: int, seed: int) -> list[list[int]]:
    """`count` prompts of uniformly random token ids; the same seed gives every engine the same prompts."""
    rng = random.Random(seed)
    return [[rng.randrange(FIRST_TOKEN, vocab_size) for _ in range(tokens)] for _ in range(count)]


def read_config(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's `config.json`."""
    return json.loads((checkpoint / "config.json").read_text())


def measure(engine: Engine, case: Case, vocab_size: int, seed: int) -> dict[str, Any]:
    """Serves the case once untimed, on other prompts, then once with the clock running."""
    engine.serve(random_prompts(case.concurrency, case.prompt_tokens, vocab_size, seed + 1))
    prompts = random_prompts(case.requests, case.prompt_tokens, vocab_size, seed)
    start = time.perf_counter()
    outputs = engine.serve(prompts)
    seconds = time.perf_counter() - start
    lengths = {len(output) for output in outputs}
    if lengths != {case.new_tokens}:
        raise RuntimeError(f"output lengths: expected {case.new_tokens} everywhere, got {sorted(lengths)}")
    return {
        "concurrency": case.concurrency,
        "prompt_tokens": case.prompt_tokens,
        "new_tokens": case.new_tokens,
        "requests": case.requests,
        "seconds": seconds,
        "output_tokens_per_s": case.requests * case.new_tokens / seconds,
    }


def engine_main(
    name: str,
    version: Callable[[], str],
    defaults: dict[str, Any],
    open_engine: Callable[[argparse.Namespace, dict[str, Any], Case], Engine],
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    """Command line of one engine: measures the concurrencies at one prompt length, writes the JSON record."""
    parser = argparse.ArgumentParser(description=f"output tokens per second of {name}")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder in DeepSeek's names, fp32")
    parser.add_argument("--concurrency", default="1,32", help="closed-loop clients, comma separated")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--settings", default="{}", help=f"JSON object over {json.dumps(defaults)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the record; standard output without it")
    arguments(parser)
    args = parser.parse_args()
    given = json.loads(args.settings)
    if unknown := set(given) - set(defaults):
        parser.error(f"--settings: expected keys of {sorted(defaults)}, got {sorted(unknown)}")
    settings = {**defaults, **given}
    vocab_size = read_config(args.checkpoint)["vocab_size"]
    runs = []
    for concurrency in map(int, args.concurrency.split(",")):
        case = Case(concurrency, args.prompt_tokens, args.new_tokens)
        runs.append(measure(open_engine(args, settings, case), case, vocab_size, args.seed))
    record = json.dumps({"engine": name, "version": version(), "settings": settings, "runs": runs})
    if args.json:
        args.json.write_text(record + "\n")
    else:
        print(record)


def machine_facts() -> dict[str, Any]:
    """What a reader needs to place the figures: processor, cores, memory, kernel, load before the run."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() + Path("/proc/meminfo").read_text().splitlines()
    # Cores repeat the same lines; the first of them stays.
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))
    }
    return {
        "processor": facts["model name"],
        "vector_extensions": " ".join(
            sorted(flag for flag in facts["flags"].split() if flag.startswith(("avx", "amx", "fma")))
        ),
        "cores": os.cpu_count(),
        "memory": facts["MemTotal"],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }
