"""What HuggingFace's own implementation says of a checkpoint. Needs torch: imported by parity tests and a script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import AutoModelForCausalLM


def logprobs(directory: Path, rows: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """Log-probabilities of the next token after each row, float32 [N, vocabulary], computed in ``dtype``.

    Each row runs alone and unpadded; the softmax runs in float32.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype), attn_implementation="eager")
    model.train(False)
    with torch.inference_mode():
        logits = [model(torch.tensor(row[None].astype(np.int64))).logits[0, -1].float() for row in rows]
        return np.asarray(torch.log_softmax(torch.stack(logits), dim=-1))


def resave(directory: Path, to: Path, shard_size: str) -> None:
    """Have HuggingFace load a checkpoint and write it in its own words, in shards of at most ``shard_size``."""
    AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).save_pretrained(to, max_shard_size=shard_size)
