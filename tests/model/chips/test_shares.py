"""Which heads, and how much of the MLP and of the vocabulary, each of several chips has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.architecture.configuration_reader import UnsupportedModelError
from model.chips.axes import divided_axis, parameter_axes
from model.chips.shares import Shares
from tests.model.checkpoints import EVERY
from tools.tpu.shapes import NAMED_SHAPES

QWEN3_8B = NAMED_SHAPES["qwen3-8b"]


@pytest.mark.parametrize(("chips", "own"), [(2, 4), (4, 2), (8, 1)])
def test_key_heads_are_divided_where_they_can_be(chips: int, own: int) -> None:
    shares = Shares.of(QWEN3_8B, chips)
    assert shares.whole == QWEN3_8B
    assert shares.key_heads == tuple(range(8))
    assert (shares.own.query_heads, shares.own.kv_heads) == (32 // chips, own)
    assert (shares.own.mlp_width, shares.own.vocabulary) == (12_288 // chips, 151_936 // chips)


def test_each_of_more_chips_than_key_heads_has_one_of_them() -> None:
    shares = Shares.of(QWEN3_8B, 16)
    assert shares.own.kv_heads == 1
    assert shares.key_heads == tuple(head // 2 for head in range(16))


@pytest.mark.parametrize("chips", [1, 2, 3, 4, 5, 6, 8, 12, 24])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 6, 8, 12, 24])
def test_every_query_head_finds_its_key_head_on_its_own_chip(chips: int, kv_heads: int) -> None:
    config = replace(QWEN3_8B, query_heads=24, kv_heads=kv_heads, mlp_width=120 * chips, vocabulary=120 * chips)
    if 24 % chips:
        return
    shares = Shares.of(config, chips)
    queries, keys = shares.own.query_heads, shares.own.kv_heads
    assert queries % keys == 0
    assert keys <= kv_heads, "a chip has no more key heads than the model"
    for head in range(24):
        chip, on_chip = divmod(head, queries)
        of_chip = shares.key_heads[chip * keys : (chip + 1) * keys]
        assert of_chip[on_chip // (queries // keys)] == head // (24 // kv_heads)
    assert Shares.of(shares.whole, chips).own == shares.own, "what is computed has the same shares"


def test_all_that_can_not_be_divided_is_named_in_one_line() -> None:
    config = replace(QWEN3_8B, query_heads=14, kv_heads=2, mlp_width=4_866, vocabulary=151_935)
    with pytest.raises(UnsupportedModelError) as refused:
        Shares.of(config, 4)
    assert str(refused.value) == (
        "4 devices can't share this model equally, because 4 does not divide "
        "num_attention_heads 14, intermediate_size 4866, vocab_size 151935"
    )


def test_a_norm_over_all_heads_can_not_be_divided() -> None:
    with pytest.raises(UnsupportedModelError, match="2 devices can't share this model, because olmo2 norms"):
        Shares.of(EVERY["olmo2"], 2)
    assert Shares.of(EVERY["olmo2"], 1).whole == EVERY["olmo2"]


@pytest.mark.parametrize(
    ("path", "axis"),
    [
        ("model.embed_tokens.weight", 0),
        ("lm_head.weight", 1),
        ("model.norm.weight", None),
        ("model.layers.self_attn.q_proj.weight", 2),
        ("model.layers.self_attn.k_proj.bias", 1),
        ("model.layers.self_attn.o_proj.weight", 1),
        ("model.layers.self_attn.o_proj.bias", None),
        ("model.layers.self_attn.q_norm.weight", None),
        ("model.layers.mlp.up_proj.bias", 1),
        ("model.layers.mlp.down_proj.weight", 1),
        ("model.layers.mlp.down_proj.bias", None),
        ("model.layers.input_layernorm.weight", None),
    ],
)
def test_parameters_are_divided_along_heads_mlp_and_vocabulary(path: str, axis: int | None) -> None:
    assert divided_axis(parameter_axes(path.split("."))) == axis


def test_a_kernel_whose_axes_are_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.layers\.mlp\.router\.weight"):
        parameter_axes(("model", "layers", "mlp", "router", "weight"))
