"""Which items are computed together: as few steps as first fit decreasing finds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from scoring.layout import TokenIds


def first_fit_decreasing(lengths: TokenIds, capacity: int, most: int) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of items that share a bin, the longest first, one bin after another.

    lengths: int32 [N], from 1 to ``capacity``; most: items of a bin. Each bin takes the longest item that still fits,
    again and again, which is first fit decreasing one bin at a time. Of items of one length the order is kept. A bin
    costs a look at each distinct length, whatever N.
    """
    order = np.argsort(-lengths, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    # By length, descending: how many are waiting, and where in the order they begin.
    waiting = dict(zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True))
    begin = dict(zip(waiting, np.cumsum([0, *waiting.values()])[:-1].tolist(), strict=True))
    while waiting:
        room, places, together = capacity, most, []
        for length in list(waiting):
            if not places:
                break
            taken = min(waiting[length], room // length, places)
            if not taken:
                continue
            together.append(order[begin[length] : begin[length] + taken])
            room, places = room - taken * length, places - taken
            begin[length] += taken
            waiting[length] -= taken
            if not waiting[length]:
                del waiting[length]
        yield np.concatenate(together)
