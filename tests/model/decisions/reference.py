"""Decisions as transformers answers them, with its own pipeline in float32. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import pipeline

from tests.model.decisions.requests import REQUESTS
from tests.model.decisions.stored import digest


def reference(directory: Path) -> dict[str, Any]:
    """Return of each request the answers, and a digest of the ids of each prompt up to where it is read."""
    decide = pipeline("decision", model=str(directory), dtype=torch.float32, device="cpu")
    return {
        name: {"answers": decide(request), "prompts": list(_prompts(decide, request))}
        for name, request in REQUESTS.items()
    }


def _prompts(decide: Any, request: dict[str, Any]) -> Iterator[str]:
    for inputs, _ in decide.decision_config.prepare_inputs(request, decide.tokenizer):
        for mark in inputs["marks"].tolist():
            yield digest(inputs["input_ids"][0, :mark].tolist())
