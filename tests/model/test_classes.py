"""Models with classes: their outputs are HuggingFace's, by every algorithm and in any company."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.architecture.stored.tensors import WeightsError
from scoring.planning.algorithms import AlgorithmSetting
from tests.model import engines, references
from tests.model.checkpoints import CLASSIFIERS, tensors, write
from tests.model.references import SEED
from tests.model.references.gates import FLOAT32_LOGPROBS

SEVEN = "qwen3 with seven classes"
FEW = (SEVEN, "qwen2 with one output", "qwen3 moe with three classes")
"""Classifiers that are always compared; `make slow` compares those of the other families."""


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((SEVEN, way) for way in ("auto", "prefill_extend", "packed")),
        *((name, "auto") for name in FEW[1:]),
        *(pytest.param(name, "auto", marks=pytest.mark.slow) for name in CLASSIFIERS if name not in FEW),
    ],
)
def test_outputs_are_huggingfaces(name: str, way: AlgorithmSetting, tmp_path: Path) -> None:
    config = CLASSIFIERS[name]
    engine = engines.load(write(tmp_path, config, tensors(config, SEED)), "float32", way, step_tokens=64)
    rows, classes = references.rows_of_classifier(name), range(config.classes)
    found = engines.scores_of(engine, rows, classes, lambda length: length * 2 // 3)
    expected = references.read_classes(name)
    assert np.abs(found.logits - expected).max() <= FLOAT32_LOGPROBS
    assert expected.std(axis=0).min() > 0.5, "the rows differ"
    shares = np.exp(engines.logprobs_of(found).astype(np.float64))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    if way == "prefill_extend":
        alone = engines.scores_of(engine, rows[-1:], classes, lambda length: length * 2 // 3)
        assert np.array_equal(alone.logits, found.logits[-1:]), "the bits do not depend on other rows"


def test_a_head_of_another_size_or_of_a_language_model_alone_is_refused(tmp_path: Path) -> None:
    config = CLASSIFIERS[SEVEN]
    weights = tensors(config, SEED)
    with pytest.raises(WeightsError, match=r"score\.weight"):
        engines.load(write(tmp_path / "size", replace(config, classes=6), weights), "float32")
    of_language_model = {name.replace("score", "lm_head"): tensor for name, tensor in weights.items()}
    with pytest.raises(WeightsError, match=r"missing: score\.weight"):
        engines.load(write(tmp_path / "head", config, of_language_model), "float32")
    with pytest.raises(WeightsError, match=r"score\.bias"):
        engines.load(write(tmp_path / "bias", config, weights | {"score.bias": np.zeros(7, np.float32)}), "float32")
