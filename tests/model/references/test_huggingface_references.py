"""Scores agree with stored references of HuggingFace, and planted bugs would be noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from model.architecture.config import Multipliers
from model.architecture.rope import Llama3Scaling, Rope, YarnScaling
from model.attention.contract import AttentionOutput
from model.attention.tiles import TiledAttention
from model.engine import Engine
from model.layers.rotation import RotaryEmbedding
from model.layerwise.steps import Step
from tests.model import engines, references
from tests.model.checkpoints import CONFIGS, EVERY, Tensors, tensors, write
from tests.model.continuations.cases import CLEAR_LEAD, Way, assert_scored, by
from tests.model.engines import DType
from tests.model.references import SEED
from tests.model.references.gates import FLOAT32_LOGPROBS, assert_bfloat16

LABELS = (3, 17, 41, 80)
STEP = 64
"""Tokens of a step: the longer references take several. Larger steps are compared live, in tests/parity."""
Loaded = Callable[[str, DType], Engine]


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Loaded:
    @cache
    def loaded(name: str, dtype: DType) -> Engine:
        return engines.load(checkpoint(name), dtype, step_tokens=STEP)

    return loaded


@pytest.mark.parametrize("name", EVERY)
def test_references_come_from_spread_logits(name: str) -> None:
    logprobs = references.read(name).float32
    entropies = -(np.exp(logprobs) * logprobs).sum(axis=1)
    assert (np.exp(logprobs.max(axis=1)) > 0.5).sum() >= 2
    assert entropies.min() < 1.5
    assert entropies.max() - entropies.min() > 0.9


FEW = ("tied", "llama3 scaled")
"""Checkpoints that are always compared; `make slow` compares the scores of the others, `make matrix` their labels."""


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, way) for name in FEW for way in (None, Way.ROW, Way.BRANCH)),
        # Recurrent layers hand on their states in either way. For all other layers, a way is another cut into rows.
        *(pytest.param("qwen35", way, marks=pytest.mark.slow) for way in (Way.ROW, Way.BRANCH)),
        *(pytest.param(name, None, marks=pytest.mark.matrix) for name in references.FAMILIES if name not in FEW),
    ],
)
def test_labels_of_several_tokens_are_huggingfaces(name: str, way: Way | None, engine: Loaded) -> None:
    case, expected = references.read_labels(name)
    assert (expected.lead > CLEAR_LEAD).sum() >= len(case.items), "some labels are greedy"
    with by(way):
        (found,) = engine(name, "float32").score([case.work()], lambda: None)
    assert_scored(found, case, expected, FLOAT32_LOGPROBS)


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in EVERY]
)
def test_float32_logprobs_are_huggingfaces(name: str, engine: Loaded) -> None:
    found = engines.logprobs(engine(name, "float32"), references.rows(name))
    assert np.abs(found - references.read(name).float32).max() <= FLOAT32_LOGPROBS


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*references.FAMILIES, "llama biased"])
def test_bfloat16_scores_are_as_close_as_huggingfaces_own(name: str, engine: Loaded) -> None:
    scoring = engine(name, "bfloat16")
    scoring.check_model()  # A known prompt is near enough to NumPy's, too.
    found = engines.logprobs(scoring, references.rows(name))
    reference = references.read(name)
    assert_bfloat16(found, reference.float32, reference.bfloat16, LABELS)


def _swap(one: str, other: str) -> Callable[[Tensors], Tensors]:
    def swapped(weights: Tensors) -> Tensors:
        pairs = {name: name.replace(one, other) for name in weights if one in name}
        pairs |= {new: old for old, new in pairs.items()}
        return {name: weights[pairs.get(name, name)] for name in weights}

    return swapped


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("tied", "input_layernorm", "post_attention_layernorm"),
        pytest.param("tied", "q_norm", "k_norm", marks=pytest.mark.matrix),
        pytest.param("tied", "gate_proj", "up_proj", marks=pytest.mark.matrix),
        pytest.param("tied", "layers.0.", "layers.1.", marks=pytest.mark.matrix),
        pytest.param("qwen2 yarn", "k_proj.bias", "v_proj.bias", marks=pytest.mark.matrix),
        pytest.param("llama biased", "self_attn.o_proj.bias", "mlp.down_proj.bias", marks=pytest.mark.matrix),
        pytest.param("llama biased", "gate_proj.bias", "up_proj.bias", marks=pytest.mark.matrix),
        pytest.param("olmo2", "post_attention_layernorm", "post_feedforward_layernorm", marks=pytest.mark.matrix),
        pytest.param("olmo2", "q_norm", "k_norm", marks=pytest.mark.matrix),
        pytest.param("gemma3", "pre_feedforward_layernorm", "post_feedforward_layernorm", marks=pytest.mark.matrix),
        pytest.param("gemma3", "input_layernorm", "post_attention_layernorm", marks=pytest.mark.matrix),
    ],
)
def test_a_swapped_weight_would_be_noticed(name: str, one: str, other: str, tmp_path: Path) -> None:
    weights = _swap(one, other)(tensors(EVERY[name], SEED))
    broken = engines.load(write(tmp_path, EVERY[name], weights), "float32", step_tokens=STEP)
    assert _differs(broken, name)


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        pytest.param("llama biased", Rope(10_000.0), marks=pytest.mark.matrix),
        ("llama3 scaled", Rope(500_000.0)),
        *(
            pytest.param(name, rope, marks=pytest.mark.matrix)
            for name, rope in (
                ("llama3 scaled", Rope(500_000.0, Llama3Scaling(8.0, 1.0, 8.0, 64))),
                ("qwen2 yarn", Rope(10_000.0)),
                ("qwen2 yarn", Rope(10_000.0, YarnScaling(4.0, 32.0, 1.0, 256, True, magnitude=1.0))),
                ("qwen2 yarn", Rope(10_000.0, YarnScaling(4.0, 16.0, 1.0, 256, True, 1.1386))),
                ("mistral wide heads", Rope(10_000.0)),
            )
        ),
    ],
)
def test_other_rotary_positions_would_be_noticed(name: str, rope: Rope, tmp_path: Path) -> None:
    config = replace(EVERY[name], rope=rope)
    broken = engines.load(write(tmp_path, config, tensors(config, SEED)), "float32", step_tokens=STEP)
    assert _differs(broken, name)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("gemma3", {"size": 6}),
        ("gemma3", {"rope": Rope(20_000.0)}),
        ("mistral with a window", {"size": 5}),
        ("qwen2 with a window", {"layers": (True, False)}),
        ("olmo3", {"layers": (False, True)}),
    ],
)
def test_another_sliding_window_would_be_noticed(name: str, other: dict[str, Any], tmp_path: Path) -> None:
    window = EVERY[name].window
    assert window is not None
    config = replace(EVERY[name], window=window._replace(**other))
    broken = engines.load(write(tmp_path, config, tensors(EVERY[name], SEED)), "float32", step_tokens=STEP)
    assert _differs(broken, name)


@pytest.mark.matrix
@pytest.mark.parametrize("field", Multipliers._fields)
def test_another_multiplier_would_be_noticed(field: str, tmp_path: Path) -> None:
    of_name = EVERY["granite"]
    other = of_name.multipliers._replace(**{field: 1.1 * getattr(of_name.multipliers, field)})
    config = replace(of_name, multipliers=other)
    broken = engines.load(write(tmp_path, config, tensors(of_name, SEED)), "float32", step_tokens=STEP)
    assert _differs(broken, "granite")


@pytest.mark.usefixtures("unchecked_programs")
def test_keys_one_position_off_would_be_noticed(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rotated = RotaryEmbedding.heads

    def keys_off_by_one(rotary: RotaryEmbedding, projected: Array, head_dim: int, *how: Any) -> Array:
        if projected.shape[-1] == CONFIGS["tied"].kv_heads * head_dim:
            rotary = RotaryEmbedding(*(jnp.roll(part, -1, axis=0) for part in rotary))
        return rotated(rotary, projected, head_dim, *how)

    monkeypatch.setattr(RotaryEmbedding, "heads", keys_off_by_one)
    assert _differs(engines.load(checkpoint("tied"), "float32", step_tokens=STEP))


@pytest.mark.usefixtures("unchecked_programs")
def test_a_row_that_does_not_see_itself_would_be_noticed(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = TiledAttention.attend

    def short_sighted(self: TiledAttention, q: Array, k: Array, v: Array, ranges: Array) -> AttentionOutput:
        return attend(self, q, k, v, ranges.at[..., 1].set(jnp.maximum(ranges[..., 1] - 1, 1)))

    monkeypatch.setattr(TiledAttention, "attend", short_sighted)
    assert _differs(engines.load(checkpoint("tied"), "float32", step_tokens=STEP))


@pytest.mark.usefixtures("unchecked_programs")
def test_a_score_read_one_position_early_would_be_noticed(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out = Step.of

    def early(*arguments: Any) -> Step:
        step = lay_out(*arguments)
        own = tuple(replace(items, lengths=np.maximum(items.lengths - 1, 1)) for items in step.self_attention)
        return replace(step, logit_positions=np.maximum(step.logit_positions - 1, 0), self_attention=own)

    monkeypatch.setattr(Step, "of", early)
    assert _differs(engines.load(checkpoint("tied"), "float32", step_tokens=STEP))


def _differs(broken: Engine, name: str = "tied") -> bool:
    rows = references.rows(name)
    short = [n for n, row in enumerate(rows) if len(row) <= 32]
    found = engines.logprobs(broken, [rows[n] for n in short])
    return bool(np.abs(found - references.read(name).float32[short]).max() > 100 * FLOAT32_LOGPROBS)
