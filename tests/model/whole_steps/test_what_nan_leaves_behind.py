"""What is no number stays with the sequence that has it: none is left in a block that another sequence takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.engine import Engine
from model.platforms import Platform
from model.score_buffer import EngineError
from model.whole_steps.shape import TILE_ROWS
from scoring.layout import GroupWork
from tests.model import engines
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.engines import chunk
from tests.model.whole_steps.conftest import WHOLE_STEPS

BLOCK = 2 * TILE_ROWS
"""Tokens of a block, of which a short sequence writes the first half alone."""

CONFIG = EVERY["untied"]
BROKEN = 7
"""A token whose embedding is no number."""


@pytest.fixture(params=["whole steps", "layer by layer"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    weights = tensors(CONFIG, 3)
    weights["model.embed_tokens.weight"][BROKEN] = np.nan
    whole = replace(WHOLE_STEPS, largest_block=BLOCK)
    platform: Platform = whole if request.param == "whole steps" else engines.PLATFORM
    return engines.load(write(tmp_path, CONFIG, weights), "float32", platform=platform, step_tokens=BLOCK)


def group(number: int, query: np.ndarray) -> GroupWork:
    items = [np.array([5, 6], np.int32), np.array([9], np.int32)]
    return GroupWork("owner", query, (chunk(number, items, len(query), (1, 2, 3)),))


@pytest.mark.usefixtures("unchecked_programs")  # NumPy finds no state of that token either
def test_a_sequence_gets_the_same_bits_in_a_block_that_held_what_is_no_number(engine: Engine) -> None:
    random = np.random.RandomState(4)
    short, long = (random.randint(10, CONFIG.vocabulary, n).astype(np.int32) for n in (TILE_ROWS - 20, BLOCK - 10))
    expected = engines.score(engine, [group(0, short)])[0]
    engine.prefix_cache.clear()
    long[-30:] = BROKEN
    with pytest.raises(EngineError, match="a score is NaN"):
        engines.score(engine, [group(1, long)])
    engine.prefix_cache.clear()
    found = engines.score(engine, [group(2, short)])[2]
    np.testing.assert_array_equal(found.logits, expected.logits)
