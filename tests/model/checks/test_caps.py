"""The checks at start see programs that leave out the caps of Gemma 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from model.attention import tiles
from model.attention.dense import DenseAttention
from model.layerwise.packed_attention import PackedAttentionKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.self_attention import SelfAttentionKey
from model.programs import label_head, target_head
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from scoring.layout import Head
from tests.model.checks.test_known_answer import BLOCKS, BUCKETS, Table

NAME = "gemma2"


@pytest.mark.parametrize(
    ("key", "module"),
    [
        (SelfAttentionKey(8, BUCKETS.step_tokens // 2, last=False), tiles),
        (PrefixAttentionKey(BUCKETS.step_tokens, BLOCKS), tiles),
        (PackedAttentionKey(BUCKETS.step_tokens, 0, dense=False), tiles),
        (HeadKey.of(Head.LOGITS, 4), label_head),
        (TargetHeadKey.of(4), target_head),
    ],
    ids=str,
)
def test_a_program_without_its_cap_is_seen(
    key: Any, module: ModuleType, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Table(checkpoint(NAME), NAME).passes(key)
    monkeypatch.setattr(module, "capped", lambda values, cap: values)
    assert not Table(checkpoint(NAME), NAME).passes(key)


def test_an_explicit_mask_without_the_cap_is_seen(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = PackedAttentionKey(BUCKETS.step_tokens, 0, dense=True)
    assert Table(checkpoint(NAME), NAME).passes(key)
    monkeypatch.setattr("model.layerwise.packed_attention.DenseAttention", lambda cap: DenseAttention())
    assert not Table(checkpoint(NAME), NAME).passes(key)
