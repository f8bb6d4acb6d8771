"""The blocks of the pool, and the segments of sequences in them, which are found again by their content.

A sequence is cut into segments of a block each, at places that depend on nothing but their distance from its beginning.
A key is a hash of the key before it and of the tokens behind that. So it stands for all tokens up to its place, and for
their owner. Sequences that begin alike share the segments of their common beginning, whichever was computed first.
vLLM's automatic prefix caching finds single blocks in this way (https://docs.vllm.ai/en/latest/design/prefix_caching).

There are keys within a segment, too: at every grain, a number of tokens that divides those of a block. By these a
segment is found whose first tokens a sequence has, although it goes on otherwise.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from model.prefixes.pool import PoolShape
from model.states import States
from scoring.layout import TokenIds


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of a segment, or of a part that it begins with."""

    end: bytes  # behind its last token
    inside: tuple[bytes, ...] = ()  # behind one grain, two, and so on, as far as there is a token behind them

    def beginning(self, grains: int) -> SegmentKeys:
        """Return the keys of so many of its grains, of which there are more."""
        return SegmentKeys(self.inside[grains - 1], self.inside[: grains - 1])


NO_KEYS = SegmentKeys(b"")
"""The keys of what is never found again."""


def keys_of(owner: str, tokens: TokenIds, size: int, grain: int) -> list[SegmentKeys]:
    """Return the keys of a sequence's segments. Each has ``size`` tokens, and the last one may have fewer."""
    key, keys = hashlib.sha256(owner.encode()).digest(), list[bytes]()
    for start in range(0, len(tokens), grain):
        key = hashlib.sha256(key + tokens[start : start + grain].tobytes()).digest()
        keys.append(key)
    segments = (keys[first : first + size // grain] for first in range(0, len(keys), size // grain))
    return [SegmentKeys(of_segment[-1], tuple(of_segment[:-1])) for of_segment in segments]


@dataclass(slots=True, eq=False)
class Segment:
    """The keys and values of consecutive tokens, in a block of the pool."""

    keys: SegmentKeys
    block: int
    hidden: States | None = None  # the final hidden state of its last token; None if it was not read
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
        self._beginnings: defaultdict[bytes, dict[Segment, None]] = defaultdict(dict)
        """The same segments by each key inside them, in the order in which they were added."""
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
        """Return the segment that ends at a key, if there is one."""
        return self._segments.get(key)

    def find_within(self, key: bytes) -> Segment | None:
        """Return a segment that goes on behind a key, if there is one."""
        return next(reversed(self._beginnings[key]), None) if key in self._beginnings else None

    def take(self, keys: SegmentKeys) -> Segment:
        """Return a new segment in a free block, with one holder."""
        return Segment(keys, heapq.heappop(self._free))

    def release(self, segment: Segment) -> None:
        """Note that a sequence has a segment no longer. If it can be found, it stays until it is evicted or expires.

        Who releases several releases the last one of a sequence first, so that beginnings are the most recently used.
        """
        segment.holders -= 1
        if self._segments.get(segment.keys.end) is segment:
            self._segments.move_to_end(segment.keys.end)
            segment.used_at = self._clock()
        elif not segment.holders:
            heapq.heappush(self._free, segment.block)

    def add(self, segments: Sequence[Segment]) -> list[Segment]:
        """Have segments of a sequence found from now on. Returns those that the sequence has then.

        Where the same tokens were computed twice meanwhile, these are the segments that were there first.
        """
        found = list[Segment]()
        for segment in segments:
            known = self._segments.setdefault(segment.keys.end, segment)
            if known is segment:
                for key in segment.keys.inside:
                    self._beginnings[key][segment] = None
            else:
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
            for inside in segment.keys.inside:
                del self._beginnings[inside][segment]
                if not self._beginnings[inside]:
                    del self._beginnings[inside]
            heapq.heappush(self._free, segment.block)

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
