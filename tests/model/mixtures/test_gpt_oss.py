"""What gpt-oss has and other mixtures do not: the checks at start see each of them wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import Array

from demonstration.saving import config_fields
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import UnsupportedModelError
from model.architecture.decoder import SelfAttention
from model.architecture.mixture import Experts
from model.architecture.stored.tensors import WeightsError
from model.attention.contract import AttentionOutput
from model.checks.known_answer import KnownAnswerError
from model.layerwise.output_mlp import OutputMLPKey
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.checks.test_known_answer import Table

NAME = "gpt-oss"
FIELDS = config_fields(EVERY[NAME])


def _without_sinks(attention: SelfAttention, found: AttentionOutput) -> Array:
    return found.out


def _without_limits(experts: Experts, gate: Array, up: Array) -> Array:
    assert experts.clamped is not None
    return gate * jax.nn.sigmoid(experts.clamped.gain * gate) * (up + 1)


FAULTS: dict[str, tuple[type, str, Any]] = {
    "heads that do not see their sinks": (SelfAttention, "attended", _without_sinks),
    "gates without limits": (Experts, "_gated", _without_limits),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen_in_the_program_of_a_layer_and_in_known_prompts(
    fault: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Table(checkpoint(NAME), NAME).passes(OutputMLPKey(64))
    monkeypatch.setattr(*FAULTS[fault])
    assert not Table(checkpoint(NAME), NAME).passes(OutputMLPKey(64))
    engine = engines.load(checkpoint(NAME), "float32", step_tokens=64)
    with pytest.raises(KnownAnswerError, match="differs from NumPy's by"):
        engine.check_model()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rope_parameters": None, "rope_theta": None}, "config.json lacks rope_scaling or rope_theta"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_type 'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters.full_attention"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quant_method 'fp8' is not implemented for gpt_oss"),
        ({"swiglu_limit": 0}, "swiglu_limit must be a positive number, not 0"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["sliding_attention"]}, "layer_types has 1 entries for 3 layers"),
    ],
)
def test_a_configuration_that_means_something_else_is_refused_by_the_name_of_the_field(
    changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        DecoderConfig.from_huggingface(FIELDS | changed)


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("gate_up_proj", None, r"fit:\n  missing: model\.layers\.0\.mlp\.experts\.gate_up_proj$"),
        ("down_proj_bias", None, r"fit:\n  missing: model\.layers\.0\.mlp\.experts\.down_proj_bias$"),
        ("gate_up_proj", lambda tensor: tensor[..., :-1], r"missing: model\.layers\.0\.mlp\.experts\.gate_up_proj$"),
        ("gate_up_proj", lambda tensor: tensor[:, :-1], r"experts\.0\.gate_proj\.weight: \[64, 63\] in the file"),
        ("down_proj", lambda tensor: tensor[:-1], r"missing: model\.layers\.0\.mlp\.experts\.down_proj$"),
    ],
)
def test_a_tensor_of_all_experts_that_is_missing_or_of_another_shape_is_named(
    name: str, changed: Any, told: str, tmp_path: Path
) -> None:
    stored, joined = tensors(EVERY[NAME], 7), f"model.layers.0.mlp.experts.{name}"
    tensor = stored.pop(joined)
    if changed is not None:
        stored[joined] = np.ascontiguousarray(changed(tensor))
    with pytest.raises(WeightsError, match=told):
        engines.load(write(tmp_path, EVERY[NAME], stored), "float32")


def test_what_a_published_configuration_may_leave_out_is_what_huggingface_takes() -> None:
    """Published files leave out the gain of the gate."""
    named = {name: value for name, value in FIELDS.items() if name not in ("swiglu_alpha", "swiglu_limit")}
    found = DecoderConfig.from_huggingface(named | {"layer_types": None, "attention_bias": None})
    assert found.mixture is not None
    assert found.mixture.clamped == (1.702, 7.0)
    assert found.attention_bias
    assert found.windowed == (True, False, True)
