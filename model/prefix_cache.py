"""The prefix cache: keys and values of prefilled prefixes, in blocks of one pool on the device.

A prefix is found again by its key, so a query is computed once for many chunks and jobs. The most recently used
prefixes are kept, within a budget of blocks and for a limited time. A sequence that is being computed may take any
block that no pinned prefix has. The pool has a fixed size, with room for at least one sequence of the greatest length.

Urgent work may preempt other work between two steps. So several prefixes can be pinned and several sequences be under
computation at once. If the pool has no room for both, the urgent work takes the blocks of the work that it preempts.
That work then computes them again, which changes no bit. Only one thread at a time may call.
"""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import jax
import numpy as np
import structlog
from jax import Array

from model.forward import Computed, Extension, Forward
from model.pool import PoolShape
from model.score_buffer import Floats
from scoring.layout import TokenIds

log = structlog.stdlib.get_logger("engine")


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    """A prefilled prefix."""

    blocks: tuple[int, ...]  # its own, without those that it shares with another prefix
    table: TokenIds  # all of its blocks in order, int32 [longest]
    hidden: Floats  # final hidden state of its last token, [width]


class Pin:
    """A prefix in use, which protects its blocks from eviction, except by work that preempts this work."""

    def __init__(self, cache: PrefixCache, key: str, tokens: TokenIds) -> None:
        self._cache = cache
        self.key = key
        self.tokens = tokens
        self.prefix: CachedPrefix | None = None  # until it is obtained, and again once its blocks were taken
        self.hidden: Floats | None = None  # once it was obtained: the final hidden state of its last token, [width]

    def obtain(self) -> Iterator[int]:
        """Find the prefix in the cache, or prefill it. Yields the tokens that each step has computed.

        Its blocks may be taken again when it is obtained and the last tokens are yielded.
        """
        if self.found():
            return
        with self._cache.prefill(self.tokens) as prefill:
            yield from prefill.steps()
            self.add(prefill.finished())
        if prefill.uncounted:
            yield prefill.uncounted

    def found(self) -> bool:
        """Find the prefix in the cache. Returns whether it is there."""
        found = self._cache.find(self.key)
        if found is not None:
            self.prefix, self.hidden = found, found.hidden
        return found is not None

    def add(self, prefix: CachedPrefix) -> None:
        """Add the prefix to the cache."""
        self._cache.add(self.key, prefix)
        self.prefix, self.hidden = prefix, prefix.hidden


class PrefixCache:
    """The blocks of the pool, and the prefixes that have them.

    timeout: a prefix is removed this many seconds after its last use.
    """

    def __init__(
        self,
        forward: Forward,
        shape: PoolShape,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forward = forward
        self._shape = shape
        self._free = list(range(shape.blocks))  # a heap: the lowest are used first, and others may never be touched
        self._timeout = timeout
        self._clock = clock
        self._prefixes: OrderedDict[str, CachedPrefix] = OrderedDict()  # the least recently used first
        self._used_at: dict[str, float] = {}
        self._pins: list[Pin] = []
        self._prefills: list[Prefill] = []  # those that are under computation
        self._counts = dict.fromkeys(("prefills", "hits", "evictions", "expirations"), 0)

    def counts(self) -> dict[str, int]:
        """Return how many prefixes were added, found, removed for want of blocks, and removed after the timeout."""
        return self._counts.copy()

    @contextmanager
    def pinned(self, key: str, tokens: TokenIds) -> Iterator[Pin]:
        """Protect the blocks of a prefix while it is in use. Afterwards it is kept if the budget has room for it."""
        pin = Pin(self, key, tokens)
        self._pins.append(pin)
        try:
            yield pin
        finally:
            self._pins.remove(pin)
            if key in self._prefixes:
                self._touch(key)
            while self._used > self._shape.budget and self._evict():
                pass

    @property
    def _used(self) -> int:
        """Blocks that are not free."""
        return self._shape.blocks - len(self._free)

    def find(self, key: str) -> CachedPrefix | None:
        """Return a prefix that is in the cache, and count the hit."""
        self._expire()
        prefix = self._prefixes.get(key)
        if prefix is not None:
            self._touch(key)
            self._counts["hits"] += 1
        return prefix

    def __contains__(self, key: str) -> bool:
        self._expire()
        return key in self._prefixes

    def add(self, key: str, prefix: CachedPrefix) -> None:
        """Make a prefix available under its key, which the caller has pinned."""
        # Preempting work may have added the same prefix while this one was prefilled. It has finished with it by now.
        self._remove(key)
        self._prefixes[key] = prefix
        self._touch(key)
        self._counts["prefills"] += 1

    def drop(self, key: str) -> None:
        """Remove a prefix that the caller has pinned, unless it is pinned by others, too."""
        if sum(pin.key == key and pin.prefix is not None for pin in self._pins) <= 1:
            self._remove(key)

    def release(self, blocks: tuple[int, ...]) -> None:
        """Take back blocks that belong to no prefix in the cache."""
        for block in blocks:
            heapq.heappush(self._free, block)

    def prefill(self, tokens: TokenIds, common: int = 0, pin: Pin | None = None) -> Prefill:
        """Begin to prefill a sequence, at most as long as the context. Evicts prefixes to make room.

        common: how many of its first tokens are also those of the prefix pinned by ``pin``; whole steps of them are
        shared and not computed again.
        """
        return Prefill(self, tokens, common, pin)

    @property
    def budget_tokens(self) -> int:
        """Tokens of prefixes, padded to blocks, that can be in use together."""
        return self._shape.budget * self._forward.block_tokens

    def obtain(self, pins: Sequence[Pin]) -> Iterator[int]:
        """Find several pinned prefixes, or prefill them in steps that they share. Yields the tokens of each step.

        They have to fit into the budget together. Where preempting work takes their blocks, the rest is prefilled one
        after another.
        """
        missing = [pin for pin in pins if not pin.found()]
        if len(missing) > 1:
            with ExitStack() as stack:
                prefills = [stack.enter_context(self.prefill(pin.tokens)) for pin in missing]
                yield from self._together(prefills)
                for pin, prefill in zip(missing, prefills, strict=True):
                    if not prefill.is_lost:
                        pin.add(prefill.finished())
        for pin in pins:
            if pin.prefix is None:
                yield from pin.obtain()

    def _together(self, prefills: Sequence[Prefill]) -> Iterator[int]:
        """Compute several sequences in shared steps, until all are complete or their blocks are taken."""
        before: Array | None = None
        steps = self._forward.fill([piece for prefill in prefills for piece in prefill.pieces()])
        while not any(prefill.is_lost for prefill in prefills) and (step := next(steps, None)) is not None:
            computed = self._forward.run(step)
            for prefill in prefills:
                prefill.note(step, computed)
            jax.block_until_ready(before)  # type: ignore[no-untyped-call]
            before = computed.states
            yield computed.tokens

    def _allocate(self, tokens: int, common: int, pin: Pin | None) -> tuple[tuple[int, ...], TokenIds, int]:
        """Return blocks for a sequence, its table, and how many of its first tokens it shares with a pinned prefix."""
        size, step = self._forward.block_tokens, self._forward.shapes.step_tokens
        blocks = -(-tokens // size)
        shared = None if pin is None else pin.prefix
        # A sequence is cut into steps at the same places whatever it shares, so its bits are the same.
        reused = 0 if shared is None else common // step * step // size
        if not self._make_room(blocks - reused):
            # There is no room for both. The pinned prefix goes; who needs it next prefills it again.
            shared, reused = None, 0
            if pin is not None:
                pin.prefix = None
            if not self._make_room(blocks):
                self._take_from_preempted()
                self._make_room(blocks)
        table = np.zeros(self._shape.longest, np.int32)
        if shared is not None:
            table[:reused] = shared.table[:reused]
        own = tuple(heapq.heappop(self._free) for _ in range(blocks - reused))
        table[reused:blocks] = own
        return own, table, reused * size

    def _make_room(self, blocks: int) -> bool:
        """Evict prefixes that would take the used blocks past the budget. Returns whether ``blocks`` are free."""
        while self._used + blocks > self._shape.budget and self._evict():
            pass
        return len(self._free) >= blocks

    def _take_from_preempted(self) -> None:
        """Release the blocks of all work that was preempted: pinned prefixes, and sequences under computation."""
        for pin in self._pins:
            pin.prefix = None
        for prefill in self._prefills:
            prefill.lose()
        while self._evict():
            pass
        log.info("preempting work takes the blocks of prefixes", blocks=len(self._free))

    def _evict(self) -> bool:
        """Remove the least recently used prefix that is not pinned. Returns whether there was one."""
        pinned = {pin.key for pin in self._pins if pin.prefix is not None}
        oldest = next((key for key in self._prefixes if key not in pinned), None)
        if oldest is not None:
            self._remove(oldest)
            self._counts["evictions"] += 1
        return oldest is not None

    def _touch(self, key: str) -> None:
        self._prefixes.move_to_end(key)
        self._used_at[key] = self._clock()

    def _expire(self) -> None:
        pinned = {pin.key for pin in self._pins if pin.prefix is not None}
        oldest = self._clock() - self._timeout
        for key in [key for key, used_at in self._used_at.items() if used_at < oldest and key not in pinned]:
            self._remove(key)
            self._counts["expirations"] += 1

    def _remove(self, key: str) -> None:
        if key in self._prefixes:
            del self._used_at[key]
            self.release(self._prefixes.pop(key).blocks)


class Prefill:
    """The prefill of one sequence, a step at a time. As a context manager, it releases its blocks if it fails."""

    def __init__(self, cache: PrefixCache, tokens: TokenIds, common: int, pin: Pin | None) -> None:
        self._cache = cache
        self._forward = cache._forward
        self._tokens = tokens
        self._shared = common, pin
        self._states: Array | None = None
        self._index = 0  # of the last token's state
        self._lost = False
        self.uncounted = 0  # tokens of steps that were not yielded
        self._blocks: tuple[int, ...]  # its own, without those that it shares with another prefix
        self._blocks, self._table, self._done = cache._allocate(len(tokens), common, pin)

    def __enter__(self) -> Prefill:
        self._cache._prefills.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._cache._prefills.remove(self)
        if kind is not None:
            self._cache.release(self._blocks)

    def steps(self) -> Iterator[int]:
        """Compute all steps. Yields the tokens of each, padding included.

        Once its blocks were taken, it computes the rest without a pause, so that it comes to an end even if it is
        preempted at every pause.
        """
        while self._lost or self._done < len(self._tokens):
            again = self._lost
            if again:
                self._blocks, self._table, self._done = self._cache._allocate(len(self._tokens), *self._shared)
                self._lost = False
            computed = self._step()
            while again and self._done < len(self._tokens):
                computed += self._step()
            if again:
                self.uncounted += computed
            else:
                yield computed

    @property
    def is_lost(self) -> bool:
        """Whether its blocks were taken."""
        return self._lost

    def pieces(self) -> list[Extension]:
        """Return all that is left to compute, a block at a time."""
        size, length = self._forward.block_tokens, len(self._tokens)
        starts = range(self._done, length, size)
        return [
            Extension(self._tokens[start : start + size], start, None, self._table, self._table[start // size :][:1])
            for start in starts
        ]

    def note(self, step: Sequence[Extension], computed: Computed) -> None:
        """Take notice of a step that may hold the last one of the pieces."""
        for index, piece in enumerate(step):
            if piece.table is self._table and piece.start + len(piece.tokens) == len(self._tokens):
                self._states, self._index, self._done = computed.states, index, len(self._tokens)

    def _step(self) -> int:
        """Dispatch the next step, and wait for the one before it. Returns the tokens of the step."""
        size = self._forward.block_tokens
        start, stop = self._done, min(self._done + self._forward.shapes.step_tokens, len(self._tokens))
        blocks = self._table[start // size : -(-stop // size)]
        is_last = stop == len(self._tokens)
        piece = Extension(self._tokens[start:stop], start, None, self._table, blocks, scored=is_last)
        before, self._done = self._states, stop
        computed = self._forward.run([piece])
        self._states = computed.states
        jax.block_until_ready(before)  # type: ignore[no-untyped-call]
        return computed.tokens

    def lose(self) -> None:
        """Release the blocks. The next step begins again."""
        self._cache.release(self._blocks)
        self._blocks, self._lost = (), True

    def finished(self) -> CachedPrefix:
        """Return the prefix, after the last step."""
        assert self._states is not None
        return CachedPrefix(self._blocks, self._table, np.asarray(self._states)[self._index])
