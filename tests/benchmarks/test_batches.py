"""The benchmark of batches misses no answer, and none that comes twice."""

from __future__ import annotations

import pytest

from benchmarks.batches.lines import paired


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["a", "b"], [(3, "a"), (5, "b")]),
        (["a"], [(3, "a"), (5, None)]),
        ([], [(3, None), (5, None)]),
        (["a", "b", "b"], [(3, "a"), (5, "b"), (None, "b")]),
    ],
)
def test_each_line_is_compared_with_its_answer(
    answers: list[str], expected: list[tuple[int | None, str | None]]
) -> None:
    assert list(paired(iter([3, 5]), iter(answers))) == expected
