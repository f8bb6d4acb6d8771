"""A calibration for a prompt of the made-up model."""

from __future__ import annotations

from typing import Any

from judgement.artefacts import Artefact, Kind

LABELS = [" yes", " no"]
THREE = [" yes", " no", " maybe"]
PROMPT: dict[str, Any] = {"query": "Review: ", "item_template": "{item}\nSentiment:", "labels": LABELS}
TEMPERATURE = {"temperature": 0.5}


def artefact(tokenizer: str, weights: str = "made-up", **fields: Any) -> Artefact:
    """A calibration for the prompt of these tests. tokenizer, weights: their fingerprints."""
    of_model = {
        "model": "tiny",
        "revision": None,
        "weights_fingerprint": weights,
        "tokenizer_fingerprint": tokenizer,
    }
    made: dict[str, Any] = {
        "kind": Kind.CALIBRATION,
        "name": "as it was made",
        "created": "2026-01-31",
        "model": of_model,
        "prompt": PROMPT | {"apply_softmax": True},
        "labels": ("yes", "no"),
        "data": {"file": "in.csv", "digest": "12", "truth": "truth", "rows": 400, "clusters": 400},
        "counts": {"yes": 150, "no": 250},
        "method": "temperature",
        "parameters": TEMPERATURE,
        "figures": {},
    }
    return Artefact(**made | fields)
