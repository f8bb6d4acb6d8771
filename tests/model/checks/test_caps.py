"""The checks at start see programs that leave out the caps of Gemma 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from model.architecture.config import Caps
from model.attention import tiles, xla
from model.attention.dense import DenseAttention
from model.checks.known_answer import KnownAnswerError
from model.layerwise.packed_attention import PackedAttentionKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.self_attention import SelfAttentionKey
from model.programs import label_head, target_head
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from model.whole_steps import prefix_attention
from model.whole_steps.forward import WholeStepForward
from scoring.layout import Head
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.checks.test_known_answer import BLOCKS, BUCKETS, Table
from tests.model.whole_steps.conftest import WHOLE_STEPS

NAME = "gemma2"
PUBLISHED = Caps(50.0, 30.0)
OF_ITEMS = SelfAttentionKey(8, BUCKETS.step_tokens // 2, last=False)
OF_PREFIX = PrefixAttentionKey(BUCKETS.step_tokens, BLOCKS)


@pytest.mark.parametrize(
    ("key", "module"),
    [
        (OF_ITEMS, tiles),
        (OF_PREFIX, tiles),
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


@pytest.mark.parametrize("key", [OF_ITEMS, OF_PREFIX], ids=str)
def test_attention_without_the_cap_of_published_models_is_seen(
    key: Any, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is far over the scores that random queries have in other models."""
    assert Table(checkpoint(NAME), NAME, caps=PUBLISHED).passes(key)
    monkeypatch.setattr(tiles, "capped", lambda values, cap: values)
    assert not Table(checkpoint(NAME), NAME, caps=PUBLISHED).passes(key)


@pytest.mark.parametrize("windowed", [False, True])
def test_whole_steps_without_the_cap_of_published_models_are_seen(
    windowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(EVERY[NAME], caps=PUBLISHED)
    directory = write(tmp_path, config, tensors(config, 3))
    engine = engines.load(directory, "float32", platform=WHOLE_STEPS, step_tokens=128)
    assert isinstance(engine.forward, WholeStepForward)
    engine.forward.compile(prefix_attention.PrefixAttentionKey(windowed))
    monkeypatch.setattr(xla, "capped", lambda values, cap: values)
    engine = engines.load(directory, "float32", platform=WHOLE_STEPS, step_tokens=128)
    assert isinstance(engine.forward, WholeStepForward)
    with pytest.raises(KnownAnswerError):
        engine.forward.compile(prefix_attention.PrefixAttentionKey(windowed))


def test_an_explicit_mask_without_the_cap_is_seen(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = PackedAttentionKey(BUCKETS.step_tokens, 0, dense=True)
    assert Table(checkpoint(NAME), NAME).passes(key)
    monkeypatch.setattr("model.layerwise.packed_attention.DenseAttention", lambda cap: DenseAttention())
    assert not Table(checkpoint(NAME), NAME).passes(key)
