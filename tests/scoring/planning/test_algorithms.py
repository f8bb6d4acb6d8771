"""A row's algorithm depends on its own lengths and on the settings alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scoring.planning.algorithms import Algorithm, Choice, Policy, choose

AUTO = Policy(
    algorithm="auto",
    mask="auto",
    prefill_extend_enabled=True,
    min_prefix_tokens=64,
    max_packed_tokens=1000,
)
PACKED = replace(AUTO, algorithm="packed")
SEGMENT = replace(PACKED, max_dense_tokens=5000, mask="segment")


@pytest.mark.parametrize(
    ("policy", "prefix_length", "prefix_end", "own_length", "expected"),
    [
        (AUTO, 2000, 2000, 20, Choice(Algorithm.PREFILL_EXTEND, "the prefix is shared")),
        (AUTO, 64, 64, 20, Choice(Algorithm.PREFILL_EXTEND, "the prefix is shared")),
        (AUTO, 64, 63, 20, Choice(Algorithm.SERIAL, "the prefix is short")),
        (AUTO, 0, 0, 20, Choice(Algorithm.SERIAL, "there is no prefix to share")),
        (replace(AUTO, algorithm="serial"), 2000, 2000, 20, Choice(Algorithm.SERIAL, "asked for")),
        (replace(AUTO, algorithm="prefill_extend"), 5, 5, 20, Choice(Algorithm.PREFILL_EXTEND, "asked for")),
        (
            replace(AUTO, prefill_extend_enabled=False),
            2000,
            2000,
            20,
            Choice(Algorithm.SERIAL, "prefill_extend is switched off", fallback=True),
        ),
        (PACKED, 980, 900, 20, Choice(Algorithm.PACKED_SEGMENT, "asked for")),
        (replace(PACKED, mask="dense"), 980, 900, 20, Choice(Algorithm.PACKED_DENSE, "asked for")),
        (
            PACKED,
            980,
            900,
            21,
            Choice(Algorithm.PREFILL_EXTEND, "prefix and item exceed max_multi_item_seq_len", fallback=True),
        ),
        (replace(PACKED, max_dense_tokens=5000), 980, 900, 20, Choice(Algorithm.PACKED_DENSE, "asked for")),
        (replace(PACKED, max_dense_tokens=4999), 980, 900, 20, Choice(Algorithm.PACKED_SEGMENT, "asked for")),
        (
            replace(PACKED, max_dense_tokens=5000, mask="segment"),
            9,
            9,
            20,
            Choice(Algorithm.PACKED_SEGMENT, "asked for"),
        ),
        # Item first: there is no prefix, whatever is asked for.
        (PACKED, 0, 0, 20, Choice(Algorithm.SERIAL, "there is no prefix to share")),
    ],
)
def test_a_row_is_scored_by_the_expected_algorithm(
    policy: Policy, prefix_length: int, prefix_end: int, own_length: int, expected: Choice
) -> None:
    assert choose(policy, prefix_length, prefix_end, own_length, 5000) == expected
