#!/usr/bin/env python3
"""transformers' DeepseekV4ForCausalLM on the CPU with a loop of its own.

transformers batches statically. The clients' requests have equal lengths, so a wave of `concurrency` requests
starts and ends together and no padding is needed: the prompts in groups of `prefill_rows`, their caches
joined, then one step a token.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers import DeepseekV4ForCausalLM, DynamicCache
from transformers.models.deepseek_v4 import modeling_deepseek_v4
from transformers.utils import logging

from common import THREADS, Case, engine_main

DEFAULTS = {
    "compiled": ["DeepseekV4HyperConnection"],
    "prefill_experts": "grouped_mm",
    "decode_experts": "grouped_mm",
    "prefill_rows": 4,
}
# Per-layer state that grows with the sequence: dictionaries of tensors [batch, ...] or None.
STATE_TABLES = ("buffer_kv", "buffer_gate", "compressed_kv", "overlap_kv", "overlap_gate")


def compile_classes(names: list[str]) -> None:
    """Compiles the forward of these module classes, once for all their instances and all shapes."""
    for name in names:
        module = getattr(modeling_deepseek_v4, name)
        if not hasattr(module.forward, "_torchdynamo_orig_callable"):
            module.forward = torch.compile(module.forward, dynamic=True)


def join_caches(caches: list[DynamicCache]) -> DynamicCache:
    """One cache with the rows of all; the sequences must be equally long."""
    joined = caches[0]
    for layer, parts in zip(
        joined.layers, zip(*(cache.layers for cache in caches), strict=True), strict=True
    ):
        # Keys and values are one tensor in this model.
        layer.keys = layer.values = torch.cat([part.keys for part in parts])
        for table in STATE_TABLES:
            for name, first in getattr(layer, table, {}).items():
                if first is not None:
                    getattr(layer, table)[name] = torch.cat([getattr(part, table)[name] for part in parts])
    return joined


class Transformers:
    """A loaded model."""

    def __init__(self, checkpoint: Path, settings: dict, case: Case):
        torch.set_num_threads(THREADS)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        compile_classes(settings["compiled"])
        self.settings = settings
        self.case = case
        self.model = DeepseekV4ForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.inference_mode()
    def logits(self, prompt: list[int]) -> np.ndarray:
        """Logits [tokens, vocabulary] at every position of `prompt`."""
        return self.model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()

    def serve(self, prompts: list[list[int]]) -> list[list[int]]:
        """See `common.Engine`."""
        wave = self.case.concurrency
        return [
            row for start in range(0, len(prompts), wave) for row in self._wave(prompts[start : start + wave])
        ]

    @torch.inference_mode()
    def _wave(self, prompts: list[list[int]]) -> list[list[int]]:
        self.model.set_experts_implementation(self.settings["prefill_experts"])
        parts = [self._prefill(rows) for rows in torch.tensor(prompts).split(self.settings["prefill_rows"])]
        cache = join_caches([cache for _, cache in parts])
        tokens = [torch.cat([token for token, _ in parts])]
        self.model.set_experts_implementation(self.settings["decode_experts"])
        while len(tokens) < self.case.new_tokens:
            step = self.model(tokens[-1], cache=cache, use_cache=True, logits_to_keep=1)
            tokens.append(step.logits.argmax(-1))
        return torch.cat(tokens, dim=1).tolist()

    def _prefill(self, rows: torch.Tensor) -> tuple[torch.Tensor, DynamicCache]:
        """First new token [rows, 1] and cache of the prompts [rows, tokens]."""
        step = self.model(rows, use_cache=True, logits_to_keep=1)
        return step.logits.argmax(-1), step.cache


if __name__ == "__main__":
    engine_main(
        "transformers",
        lambda: f"transformers {version('transformers')}, torch {version('torch')}",
        DEFAULTS,
        lambda args, settings, case: Transformers(args.checkpoint, settings, case),
    )
