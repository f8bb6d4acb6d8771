"""What HuggingFace's own implementation says of a checkpoint. Needs torch: imported by parity tests and a script."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

torch.set_num_threads(1)  # The models are tiny. On a busy machine, threads would only wait for one another.


def logprobs(directory: Path, rows: Sequence[np.ndarray], dtype: str, **read: Any) -> np.ndarray:
    """Log-probabilities of the next token after each row, float32 [N, vocabulary], computed in ``dtype``.

    Each row runs alone and unpadded; the softmax runs in float32. read: what else HuggingFace is told for loading.
    """
    asked = read | {"dtype": getattr(torch, dtype), "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(directory, **asked)
    model.train(False)
    with torch.inference_mode():
        logits = [model(torch.tensor(row[None].astype(np.int64))).logits[0, -1].float() for row in rows]
        return np.asarray(torch.log_softmax(torch.stack(logits), dim=-1))


def class_logits(directory: Path, rows: Sequence[np.ndarray], dtype: str = "float32") -> np.ndarray:
    """The outputs of a head for classes at the end of each row, float32 [N, classes]. Each row runs alone."""
    asked = {"dtype": getattr(torch, dtype), "attn_implementation": "eager"}
    model = AutoModelForSequenceClassification.from_pretrained(directory, **asked)
    model.train(False)
    with torch.inference_mode():
        return np.asarray(torch.cat([model(torch.tensor(row[None].astype(np.int64))).logits.float() for row in rows]))


def targets(directory: Path, sequences: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of targets in float32, and by how much each logit leads those of all other tokens.

    sequences: what is before the targets, and the targets. Each sequence runs alone and unpadded.
    """
    model = _in_float32(directory)
    logprobs, leads = [], []
    with torch.inference_mode():
        for before, of_sequence in sequences:
            ids = torch.tensor(np.concatenate([before, of_sequence])[None].astype(np.int64))
            logits = model(ids).logits[0, len(before) - 1 : -1].float()
            wanted = ids[0, len(before) :, None]
            leads.append(logits.gather(1, wanted) - logits.scatter(1, wanted, -torch.inf).max(dim=1, keepdim=True)[0])
            logprobs.append(torch.log_softmax(logits, dim=-1).gather(1, wanted))
    return tuple(np.asarray(torch.cat(parts)[:, 0]) for parts in (logprobs, leads))  # type: ignore[return-value]


def greedy(directory: Path, before: np.ndarray, tokens: int) -> np.ndarray:
    """The most probable tokens behind a sequence, int32 [tokens], each behind those before it."""
    model, whole = _in_float32(directory), before.astype(np.int64)
    with torch.inference_mode():
        for _ in range(tokens):
            best = model(torch.tensor(whole[None])).logits[0, -1].argmax()
            whole = np.append(whole, int(best))
    return whole[len(before) :].astype(np.int32)


@lru_cache(maxsize=2)
def _in_float32(directory: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model.train(False)
    return model


def resave(directory: Path, to: Path, shard_size: str) -> None:
    """Have HuggingFace load a checkpoint and write it in its own words, in shards of at most ``shard_size``."""
    AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).save_pretrained(to, max_shard_size=shard_size)
