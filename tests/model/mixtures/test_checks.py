"""The checks at start see a wrong mixture, and are not misled by experts that are nearly as probable as others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from structlog.testing import capture_logs

from model.architecture.experts import Mixture
from model.architecture.mixture import Choice, MixtureOfExperts
from model.architecture.mlp import MLP
from model.checks.known_answer import MODEL_TOLERANCE, KnownAnswerError, ModelChecks
from model.checks.known_prompts import known_alone, prompt_states
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.recurrence import RecurrentOutputKey
from model.platforms import Platform
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.checks.test_known_answer import Table
from tests.model.engines import DType
from tests.model.whole_steps.conftest import WHOLE_STEPS

NAME = "qwen3 moe"
right = MixtureOfExperts.choice


def _not_normalised(mixture: MixtureOfExperts, rows: Array) -> Choice:
    wanted = mixture.mixture
    mixture.mixture = wanted._replace(normalised=not wanted.normalised)
    found = right(mixture, rows)
    mixture.mixture = wanted
    return found


def _neighbours(mixture: MixtureOfExperts, rows: Array) -> Choice:
    found = right(mixture, rows)
    return found._replace(numbers=(found.numbers + 1) % mixture.mixture.experts)


def _one_fewer(mixture: MixtureOfExperts, rows: Array) -> Choice:
    found = right(mixture, rows)
    least = jnp.min(found.weights, axis=1, keepdims=True)
    kept = jnp.where(found.weights > least, found.weights, 0.0)
    return found._replace(weights=kept / jnp.sum(kept, axis=1, keepdims=True))


def _weights_of_one_another(mixture: MixtureOfExperts, rows: Array) -> Choice:
    found = right(mixture, rows)
    return found._replace(weights=found.weights[:, ::-1])


FAULTS = {
    "weights that are not normalised": _not_normalised,
    "the experts beside those that are chosen": _neighbours,
    "one expert fewer": _one_fewer,
    "the weights of one another": _weights_of_one_another,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen_in_the_program_of_a_layer(
    fault: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Table(checkpoint(NAME), NAME).passes(OutputMLPKey(64))
    monkeypatch.setattr(MixtureOfExperts, "choice", FAULTS[fault])
    assert not Table(checkpoint(NAME), NAME).passes(OutputMLPKey(64))


@pytest.mark.parametrize("key", [OutputMLPKey(64), RecurrentOutputKey(64)], ids=str)
def test_a_layer_without_what_all_tokens_pass_is_seen(
    key: OutputMLPKey | RecurrentOutputKey, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Table(checkpoint("qwen35 moe"), "qwen35 moe").passes(key)
    # Only the one that all tokens pass is a module of this kind here.
    monkeypatch.setattr(MLP, "__call__", lambda self, hidden: jnp.zeros_like(hidden))
    assert not Table(checkpoint("qwen35 moe"), "qwen35 moe").passes(key)


@pytest.mark.usefixtures("unchecked_programs")
@pytest.mark.parametrize(
    ("platform", "fault"),
    [
        # The test before sees all of these faults in the programs of layers. Whole steps have known prompts alone.
        *((engines.PLATFORM, fault) for fault in (None, "the weights of one another")),
        *(pytest.param(WHOLE_STEPS, fault, marks=pytest.mark.matrix) for fault in (None, *FAULTS)),
    ],
    ids=lambda given: "by whole steps" if given is WHOLE_STEPS else "by layer" if given is engines.PLATFORM else None,
)
def test_a_planted_fault_is_seen_in_known_prompts(
    fault: str | None, platform: Platform, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault is not None:
        monkeypatch.setattr(MixtureOfExperts, "choice", FAULTS[fault])
    engine = engines.load(checkpoint(NAME), "float32", platform=platform, step_tokens=64)
    if fault is None:
        engine.check_model()
        return
    with pytest.raises(KnownAnswerError, match="differs from NumPy's by"):
        engine.check_model()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_whose_experts_are_others_does_not_stop_a_worker_but_most_rows_do(
    dtype: DType, checkpoint: Callable[[str], Path]
) -> None:
    decoder: Any = engines.load(checkpoint(NAME), dtype).forward
    decoder = decoder._decoder
    known, checks = known_alone(decoder.config.vocabulary), ModelChecks(decoder, engines.PLATFORM)
    states = np.stack([of_row[-1] for of_row in prompt_states(decoder, known.prompts)])
    one, most = states.copy(), states.copy()
    one[0], most[:-1] = -one[0], -most[:-1]
    checks.compare(known, {"serial": one})
    with pytest.raises(KnownAnswerError, match="a known prompt scored by serial differs"):
        checks.compare(known, {"serial": most})
    with pytest.raises(KnownAnswerError, match="differs from NumPy's by inf"):
        checks.compare(known, {"serial": np.where(np.arange(len(states))[:, None] == 0, np.nan, states)})


@pytest.mark.usefixtures("unchecked_programs")
def test_what_rounding_alone_may_do_to_a_deep_model_is_allowed(tmp_path: Path) -> None:
    """In bf16, a token of these random layers soon passes other experts than in NumPy."""
    # So many layers that this is so on processors with products of bf16, too.
    config = replace(EVERY[NAME], layers=32, mixture=Mixture(32, 4, normalised=True))
    engine = engines.load(write(tmp_path, config, tensors(config, 5)), "bfloat16", step_tokens=64)
    with capture_logs() as logs:
        engine.check_model()
    (told, *_) = [line for line in logs if line["event"] == "rounding errors add up"]
    assert MODEL_TOLERANCE["bfloat16"] < told["error"] <= told["allowed"]
