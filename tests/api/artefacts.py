"""A calibration for a prompt of the made-up model, and an API that serves such."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from judgement.artefacts import Artefact, Kind
from scoring.tokenizing.tokenization import TextTokenizer
from tests.api.serving import RunningApi, running_api
from tests.api.tiny_model import make_model_directory
from tests.provenances import SOME

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


@contextmanager
def serving_artefacts(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningApi, Path, str]]:
    """Run an API with a worker. Returns it, its folder of artefacts, and the fingerprint of its tokenizer."""
    own, folder = tmp_path_factory.mktemp("served"), tmp_path_factory.mktemp("artefacts")
    database = Path(shutil.copy(sqlite_template, own / "scoreline.db"))
    directory = make_model_directory(own / "model")
    with running_api(directory, f"sqlite:///{database}", own, calibrations=folder) as (api, worker):
        assert worker is not None
        worker.provenance = SOME
        yield api, folder, TextTokenizer.load(directory).fingerprint
