#!/usr/bin/env python3
"""Asserts that both engines compute the same model: logits at every position of a prompt, then greedy tokens.

Without flash attention llama.cpp is fp32 throughout. Sums in another order move these logits (size 1) by some
1e-5, an index pick that differs moves those of its position by 1e-2 and more; the bar stands between the two,
and the greedy tokens must be equal. With flash attention it rounds keys and values to fp16 (2^-11 of a value)
before it multiplies: positions where no pick changes move by some 1e-3, so half of all positions must stay
within 1e-2.
"""

import argparse
from pathlib import Path

import numpy as np

import llama_cpp_engine
import transformers_engine
from common import Case, random_prompts, read_config

EXACT_BAR = 1e-3
FLASH_MEDIAN_BAR = 1e-2
SMALL_BATCH = {"n_batch": 512, "n_ubatch": 128}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=303)
    parser.add_argument("--new-tokens", type=int, default=96)
    args = parser.parse_args()
    # More clients than transformers takes prompts at once, more requests than clients, prompts cut by batch.
    case = Case(concurrency=6, prompt_tokens=args.prompt_tokens, new_tokens=args.new_tokens)
    prompts = random_prompts(8, case.prompt_tokens, read_config(args.checkpoint)["vocab_size"], seed=0)
    torch_engine = transformers_engine.Transformers(args.checkpoint, transformers_engine.DEFAULTS, case)
    expected, expected_tokens = torch_engine.logits(prompts[0]), torch_engine.serve(prompts)
    engine = llama_cpp_engine.LlamaCpp(args.gguf, {**SMALL_BATCH, "flash_attention": False}, case)
    exact = np.abs(engine.logits(prompts[0]) - expected).max(axis=1)
    outputs = zip(engine.serve(prompts), expected_tokens, strict=True)
    equal = [int(np.equal(*pair).sum()) for pair in outputs]
    engine = llama_cpp_engine.LlamaCpp(args.gguf, {**SMALL_BATCH, "flash_attention": True}, case)
    flash = np.abs(engine.logits(prompts[0]) - expected).max(axis=1)
    print(f"logits of transformers: standard deviation {expected.std():.2f}, {len(expected)} positions")
    print(f"llama.cpp: at most {exact.max():.1e} away; greedy tokens equal: {equal} of {case.new_tokens}")
    print(f"llama.cpp with flash attention: median {np.median(flash):.1e}, at most {flash.max():.1e} away")
    if exact.max() > EXACT_BAR or set(equal) != {case.new_tokens} or np.median(flash) > FLASH_MEDIAN_BAR:
        raise SystemExit(
            f"the engines disagree: expected logits within {EXACT_BAR} and equal tokens, "
            f"with flash attention a median within {FLASH_MEDIAN_BAR}"
        )


if __name__ == "__main__":
    main()
