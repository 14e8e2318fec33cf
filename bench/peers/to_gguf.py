#!/usr/bin/env python3
"""Writes a checkpoint in DeepSeek's names and fp32 as an fp32 GGUF file that llama.cpp loads.

llama.cpp's own converter does the work: configuration, tensor names, hash tables. Two things are replaced. It
knows routed experts as packed fp4 only, so here they are stacked as they are; and a random checkpoint has no
tokenizer, so the vocabulary is of type "none".

  to_gguf.py --checkpoint DIR --llama-cpp llama_cpp_python-0.3.36/vendor/llama.cpp --out model.gguf
"""

import argparse
import sys
from pathlib import Path


def write_gguf(checkpoint: Path, llama_cpp: Path, out: Path) -> None:
    """Converts `checkpoint` with the converter in the source tree `llama_cpp`."""
    # The tree's own gguf package goes first: the converter needs the version it was written with.
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
    import gguf
    import torch
    from conversion import LazyTorchTensor, TextModel
    from conversion.deepseek import DeepseekV4Model

    class Float32Checkpoint(DeepseekV4Model):
        model_arch = gguf.MODEL_ARCH.DEEPSEEK4

        def set_vocab(self):
            self._set_vocab_none()
            self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])

        def generate_extra_tensors(self):
            consumed = self._write_hash_routing_tensors()
            stacks = {
                "w1": gguf.MODEL_TENSOR.FFN_GATE_EXP,
                "w2": gguf.MODEL_TENSOR.FFN_DOWN_EXP,
                "w3": gguf.MODEL_TENSOR.FFN_UP_EXP,
            }
            for layer in range(self.block_count):
                for weight, tensor in stacks.items():
                    names = [
                        f"layers.{layer}.ffn.experts.{expert}.{weight}.weight"
                        for expert in range(self.hparams["n_routed_experts"])
                    ]
                    experts = [LazyTorchTensor.to_eager(self.model_tensors[name]()) for name in names]
                    self.gguf_writer.add_tensor(
                        self.format_tensor_name(tensor, layer), torch.stack(experts).numpy()
                    )
                    consumed += names
            for name in consumed:
                del self.model_tensors[name]
            return ()

        def prepare_tensors(self):
            # Past DeepseekV4Model's own, which would label the file as fp4.
            TextModel.prepare_tensors(self)

    with torch.inference_mode():
        Float32Checkpoint(checkpoint, gguf.LlamaFileType.ALL_F32, out).write()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp source tree")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_gguf(args.checkpoint, args.llama_cpp, args.out)


if __name__ == "__main__":
    main()
