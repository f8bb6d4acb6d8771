"""The blocks of the pool, and the segments of sequences in them, which are found again by their content.

A sequence is cut into segments at places that depend on nothing but their distance from its beginning. The key of a
segment is a hash of the key before it and of its own tokens. So it stands for all tokens up to the segment's end, and
for their owner. Sequences that begin alike share the segments of their common beginning, whichever was computed first.
vLLM's automatic prefix caching finds single blocks in this way (https://docs.vllm.ai/en/latest/design/prefix_caching).
"""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from model.prefixes.pool import PoolShape
from model.score_buffer import Floats
from scoring.layout import TokenIds

NO_KEY = b""
"""The key of what is never found again."""


def keys_of(owner: str, tokens: TokenIds, size: int) -> list[bytes]:
    """Return the keys of a sequence's segments. Each has ``size`` tokens, and the last one may have fewer."""
    key, keys = hashlib.sha256(owner.encode()).digest(), list[bytes]()
    for start in range(0, len(tokens), size):
        key = hashlib.sha256(key + tokens[start : start + size].tobytes()).digest()
        keys.append(key)
    return keys


@dataclass(slots=True, eq=False)
class Segment:
    """The keys and values of consecutive tokens, in blocks of the pool."""

    key: bytes
    blocks: tuple[int, ...]
    hidden: Floats | None = None  # final hidden state of its last token, [width]; None if it was not read
    holders: int = 1  # how many sequences in use have it; as long as there are any, its blocks are protected
    used_at: float = 0.0


class Blocks:
    """Which blocks are free, and the segments that can be found. The least recently used ones make room for others.

    timeout: a segment is removed this many seconds after its last use.
    """

    def __init__(self, shape: PoolShape, timeout: float, clock: Callable[[], float]) -> None:
        self.shape = shape
        self._free = list(range(shape.blocks))  # a heap: the lowest are used first, and others may never be touched
        self._timeout = timeout
        self._clock = clock
        self._segments: OrderedDict[bytes, Segment] = OrderedDict()  # by key, the least recently used first
        self.evictions = self.expirations = 0  # segments that were removed for want of blocks, and after the timeout

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many blocks are not free."""
        return self.shape.blocks - len(self._free)

    def find(self, key: bytes) -> Segment | None:
        """Return the segment with a key, if there is one."""
        return self._segments.get(key)

    def take(self, key: bytes, count: int) -> Segment:
        """Return a new segment in so many free blocks, with one holder."""
        return Segment(key, tuple(heapq.heappop(self._free) for _ in range(count)))

    def release(self, segment: Segment) -> None:
        """Note that a sequence has a segment no longer. If it can be found, it stays until it is evicted or expires.

        Who releases several releases the last one of a sequence first, so that beginnings are the most recently used.
        """
        segment.holders -= 1
        if self._segments.get(segment.key) is segment:
            self._segments.move_to_end(segment.key)
            segment.used_at = self._clock()
        elif not segment.holders:
            self._give_back(segment)

    def add(self, segments: Sequence[Segment]) -> list[Segment]:
        """Have segments of a sequence found from now on. Returns those that the sequence has then.

        Where the same tokens were computed twice meanwhile, these are the segments that were there first.
        """
        found = list[Segment]()
        for segment in segments:
            known = self._segments.setdefault(segment.key, segment)
            if known is not segment:
                known.hidden = segment.hidden if known.hidden is None else known.hidden
                known.holders += 1
                self.release(segment)
            found.append(known)
        return found

    def forget(self, key: bytes) -> None:
        """Remove a segment, unless something that is in use has it."""
        segment = self._segments.get(key)
        if segment is not None and not segment.holders:
            del self._segments[key]
            self._give_back(segment)

    def expire(self) -> None:
        """Remove the segments that were not used for too long."""
        last, expired = self._clock() - self._timeout, list[bytes]()
        for key, segment in self._segments.items():
            if not segment.holders:
                if segment.used_at >= last:
                    break
                expired.append(key)
        for key in expired:
            self.forget(key)
        self.expirations += len(expired)

    def make_room(self, blocks: int) -> bool:
        """Make room for so many blocks more within the budget, by eviction. Returns whether the pool has them."""
        while self.used + blocks > self.shape.budget and self.evict():
            pass
        return self.free >= blocks

    def evict(self) -> bool:
        """Remove the least recently used segment that nothing in use has. Returns whether there was one."""
        oldest = next((key for key, segment in self._segments.items() if not segment.holders), None)
        if oldest is not None:
            self.forget(oldest)
            self.evictions += 1
        return oldest is not None

    def clear(self) -> int:
        """Remove all segments that nothing in use has. Returns how many."""
        unused = [key for key, segment in self._segments.items() if not segment.holders]
        for key in unused:
            self.forget(key)
        return len(unused)

    def _give_back(self, segment: Segment) -> None:
        for block in segment.blocks:
            heapq.heappush(self._free, block)
