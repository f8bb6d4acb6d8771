"""Prefixes that have been prefilled: their keys and values in blocks of one pool on the device.

A handle is found again by its key, so whoever scores more items of a query finds the query's work done. Handles are
kept within a budget of blocks, those used last, and for some time. A sequence that is being computed may take any block
that no pinned handle has; for one that is longer than the whole pool, the pool grows. One thread at a time may call.

Work may be let in between two steps of other work, so several handles may be pinned at once, and several sequences be
under way: what the outer work holds is never the inner's. Where the pool has no room for both, it grows for that, too.
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

from model.buckets import Buckets
from model.config import DecoderConfig
from model.forward import Forward
from model.score_buffer import Floats
from model.steps import Extension, Step
from scoring.layout import TokenIds

POOL_CONTEXTS = 16
"""The pool holds this many longest prefixes at most, however large its budget: small models need no gigabyte."""

log = structlog.stdlib.get_logger("engine")


@dataclass(frozen=True, slots=True)
class PoolShape:
    """budget: blocks of the pool, until a longer sequence comes; longest: blocks of the longest sequence."""

    budget: int
    longest: int

    @classmethod
    def of(cls, config: DecoderConfig, context: int, itemsize: int, budget: int, block_tokens: int) -> PoolShape:
        """As many blocks as fit into ``budget`` bytes of values of ``itemsize`` bytes; at least one.

        context: longest sequence that is served, in tokens.
        """
        block_bytes = 2 * config.layers * config.kv_heads * config.head_dim * block_tokens * itemsize
        longest = -(-context // block_tokens)
        return cls(max(1, min(budget // block_bytes, POOL_CONTEXTS * longest)), longest)


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A prefilled prefix. blocks: its own, behind those that it shares with another one; table: int32 [longest], all
    of them; hidden: float32 [width], the state of its last token.
    """

    length: int
    blocks: tuple[int, ...]
    table: TokenIds
    hidden: Floats


@dataclass(slots=True, eq=False)
class Pin:
    """What keeps a handle's blocks from being anybody else's. key: None once it was let go."""

    key: str | None


class Prefixes:
    """The pool's blocks, and the handles that have them.

    timeout: seconds after its last use that a handle is forgotten. prefills: handles made so far; hits: how often one
    was found again; evictions: how many had to go, for want of blocks; expirations: how many were forgotten.
    """

    def __init__(
        self,
        forward: Forward,
        shape: PoolShape,
        buckets: Buckets,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forward = forward
        self._shape = shape
        self._buckets = buckets
        self._free = list(range(forward.blocks))
        self._timeout = timeout
        self._clock = clock
        self._handles: OrderedDict[str, Prefix] = OrderedDict()
        self._used_at: dict[str, float] = {}
        self._pins: list[Pin] = []
        self.prefills = 0
        self.hits = 0
        self.evictions = 0
        self.expirations = 0

    def counts(self) -> dict[str, int]:
        """What has become of handles so far."""
        return {
            "prefills": self.prefills,
            "hits": self.hits,
            "evictions": self.evictions,
            "expirations": self.expirations,
        }

    @contextmanager
    def pinned(self, key: str) -> Iterator[Pin]:
        """While a handle is in use, its blocks are nobody else's; afterwards it is kept if there is room for it."""
        pin = Pin(key)
        self._pins.append(pin)
        try:
            yield pin
        finally:
            self._pins.remove(pin)
            if key in self._handles:
                self._touch(key)
            while self._forward.blocks - len(self._free) > self._shape.budget and self._evict():
                pass

    def find(self, key: str) -> Prefix | None:
        """A handle made earlier and not evicted since."""
        self._expire()
        prefix = self._handles.get(key)
        if prefix is not None:
            self._touch(key)
            self.hits += 1
        return prefix

    def holds(self, key: str) -> bool:
        """Whether it would be found; to look is no use of it."""
        self._expire()
        return key in self._handles

    def keep(self, key: str, prefix: Prefix) -> None:
        """Make a handle findable, until its blocks are wanted."""
        # Of the same query, by work that was let in while this one was prefilled: whoever made it is done with it.
        self._forget(key)
        self._handles[key] = prefix
        self._touch(key)
        self.prefills += 1

    def drop(self, key: str) -> None:
        """Forget a handle that the caller has pinned, if it is still there and nobody else has."""
        if sum(pin.key == key for pin in self._pins) <= 1:
            self._forget(key)

    def give_up(self, blocks: tuple[int, ...]) -> None:
        """Take back blocks that no handle has."""
        self._free.extend(blocks)

    def prefilling(self, tokens: TokenIds, common: int = 0, pin: Pin | None = None) -> Prefilling:
        """Begin to prefill a sequence of at most the context's length: evicts what stands in its way.

        common: how many of its first tokens are those of the handle that the caller has pinned, too: whole blocks of
        them are not computed again.
        """
        blocks = -(-len(tokens) // self._buckets.step)
        shared = None if pin is None or pin.key is None else self._handles.get(pin.key)
        reused = 0 if shared is None else common // self._buckets.step
        if not self._make_room(blocks - reused):
            # Both do not fit: whoever wants the prefix next prefills it again.
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
        return Prefilling(self, self._forward, self._buckets, tokens, own, table, reused * self._buckets.step)

    def _make_room(self, blocks: int) -> bool:
        while len(self._free) < blocks and self._evict():
            pass
        return len(self._free) >= blocks

    def _grow(self, blocks: int) -> None:
        """Have room for a sequence of so many blocks, more than the pool has beside what is in use, and for others."""
        in_use = self._forward.blocks - len(self._free)
        size = max(in_use + blocks, min(2 * self._forward.blocks, self._shape.longest))
        log.info("pool of prefixes grows", blocks=size, before=self._forward.blocks)
        self._free.extend(range(self._forward.blocks, size))
        self._forward.grow_pool(size)

    def _evict(self) -> bool:
        """Forget the handle that was not used for the longest time and is not pinned."""
        pinned = {pin.key for pin in self._pins}
        oldest = next((key for key in self._handles if key not in pinned), None)
        if oldest is not None:
            self._forget(oldest)
            self.evictions += 1
        return oldest is not None

    def _touch(self, key: str) -> None:
        """Note that a handle is used now: the least recently used is always the first."""
        self._handles.move_to_end(key)
        self._used_at[key] = self._clock()

    def _expire(self) -> None:
        """Forget the handles that nobody has used for too long."""
        pinned = {pin.key for pin in self._pins}
        oldest = self._clock() - self._timeout
        for key in [key for key, used_at in self._used_at.items() if used_at < oldest and key not in pinned]:
            self._forget(key)
            self.expirations += 1

    def _forget(self, key: str) -> None:
        if key in self._handles:
            del self._used_at[key]
            self.give_up(self._handles.pop(key).blocks)


class Prefilling:
    """A sequence on its way into the pool, a step at a time. As a context, it leaves no block behind if it fails."""

    def __init__(
        self,
        prefixes: Prefixes,
        forward: Forward,
        buckets: Buckets,
        tokens: TokenIds,
        blocks: tuple[int, ...],
        table: TokenIds,
        done: int,
    ) -> None:
        self._prefixes = prefixes
        self._forward = forward
        self._buckets = buckets
        self._tokens = tokens
        self._blocks = blocks
        self._table = table
        self._done = done
        self._hidden: Array | None = None

    def __enter__(self) -> Prefilling:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._prefixes.give_up(self._blocks)

    def step(self) -> int:
        """Dispatch the next block, wait for the one before; tokens computed, padding included: 0 if none was left."""
        if self._done == len(self._tokens):
            return 0
        size = self._buckets.step
        piece = self._tokens[self._done : self._done + size]
        step = Step.of([Extension(piece, self._done)], self._buckets)
        block = int(self._table[self._done // size])
        self._done += len(piece)
        before = self._hidden
        self._hidden = self._forward.prefill(step, self._table, block, read=self._done == len(self._tokens))
        jax.block_until_ready(before)  # type: ignore[no-untyped-call]
        return len(step.tokens)

    def finished(self) -> Prefix:
        """The handle, after the last step."""
        assert self._hidden is not None
        return Prefix(len(self._tokens), self._blocks, self._table, np.asarray(self._hidden)[0])
