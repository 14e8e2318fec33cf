#!/usr/bin/env python3
"""llama.cpp (the copy in llama-cpp-python) with continuous batching, through its C interface.

A step is what llama-server does: one batch with the last token of every sequence that generates, filled up to
n_batch with prompt tokens of those that do not yet, then one llama_decode. fp32 weights, fp32 cache.
"""

import argparse
import ctypes
from collections import deque
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import numpy as np

from common import THREADS, Case, engine_main

DEFAULTS = {"flash_attention": True, "n_batch": 2048, "n_ubatch": 512}
GGML_TYPE_F32 = 0


@llama_cpp.llama_log_callback
def _discard(_level, _text, _data):
    """Loading a model and making a context print hundreds of lines."""


class _Batch:
    """A llama_batch over numpy arrays: token, position, sequence of every row, whether logits are wanted."""

    def __init__(self, rows: int):
        self.token = np.zeros(rows, np.int32)
        self.position = np.zeros(rows, np.int32)
        self.sequence = np.zeros(rows, np.int32)
        self.wanted = np.zeros(rows, np.int8)
        self.used = 0
        self._sequences = np.ones(rows, np.int32)
        self._sequence_of_row = self.sequence.ctypes.data + self.sequence.itemsize * np.arange(
            rows, dtype=np.uint64
        )

    def add(self, tokens: list[int], position: int, sequence: int, want_last: bool) -> None:
        """Appends consecutive tokens of one sequence."""
        rows = slice(self.used, self.used + len(tokens))
        self.token[rows] = tokens
        self.position[rows] = np.arange(position, position + len(tokens))
        self.sequence[rows] = sequence
        self.wanted[rows] = 0
        self.used = rows.stop
        self.wanted[self.used - 1] = want_last

    def room(self) -> int:
        return len(self.token) - self.used

    def struct(self) -> llama_cpp.llama_batch:
        """The C structure; valid while this object lives and until the next `add`."""

        def pointer(array: np.ndarray, kind: type) -> ctypes._Pointer:
            return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

        return llama_cpp.llama_batch(
            n_tokens=self.used,
            token=pointer(self.token, llama_cpp.llama_token),
            embd=None,
            pos=pointer(self.position, llama_cpp.llama_pos),
            n_seq_id=pointer(self._sequences, ctypes.c_int32),
            seq_id=pointer(self._sequence_of_row, ctypes.POINTER(llama_cpp.llama_seq_id)),
            logits=pointer(self.wanted, ctypes.c_int8),
        )


class _Sequence:
    """One request in its slot: its tokens so far and how many of them the cache holds."""

    def __init__(self, request: int, prompt: list[int]):
        self.request = request
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.cached = 0

    def generates(self) -> bool:
        return self.cached >= self.prompt_tokens


class LlamaCpp:
    """A model file with a context for `case.concurrency` sequences."""

    def __init__(self, gguf: Path, settings: dict, case: Case):
        llama_cpp.llama_log_set(_discard, None)
        llama_cpp.llama_backend_init()
        self.case = case
        self.model = llama_cpp.llama_model_load_from_file(
            str(gguf).encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {gguf}")
        params = llama_cpp.llama_context_default_params()
        # llama.cpp divides n_ctx by the sequences and pads each share to 256 itself.
        per_sequence = -(-(case.prompt_tokens + case.new_tokens) // 256) * 256
        params.n_ctx = per_sequence * case.concurrency
        params.n_seq_max = case.concurrency
        params.n_batch = settings["n_batch"]
        params.n_ubatch = settings["n_ubatch"]
        params.n_threads = params.n_threads_batch = THREADS
        params.flash_attn_type = int(settings["flash_attention"])
        params.type_k = params.type_v = GGML_TYPE_F32
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context with {settings} for {case}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = _Batch(settings["n_batch"])

    def __del__(self):
        if getattr(self, "context", None):
            llama_cpp.llama_free(self.context)
        if getattr(self, "model", None):
            llama_cpp.llama_model_free(self.model)

    def _decode(self) -> np.ndarray:
        """Runs the batch; logits [wanted rows, vocabulary] in their order, valid until the next call."""
        status = llama_cpp.llama_decode(self.context, self.batch.struct())
        if status != 0:
            raise RuntimeError(f"llama_decode of {self.batch.used} tokens: expected 0, got {status}")
        rows = int(np.count_nonzero(self.batch.wanted[: self.batch.used]))
        if rows == 0:
            return np.empty((0, self.vocab_size), np.float32)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (rows, self.vocab_size))

    def logits(self, prompt: list[int]) -> np.ndarray:
        """Logits [tokens, vocabulary] at every position of `prompt`, which must fit one batch."""
        llama_cpp.llama_memory_clear(self.memory, True)
        self.batch.used = 0
        for position, token in enumerate(prompt):
            self.batch.add([token], position, 0, True)
        return self._decode().copy()

    def serve(self, prompts: list[list[int]]) -> list[list[int]]:
        """See `common.Engine`."""
        llama_cpp.llama_memory_clear(self.memory, True)
        waiting = deque(enumerate(prompts))
        outputs: list[list[int]] = [[] for _ in prompts]
        slots: list[_Sequence | None] = [None] * self.case.concurrency
        while waiting or any(slots):
            for slot, sequence in enumerate(slots):
                if sequence is None and waiting:
                    slots[slot] = _Sequence(*waiting.popleft())
            for slot in self._step(slots):
                sequence = slots[slot]
                if len(sequence.tokens) - sequence.prompt_tokens == self.case.new_tokens:
                    outputs[sequence.request] = sequence.tokens[sequence.prompt_tokens :]
                    llama_cpp.llama_memory_seq_rm(self.memory, slot, -1, -1)
                    slots[slot] = None
        return outputs

    def _step(self, slots: list[_Sequence | None]) -> list[int]:
        """One batch; appends a token to every sequence whose last token was in it and returns their slots."""
        self.batch.used = 0
        produced = []
        busy = [(slot, sequence) for slot, sequence in enumerate(slots) if sequence is not None]
        for slot, sequence in sorted(busy, key=lambda entry: not entry[1].generates()):
            take = sequence.tokens[sequence.cached : sequence.cached + self.batch.room()]
            if not take:
                break
            last = sequence.cached + len(take) == len(sequence.tokens)
            self.batch.add(take, sequence.cached, slot, last)
            sequence.cached += len(take)
            if last:
                produced.append(slot)
        for slot, token in zip(produced, self._decode().argmax(axis=1).tolist(), strict=True):
            slots[slot].tokens.append(token)
        return produced


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gguf", type=Path, required=True, help="the checkpoint as to_gguf.py writes it")


if __name__ == "__main__":
    engine_main(
        "llama.cpp",
        lambda: f"llama-cpp-python {version('llama-cpp-python')}",
        DEFAULTS,
        lambda args, settings, case: LlamaCpp(args.gguf, settings, case),
        _arguments,
    )
