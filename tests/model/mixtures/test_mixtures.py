"""A mixture of experts adds what the right experts give, in bits that no other token changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from demonstration.saving import config_fields
from model.architecture.config import DecoderConfig
from model.architecture.experts import Mixture
from model.architecture.mixture import TILE_ROWS, MixtureOfExperts
from model.architecture.weights import tensor_shapes
from model.buckets import Buckets
from model.checks.numpy_decoder import silu
from model.executable_table import ExecutableTable
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.output_mlp import OutputMLPKey
from tests.model.attention.attention_steps import quickly
from tests.model.checkpoints import EVERY, random_decoder
from tests.model.engines import PLATFORM, DType, unchecked

MANY = replace(EVERY["qwen3 moe"], layers=1, mlp_width=32, mixture=Mixture(128, 8, normalised=False))
SMALL, OTHER = EVERY["qwen3 moe"], EVERY["qwen3 moe not normalised"]
SHARED = EVERY["qwen35 moe"], EVERY["qwen3 next"]
BUCKETS = Buckets.of(256)
DRAWN = 300
"""Different rows that are put together to steps. The first of them choose the same experts."""
ALIKE = 50


class Layer:
    """The last program of a layer, for steps of each size."""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        self.decoder = LayerwiseDecoder(random_decoder(config, dtype, seed=5), PLATFORM, BUCKETS, longest=2)
        self._table = ExecutableTable(self.decoder, PLATFORM, unchecked)
        random = np.random.default_rng(1)
        self.hidden = random.standard_normal((DRAWN, config.width), np.float32)
        self.hidden[:ALIKE] = self.hidden[0] + 0.01 * self.hidden[:ALIKE]
        self.attended = 0.1 * random.standard_normal((DRAWN, config.query_heads, config.head_dim), np.float32)
        self.attended[:ALIKE] = self.attended[0]

    def bits(self, rows: np.ndarray) -> np.ndarray:
        """The bits of the hidden states behind the layer of these rows, which fill a step."""
        attended = np.zeros((BUCKETS.step_tokens, *self.attended.shape[1:]), np.float32)
        attended[: len(rows)] = self.attended[rows]
        seen = attended, np.zeros(attended.shape[:2], np.float32)
        (found,) = self._table[OutputMLPKey(len(rows))](*self.decoder.layers[0], self.hidden[rows], *seen)
        return np.asarray(found).view(np.int32)


@cache
def layer(name: str, dtype: DType) -> Layer:
    return Layer({"small": SMALL, "other": OTHER, "many": MANY}[name], dtype)


@pytest.mark.skipif(not PLATFORM.has_row_floor(BUCKETS.step_tokens), reason="steps have one size here")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("small", "float32"),
        pytest.param("small", "bfloat16", marks=pytest.mark.slow),
        pytest.param("other", "float32", marks=pytest.mark.slow),
        ("many", "float32"),
    ],
)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_rows_bits_depend_on_the_row_alone(name: str, dtype: DType, data: st.DataObject) -> None:
    of = layer(name, dtype)
    row = data.draw(st.integers(0, DRAWN - 1))
    size = data.draw(st.sampled_from(BUCKETS.step_sizes))
    place = data.draw(st.integers(0, size - 1))
    # From steps whose rows all choose the same experts to steps of rows that have nothing in common.
    others = data.draw(st.sampled_from([1, 2, ALIKE, DRAWN]))
    rows = np.random.RandomState(data.draw(st.integers(0, 99))).randint(0, others, size)
    rows[place] = row
    assert np.array_equal(of.bits(rows)[place], of.bits(np.full(64, row))[0])


def test_rows_that_are_alike_choose_the_same_experts_and_others_do_not() -> None:
    """Otherwise the test of bits would say little."""
    of = layer("small", "float32")
    mixture: Any = of.decoder.layer(0).mlp
    numbers = np.asarray(quickly(mixture.choice)(of.hidden).numbers)
    assert len(np.unique(numbers[:ALIKE], axis=0)) <= 2
    assert len(np.unique(numbers, axis=0)) > 20
    assert ALIKE > TILE_ROWS, "an expert has more rows than a tile"


def of_experts(mixture: MixtureOfExperts, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What all experts give for rows in float64, by the weights that each row has for each of them, [T, E]."""
    kernels = [getattr(mixture.experts, f"{name}_proj").weight[...] for name in ("gate", "up", "down")]
    found = np.zeros(rows.shape)
    for number, (gate, up, down) in enumerate(zip(*(np.asarray(each, np.float64) for each in kernels), strict=True)):
        found += weights[:, number, None] * ((silu(rows @ gate) * (rows @ up)) @ down)
    return found


@pytest.mark.parametrize(
    ("count", "normalised", "chosen"),
    [
        (1, False, 3),
        (TILE_ROWS, True, 1),
        (3 * TILE_ROWS + 5, False, 6),
        (3 * TILE_ROWS + 5, True, 3),
    ],
)
def test_a_token_gets_its_most_probable_experts(count: int, normalised: bool, chosen: int) -> None:
    mixture = make(Mixture(6, chosen, normalised))
    rows = np.random.default_rng(count).standard_normal((count, SMALL.width)).astype(np.float32)
    logits = rows.astype(np.float64) @ np.asarray(mixture.gate.weight[...], np.float64)
    weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    weights[weights < np.sort(weights, axis=1)[:, -chosen, None]] = 0.0
    weights /= weights.sum(axis=1, keepdims=True) if normalised else 1.0
    found = quickly(lambda rows: mixture(rows))(rows)
    np.testing.assert_allclose(found, of_experts(mixture, rows, weights), atol=1e-5)


def test_all_tokens_pass_the_shared_expert_by_its_gate() -> None:
    mixture = make(Mixture(6, 3, normalised=True, shared=40))
    alone, rows = make(Mixture(6, 3, normalised=True)), np.random.default_rng(1).standard_normal((37, SMALL.width))
    for name in ("gate", "experts"):
        setattr(alone, name, getattr(mixture, name))
    shared, of_gate = mixture.shared_expert, mixture.shared_expert_gate
    assert shared is not None
    assert of_gate is not None
    kernels = (shared.gate_proj, shared.up_proj, shared.down_proj, of_gate)
    rows = rows.astype(np.float32)
    gate, up, down, of_token = (np.asarray(linear.weight[...]) for linear in kernels)
    added = ((silu(rows @ gate) * (rows @ up)) @ down) / (1 + np.exp(-(rows @ of_token)))
    assert np.abs(added).max() > 0.05
    found, without = (quickly(lambda rows, one=one: one(rows))(rows) for one in (mixture, alone))
    np.testing.assert_allclose(found, without + added, atol=1e-5)


def test_of_experts_that_are_as_probable_the_first_are_chosen() -> None:
    mixture = make(Mixture(6, 3, normalised=False))
    mixture.gate.weight.set_value(jax.device_put(np.zeros(mixture.gate.weight.shape, np.float32)))
    rows = np.random.default_rng(0).standard_normal((5, SMALL.width)).astype(np.float32)
    choice = quickly(mixture.choice)(rows)
    assert np.asarray(choice.numbers).tolist() == [[0, 1, 2]] * 5
    np.testing.assert_allclose(choice.weights, 1 / 6, rtol=1e-6)


def make(mixture: Mixture) -> MixtureOfExperts:
    """A mixture with random weights."""
    config = replace(SMALL, mixture=mixture)
    found = random_decoder(replace(config, layers=1), seed=2).model.layers
    graph, state = nnx.split(found)
    one: Any = nnx.merge(graph, jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[0]), state))
    assert isinstance(one.mlp, MixtureOfExperts)
    return one.mlp


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step 2"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers \[0\]"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
        ({"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size 64"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok must be an integer from 1 up"),
        ({"num_experts": None}, "lacks num_experts"),
        ({"moe_intermediate_size": None}, "lacks moe_intermediate_size"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob must be true or false"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(Exception, match=named):
        DecoderConfig.from_huggingface(config_fields(SMALL) | changes)


def test_the_name_that_newer_files_have_for_the_number_of_experts_is_read() -> None:
    fields = config_fields(SMALL)
    fields["num_local_experts"] = fields.pop("num_experts")
    assert DecoderConfig.from_huggingface(fields) == SMALL
    assert DecoderConfig.from_huggingface(fields | {"num_experts": 3}) == SMALL, "HuggingFace reads the newer one"


def test_the_operations_of_a_token_are_those_of_its_experts() -> None:
    dense = replace(SMALL, mixture=None, family="qwen3", mlp_width=2 * SMALL.mlp_width)
    router = SMALL.layers * SMALL.width * 8
    assert SMALL.size.linear_flop == dense.size.linear_flop + 2 * router
    assert SMALL.parameters_of_a_token == dense.parameters + router
    assert dense.parameters_of_a_token == dense.parameters


def test_what_all_tokens_pass_counts_as_parameters_and_as_operations_of_each() -> None:
    for config in SHARED:
        assert config.mixture is not None
        without = replace(config, mixture=config.mixture._replace(shared=0))
        own = config.layers * config.width * (3 * config.mixture.shared + 1)
        assert config.parameters - without.parameters == own
        assert config.parameters_of_a_token - without.parameters_of_a_token == own
        assert config.size.linear_flop - without.size.linear_flop == 2 * own
        assert config.parameters == sum(int(np.prod(shape)) for shape in tensor_shapes(config).values())


@pytest.mark.parametrize("checked", [SMALL, OTHER, *SHARED], ids=["normalised", "not normalised", "qwen35", "next"])
def test_a_configuration_is_written_as_it_is_read(checked: DecoderConfig) -> None:
    assert DecoderConfig.from_huggingface(config_fields(checked)) == checked
