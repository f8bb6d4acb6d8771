"""An engine that computes whole steps: several groups of a call share steps, and each group has its own bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from model.engine import Engine
from model.executable_table import ExecutableTable
from model.whole_steps.decoder import StackedDecoder
from model.whole_steps.forward import Key
from scoring.layout import GroupWork
from tests.model import engines
from tests.model.checkpoints import EVERY, sequences
from tests.model.engines import chunk
from tests.model.references.gates import FLOAT32_LOGPROBS
from tests.model.whole_steps.runs import SMALL, short_steps

CONFIG = EVERY["untied"]  # qwen35 has as many tokens in its vocabulary
LABELS = range(CONFIG.vocabulary)


@pytest.fixture(scope="module", params=["untied", pytest.param("qwen35", marks=pytest.mark.slow)])
def name(request: pytest.FixtureRequest) -> str:
    """A checkpoint without recurrent layers, and one with some."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def whole(checkpoint: Callable[[str], Path], name: str) -> Engine:
    return short_steps(checkpoint(name))


def groups(seed: int) -> list[GroupWork]:
    """Groups with prefixes of some blocks and with a few items each; two of them have the same prefix."""
    prefixes = sequences(CONFIG, seed, (70, 130, 65, 300, 90, 64))
    items = [sequences(CONFIG, seed + n, (5, 9, 1, 15)) for n in range(7)]
    return [
        GroupWork("owner", prefix, (chunk(n, rows, len(prefix), LABELS),))
        for n, (prefix, rows) in enumerate(zip([*prefixes, prefixes[0]], items, strict=True))
    ]


def found(engine: Engine, work: list[GroupWork]) -> list[np.ndarray]:
    scores = engines.score(engine, work)
    return [engines.logprobs_of(scores[group.chunks[0].id]) for group in work]


def test_groups_of_a_call_share_steps_and_have_the_bits_they_have_alone(
    whole: Engine, checkpoint: Callable[[str], Path], name: str
) -> None:
    work = groups(100)
    before = whole.computed_tokens
    together = found(whole, work)
    steps = (whole.computed_tokens - before) / SMALL.tokens
    # 719 tokens in 26 tiles, and a tile of items for each of seven groups, in steps of four tiles. Alone, they take 16.
    assert steps <= 8 + 2
    again = short_steps(checkpoint(name))
    for group, expected in zip(work, together, strict=True):
        assert np.array_equal(found(again, [group])[0], expected)


def test_groups_have_the_scores_of_programs_by_layer(
    whole: Engine, checkpoint: Callable[[str], Path], name: str
) -> None:
    work = groups(200)
    by_layer = engines.load(checkpoint(name), "float32", step_tokens=64)
    for scores, expected in zip(found(whole, work), found(by_layer, work), strict=True):
        np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5 if name == "untied" else FLOAT32_LOGPROBS)


def test_a_step_is_at_most_three_calls_of_programs_with_its_heads(
    whole: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    get = ExecutableTable.__getitem__

    def counted(self: ExecutableTable[StackedDecoder], key: Key) -> object:
        calls[type(key).__name__] += 1
        return get(self, key)

    monkeypatch.setattr(ExecutableTable, "__getitem__", counted)
    (prefix,) = sequences(CONFIG, 300, (200,))
    rows = sequences(CONFIG, 301, (20,) * 100)
    before = whole.computed_tokens
    found(whole, [GroupWork("owner", prefix, (chunk(0, rows, 200, (1, 2)),))])
    steps = (whole.computed_tokens - before) // SMALL.tokens
    assert calls["ExtendKey"] + calls["PrefillKey"] == steps
    assert calls.total() <= 3 * steps


def test_the_warm_up_of_whole_steps_finds_no_fault(whole: Engine) -> None:
    told: list[str] = []
    whole.warm_up(lambda done, total, program: told.append(program))
    assert len(told) == 10
