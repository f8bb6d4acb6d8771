"""The work that a worker counts for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scoring.layout import GroupWork
from scoring.work import work_of_prefixes, work_of_rows


def work_done(groups: Sequence[GroupWork], cached_tokens: Mapping[int, int]) -> int:
    """The work of all rows of groups, and of what was computed of each prefix, as the scoring loop adds it up."""
    of_rows = (work_of_rows(one.rows, one.continuations, len(group.prefix)) for group in groups for one in group.chunks)
    return sum(of_rows) + work_of_prefixes(groups, cached_tokens)
