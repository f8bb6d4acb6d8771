"""Bin packing: which items are computed in one step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from scoring.layout import TokenIds


def first_fit_decreasing(lengths: TokenIds, capacity: int, max_items: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the indices of the items of each bin, the longest first.

    lengths: int32 [N], from 1 to ``capacity``; max_items: of a bin. Each bin takes the longest item that still fits
    until none does, which is first fit decreasing one bin at a time. Items of one length keep their order. The time for
    a bin is proportional to the number of distinct lengths, whatever N.
    """
    order = np.argsort(-lengths, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    # By length, descending: how many items are waiting, and where in the order they begin.
    waiting = dict(zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True))
    begin = dict(zip(waiting, np.cumsum([0, *waiting.values()])[:-1].tolist(), strict=True))
    while waiting:
        room, slots, together = capacity, max_items, []
        for length in list(waiting):
            if not slots:
                break
            taken = min(waiting[length], room // length, slots)
            if not taken:
                continue
            together.append(order[begin[length] : begin[length] + taken])
            room, slots = room - taken * length, slots - taken
            begin[length] += taken
            waiting[length] -= taken
            if not waiting[length]:
                del waiting[length]
        yield np.concatenate(together)
