"""The prefix cache: keys and values of prefilled prefixes, in blocks of one pool on the device.

A prefix is found again by its key, so a query is computed once for many chunks and jobs. The most recently used
prefixes are kept, within a budget of blocks and for a limited time. A sequence that is being computed may take any
block that no pinned prefix has. If a sequence is longer than the whole pool, the pool grows.

Urgent work may preempt other work between two steps. So several prefixes can be pinned and several sequences be under
computation at once. The urgent work never takes the blocks of the work that it preempts. If the pool has no room for
both, it grows. Only one thread at a time may call.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax
import numpy as np
import structlog
from jax import Array

from model.config import DecoderConfig
from model.forward import Extension, Forward
from model.score_buffer import Floats
from scoring.layout import TokenIds

POOL_CONTEXTS = 16
"""How many prefixes of the greatest length the pool has room for at most, whatever its budget: a small model needs no
gigabyte."""

log = structlog.stdlib.get_logger("engine")


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The size of a pool, in blocks."""

    budget: int  # size of the pool, until it grows for a longer sequence
    longest: int  # blocks of the longest sequence that is served

    @classmethod
    def of(cls, config: DecoderConfig, context: int, itemsize: int, budget: int, block_tokens: int) -> PoolShape:
        """Return as many blocks as fit into ``budget`` bytes, and at least one.

        context: tokens of the longest sequence that is served; itemsize: bytes of a number.
        """
        block_bytes = 2 * config.layers * config.kv_heads * config.head_dim * block_tokens * itemsize
        longest = -(-context // block_tokens)
        return cls(max(1, min(budget // block_bytes, POOL_CONTEXTS * longest)), longest)


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    """A prefilled prefix."""

    length: int  # tokens
    blocks: tuple[int, ...]  # its own, without those that it shares with another prefix
    table: TokenIds  # all of its blocks in order, int32 [longest]
    hidden: Floats  # final hidden state of its last token, [width]


@dataclass(slots=True, eq=False)
class Pin:
    """Protects the blocks of a prefix from eviction."""

    key: str | None  # None once the protection was given up


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
        self._free = list(range(forward.blocks))
        self._timeout = timeout
        self._clock = clock
        self._prefixes: OrderedDict[str, CachedPrefix] = OrderedDict()  # the least recently used first
        self._used_at: dict[str, float] = {}
        self._pins: list[Pin] = []
        self._counts = dict.fromkeys(("prefills", "hits", "evictions", "expirations"), 0)

    def counts(self) -> dict[str, int]:
        """Return how many prefixes were added, found, removed for want of blocks, and removed after the timeout."""
        return self._counts.copy()

    @contextmanager
    def pinned(self, key: str) -> Iterator[Pin]:
        """Protect the blocks of a prefix while it is in use. Afterwards it is kept if the budget has room for it."""
        pin = Pin(key)
        self._pins.append(pin)
        try:
            yield pin
        finally:
            self._pins.remove(pin)
            if key in self._prefixes:
                self._touch(key)
            while self._forward.blocks - len(self._free) > self._shape.budget and self._evict():
                pass

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
        """Make a prefix available under its key."""
        # Preempting work may have added the same prefix while this one was prefilled. It has finished with it by now.
        self._remove(key)
        self._prefixes[key] = prefix
        self._touch(key)
        self._counts["prefills"] += 1

    def drop(self, key: str) -> None:
        """Remove a prefix that the caller has pinned, unless it is pinned by others, too."""
        if sum(pin.key == key for pin in self._pins) <= 1:
            self._remove(key)

    def release(self, blocks: tuple[int, ...]) -> None:
        """Take back blocks that belong to no prefix in the cache."""
        self._free.extend(blocks)

    def prefill(self, tokens: TokenIds, common: int = 0, pin: Pin | None = None) -> Prefill:
        """Begin to prefill a sequence, at most as long as the context. Evicts prefixes to make room.

        common: how many of its first tokens are also those of the prefix pinned by ``pin``; whole blocks of them are
        shared and not computed again.
        """
        blocks = -(-len(tokens) // self._forward.block_tokens)
        shared = None if pin is None or pin.key is None else self._prefixes.get(pin.key)
        reused = 0 if shared is None else common // self._forward.block_tokens
        if not self._make_room(blocks - reused):
            # There is no room for both. The pinned prefix goes; who needs it next prefills it again.
            shared, reused = None, 0
            if pin is not None:
                pin.key = None
            if not self._make_room(blocks):
                self._grow(blocks)
        table = np.zeros(self._shape.longest, np.int32)
        if shared is not None:
            table[:reused] = shared.table[:reused]
        own = tuple(self._free.pop() for _ in range(blocks - reused))
        table[reused:blocks] = own
        return Prefill(self, tokens, own, table, reused * self._forward.block_tokens)

    def _make_room(self, blocks: int) -> bool:
        while len(self._free) < blocks and self._evict():
            pass
        return len(self._free) >= blocks

    def _grow(self, blocks: int) -> None:
        """Enlarge the pool, so that it has room for a sequence of ``blocks`` blocks beside those that are in use."""
        in_use = self._forward.blocks - len(self._free)
        size = max(in_use + blocks, min(2 * self._forward.blocks, self._shape.longest))
        log.info("pool of prefixes grows", blocks=size, before=self._forward.blocks)
        self._free.extend(range(self._forward.blocks, size))
        self._forward.grow_pool(size)

    def _evict(self) -> bool:
        """Remove the least recently used prefix that is not pinned. Returns whether there was one."""
        pinned = {pin.key for pin in self._pins}
        oldest = next((key for key in self._prefixes if key not in pinned), None)
        if oldest is not None:
            self._remove(oldest)
            self._counts["evictions"] += 1
        return oldest is not None

    def _touch(self, key: str) -> None:
        self._prefixes.move_to_end(key)
        self._used_at[key] = self._clock()

    def _expire(self) -> None:
        pinned = {pin.key for pin in self._pins}
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

    def __init__(
        self, cache: PrefixCache, tokens: TokenIds, blocks: tuple[int, ...], table: TokenIds, done: int
    ) -> None:
        self._cache = cache
        self._forward = cache._forward
        self._tokens = tokens
        self._blocks = blocks
        self._table = table
        self._done = done  # tokens
        self._states: Array | None = None

    def __enter__(self) -> Prefill:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._cache.release(self._blocks)

    def step(self) -> int:
        """Dispatch the next block, and wait for the one before it.

        Returns the tokens of the step, padding included, or 0 if the sequence was complete.
        """
        if self._done == len(self._tokens):
            return 0
        size = self._forward.block_tokens
        start, stop = self._done, min(self._done + size, len(self._tokens))
        blocks = self._table[start // size : -(-stop // size)]
        is_last = stop == len(self._tokens)
        piece = Extension(self._tokens[start:stop], start, None, self._table, blocks, scored=is_last)
        before, self._done = self._states, stop
        computed = self._forward.run([piece])
        self._states = computed.states
        jax.block_until_ready(before)  # type: ignore[no-untyped-call]
        return computed.tokens

    def finished(self) -> CachedPrefix:
        """Return the prefix, after the last step."""
        assert self._states is not None
        return CachedPrefix(len(self._tokens), self._blocks, self._table, np.asarray(self._states)[0])
