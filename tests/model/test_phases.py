"""The engine tells how long the parts of its work took, to whoever wants to know."""

from __future__ import annotations

import numpy as np

from model.engine import Engine
from tests.model.checkpoints import CONFIGS, sequences
from tests.model.engines import chunk, score
from tests.model.test_engine import LABELS, Loaded, group


def test_a_group_behind_a_prefix_is_prefilled_extended_and_read_by_heads(engine: Loaded) -> None:
    tied: Engine = engine("tied", "float32")
    config = CONFIGS["tied"]
    prefix = sequences(config, 77, (80,))[0]
    work = group(chunk(1, sequences(config, 2, (4, 5, 7)), len(prefix), LABELS), prefix=prefix)
    parts: list[tuple[str, float]] = []
    found = list(tied.score([work], lambda: None, lambda phase, seconds: parts.append((phase, seconds))))
    seconds: dict[str, float] = {}
    for phase, of_part in parts:
        assert of_part >= 0
        seconds[phase] = seconds.get(phase, 0.0) + of_part
    assert all(seconds[phase] > 0 for phase in ("prefill", "extend", "heads"))
    np.testing.assert_array_equal(found[0].scores.logits, score(tied, [work])[1].logits)
