"""Decisions as transformers answers them, with its own pipeline in float32. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import AutoTokenizer, JevForDecision, pipeline

from tests.model.decisions.requests import REQUESTS
from tests.model.decisions.stored import digest


def reference(directory: Path, asked: Iterable[str] = REQUESTS) -> dict[str, Any]:
    """Return of each request the answers, and a digest of the ids of each prompt up to where it is read."""
    decide = pipeline("decision", model=str(directory), dtype=torch.float32, device="cpu")
    return _answers(decide, asked)


def reference_of_head(directory: Path, asked: Iterable[str] = REQUESTS) -> dict[str, Any]:
    """Return the same of a checkpoint with a decision head.

    The pipeline alone looks for heads on the bodies of some families only.
    """
    jev: Any = JevForDecision
    model = jev.from_pretrained(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    return _answers(pipeline("decision", model=model, tokenizer=tokenizer, device="cpu"), asked)


def _answers(decide: Any, asked: Iterable[str]) -> dict[str, Any]:
    return {
        name: {"answers": decide(REQUESTS[name]), "prompts": list(_prompts(decide, REQUESTS[name]))} for name in asked
    }


def _prompts(decide: Any, request: dict[str, Any]) -> Iterator[str]:
    for inputs, _ in decide.decision_config.prepare_inputs(request, decide.tokenizer):
        for mark in inputs["marks"].tolist():
            yield digest(inputs["input_ids"][0, :mark].tolist())
