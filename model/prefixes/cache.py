"""The prefix cache: sequences in use, and the segments of earlier ones, in blocks of one pool on the device.

A query is computed once for many chunks and jobs, and so is what queries of one owner have in common at their
beginning. The most recently used segments are kept, within a budget of blocks and for a limited time. A sequence that
is being computed may take any block that nothing in use has. The pool has a fixed size, with room for at least one
sequence of the greatest length.

Urgent work may preempt other work between two steps. So several sequences can be in use at once. If the pool has no
room for all of them, the urgent work takes the blocks of the others. They are computed again, which changes no bit.
Only one thread at a time may call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import structlog

from model.forward import Forward
from model.prefixes.blocks import Blocks, Segment, SegmentKeys, keys_of
from model.prefixes.pool import PoolShape
from model.prefixes.prefix import PoolContext, Prefix
from model.states import Computed
from scoring.layout import TokenIds

log = structlog.stdlib.get_logger("engine")


class PrefixCache:
    """Sequences in use, and what is kept of them.

    timeout: a segment is removed this many seconds after its last use.
    """

    def __init__(
        self,
        forward: Forward,
        shape: PoolShape,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forward = forward
        self.blocks = Blocks(shape, timeout, clock)
        self._pool = PoolContext(forward, self.blocks, self._take_from_others)
        self._in_use: list[Prefix] = []
        self._prefills = self._shared = self._hits = 0
        self.shared_tokens = 0  # of queries that were not found, and of whose beginning these were

    def counts(self) -> dict[str, int]:
        """Return how many queries were computed, how many of these behind a shared beginning, and how many were found.

        Evictions are segments that were removed for want of blocks, expirations those that were not used for too long.
        """
        blocks = self.blocks
        return {
            "prefills": self._prefills,
            "shared": self._shared,
            "hits": self._hits,
            "evictions": blocks.evictions,
            "expirations": blocks.expirations,
        }

    @contextmanager
    def query(self, owner: str, tokens: TokenIds, adapter: str | None = None) -> Iterator[Prefix]:
        """Have a query in use. Afterwards it is kept if the budget has room for it.

        adapter: that it is computed with, which no other query of this owner may differ in.
        """
        self.blocks.expire()
        prefix = Prefix(self._pool, tokens, self._keys_of(owner, tokens), adapter=adapter)
        try:
            with self._used(prefix):
                yield prefix
        finally:
            if prefix.shared == len(tokens):
                self._hits += 1
            elif prefix.shared is not None:
                self._prefills += 1
                self._shared += prefix.shared > 0
                self.shared_tokens += prefix.shared

    def sequence(
        self, tokens: TokenIds, base: Prefix | None, common: int, read: int = 1, adapter: str | None = None
    ) -> AbstractContextManager[Prefix]:
        """Have a sequence in use that is not kept: its own blocks are free afterwards. See :class:`Prefix`."""
        return self._used(Prefix(self._pool, tokens, base=base, common=common, read=read, adapter=adapter))

    @contextmanager
    def _used(self, prefix: Prefix) -> Iterator[Prefix]:
        self._in_use.append(prefix)
        try:
            yield prefix
        finally:
            self._in_use.remove(prefix)
            prefix.lose()
            self.blocks.make_room(0)

    @property
    def has_states(self) -> bool:
        """See :class:`model.forward.Forward`."""
        return self._forward.has_states

    def has(self, owner: str, tokens: TokenIds) -> bool:
        """Return whether a query is there as a whole."""
        self.blocks.expire()
        found = [self.blocks.find(keys.end) for keys in self._keys_of(owner, tokens)]
        return bool(found) and all(found) and found[-1] is not None and found[-1].hidden is not None

    def drop(self, owner: str, tokens: TokenIds) -> None:
        """Remove what is kept of a query, unless something in use has it."""
        for keys in reversed(self._keys_of(owner, tokens)):
            for key in (keys.end, *reversed(keys.inside)):
                self.blocks.forget(key)

    def _keys_of(self, owner: str, tokens: TokenIds) -> list[SegmentKeys]:
        return keys_of(owner, tokens, self._forward.block_tokens, self._forward.grain)

    def clear(self) -> None:
        """Remove everything that nothing in use has."""
        self.blocks.clear()

    @property
    def budget_tokens(self) -> int:
        """Tokens of sequences, padded to blocks, that the budget has room for."""
        return self.blocks.shape.budget * self._forward.block_tokens

    def obtain(self, prefixes: Sequence[Prefix]) -> Iterator[Computed]:
        """Find several sequences, or compute them in steps that they share. Yields each step.

        They have to fit into the budget together. Where blocks are taken from any of them, by preempting work or for
        another one of them, those that are not complete are computed one after another.
        """
        missing = [prefix for prefix in prefixes if not prefix.find()]
        if len(missing) > 1:
            # A segment may be shared before it is computed, because no step runs once a sequence has lost its blocks.
            computing = dict[bytes, Segment]()
            for prefix in missing:
                prefix.begin(computing)
                computing |= prefix.own
            yield from self._together(missing)
            computed = [prefix for prefix in missing if prefix.is_computed]
            for prefix in missing:
                if prefix in computed:
                    prefix.complete()
                else:
                    prefix.lose()
        for prefix in prefixes:
            if not prefix.is_complete:
                yield from prefix.obtain()

    def _together(self, prefixes: Sequence[Prefix]) -> Iterator[Computed]:
        """Compute several sequences in shared steps, until all are complete or blocks of one are taken.

        A sequence that shares what another one computes comes behind that one, and steps keep the order.
        """
        steps = self._forward.fill([piece for prefix in prefixes for piece in prefix.pieces()])
        while not any(prefix.is_lost for prefix in prefixes) and (step := next(steps, None)) is not None:
            computed = self._forward.run(step)
            for prefix in prefixes:
                prefix.note(step, computed)
            yield computed

    def clean(self) -> None:
        """Forget everything, and leave nothing in the pool that is no number. Who is in use computes it again."""
        for prefix in self._in_use:
            prefix.lose()
        self.blocks.clear()
        self._forward.clean()

    def _take_from_others(self, prefix: Prefix) -> None:
        """Release the blocks of all other sequences in use, and of all that is kept."""
        for other in self._in_use:
            if other is not prefix:
                other.lose()
        self.blocks.evictions += self.blocks.clear()
        log.info("a sequence takes the blocks of all others", blocks=self.blocks.free)
