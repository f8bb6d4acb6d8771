"""What is no number stays with the sequence that has it: none is left in a block that another sequence takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.engine import Engine
from model.score_buffer import EngineError
from scoring.layout import GroupWork
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.engines import chunk
from tests.model.whole_steps.runs import SMALL, short_steps

BLOCK, HALF = SMALL.block_tokens, SMALL.tile_rows
"""Tokens of a block, and of the half of it that a short sequence writes."""

CONFIG = EVERY["untied"]
BROKEN = 7
"""A token whose embedding is no number."""


@pytest.fixture(params=["whole steps", "layer by layer"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    weights = tensors(CONFIG, 3)
    weights["model.embed_tokens.weight"][BROKEN] = np.nan
    broken = write(tmp_path, CONFIG, weights)
    # Queries have blocks here even if they are so short that they would be computed again with each item.
    if request.param == "whole steps":
        return short_steps(broken, multi_item_algorithm="prefill_extend")
    return engines.load(broken, "float32", "prefill_extend", step_tokens=BLOCK)


def group(number: int, query: np.ndarray) -> GroupWork:
    items = [np.array([5, 6], np.int32), np.array([9], np.int32)]
    return GroupWork("owner", query, (chunk(number, items, len(query), (1, 2, 3)),))


@pytest.mark.usefixtures("unchecked_programs")  # NumPy finds no state of that token either
def test_a_sequence_gets_the_same_bits_in_a_block_that_held_what_is_no_number(engine: Engine) -> None:
    random = np.random.RandomState(4)
    short, long = (random.randint(10, CONFIG.vocabulary, n).astype(np.int32) for n in (HALF - 20, BLOCK - 10))
    expected = engines.score(engine, [group(0, short)])[0]
    engine.prefix_cache.clear()
    long[-30:] = BROKEN
    with pytest.raises(EngineError, match="a score is NaN"):
        engines.score(engine, [group(1, long)])
    engine.prefix_cache.clear()
    found = engines.score(engine, [group(2, short)])[2]
    np.testing.assert_array_equal(found.logits, expected.logits)
