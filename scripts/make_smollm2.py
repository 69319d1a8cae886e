"""Makes a Hugging Face folder of a GGUF file: the weights in bfloat16, the tokenizer and its chat template.

    make_smollm2.py FILE DIR

Needs torch, transformers and gguf; ``fetch_smollm2.sh`` fetches the file and calls this.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# transformers 5 takes a model from a GGUF file for quantized, though its weights are plain, and refuses to save it.
_QUANTIZED = ("quantization_config", "quantization_method", "is_quantized")


def convert(file: Path, target: Path) -> None:
    """Writes the folder.

    Args:
        file: The GGUF file.
        target: The folder; it may exist.
    """
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model.hf_quantizer = None
    for owner in (model, model.config):
        for name in _QUANTIZED:
            if name in vars(owner):
                delattr(owner, name)
    model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
