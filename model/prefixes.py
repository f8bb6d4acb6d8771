"""Prefixes that have been prefilled: their keys and values in blocks of one pool on the device.

A handle is found again by its key, so whoever scores more items of a query finds the query's work done. Blocks are
taken from the least recently used handles when they run out. One thread at a time may call.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jax import Array

from model.buckets import BLOCK_TOKENS, PrefillKey, StoreKey, prefill_tokens
from model.config import DecoderConfig
from model.executables import Executables, PoolShape
from scoring.layout import TokenIds

Floats = npt.NDArray[np.float32]

POOL_CONTEXTS = 16
"""The pool holds this many longest prefixes at most, however large its budget: small models need no gigabyte."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A prefilled prefix. table: int32 [longest], the blocks; hidden: float32 [width], the final state of its last
    token.
    """

    length: int
    blocks: tuple[int, ...]
    table: TokenIds
    hidden: Floats


def pool_shape(config: DecoderConfig, context: int, itemsize: int, budget: int) -> PoolShape:
    """As many blocks as fit into ``budget`` bytes of values of ``itemsize`` bytes; at least one.

    context: longest sequence that is served, in tokens.
    """
    block_bytes = 2 * config.layers * config.kv_heads * config.head_dim * BLOCK_TOKENS * itemsize
    context_blocks = -(-context // BLOCK_TOKENS)
    blocks = max(1, min(budget // block_bytes, POOL_CONTEXTS * context_blocks))
    return PoolShape(blocks, min(blocks, context_blocks))


class Prefixes:
    """The pool and the handles into it."""

    def __init__(self, executables: Executables) -> None:
        self._executables = executables
        self._longest = executables.pool.longest
        self._free = list(range(executables.pool.blocks))
        self._handles: OrderedDict[str, Prefix] = OrderedDict()
        self.pool: tuple[Array, Array] = executables.empty_pool()

    def find(self, key: str) -> Prefix | None:
        """A handle made earlier and not evicted since."""
        prefix = self._handles.get(key)
        if prefix is not None:
            self._handles.move_to_end(key)
        return prefix

    def prefilling(self, tokens: TokenIds) -> Prefilling:
        """Begin to prefill a prefix, which must fit into the longest table: evicts what stands in its way."""
        count = -(-len(tokens) // BLOCK_TOKENS)
        while len(self._free) < count:
            _, evicted = self._handles.popitem(last=False)
            self._free.extend(evicted.blocks)
        blocks = tuple(self._free.pop() for _ in range(count))
        table = np.zeros(self._longest, np.int32)
        table[:count] = blocks
        return Prefilling(self, tokens, blocks, table)

    def keep(self, key: str, prefix: Prefix) -> None:
        """Make a handle findable, until its blocks are wanted."""
        self._handles[key] = prefix

    def drop(self, key: str) -> None:
        """Forget a handle."""
        self._free.extend(self._handles.pop(key).blocks)

    def give_up(self, blocks: tuple[int, ...]) -> None:
        """Take back blocks that no handle has."""
        self._free.extend(blocks)

    def run_chunk(self, chunk: TokenIds, size: int, start: int, table: TokenIds, block: int) -> Floats:
        """Prefill a block, or as much of it as there is, in a program of ``size`` tokens; the state of the last one."""
        tokens = np.zeros(size, np.int32)
        tokens[: len(chunk)] = chunk
        hidden, keys, values = self._executables.prefill(
            PrefillKey(size), *self.pool, table, tokens, np.int32(len(chunk)), np.int32(start)
        )
        self.pool = self._executables.store(StoreKey(size), *self.pool, keys, values, np.int32(block))
        return np.asarray(hidden)


class Prefilling:
    """A prefix on its way into the pool, a step at a time. Used as a context, it leaves no block behind if it fails."""

    def __init__(self, prefixes: Prefixes, tokens: TokenIds, blocks: tuple[int, ...], table: TokenIds) -> None:
        self._prefixes = prefixes
        self._tokens = tokens
        self._blocks = blocks
        self._table = table
        self._done = 0
        self._hidden: Floats | None = None

    def __enter__(self) -> Prefilling:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._prefixes.give_up(self._blocks)

    def step(self) -> int:
        """Prefill the next block; how many tokens were computed, padding included: 0 if there was nothing left."""
        if self._done == len(self._tokens):
            return 0
        size = prefill_tokens(len(self._tokens) - self._done)
        chunk = self._tokens[self._done : self._done + size]
        block = self._blocks[self._done // BLOCK_TOKENS]
        self._hidden = self._prefixes.run_chunk(chunk, size, self._done, self._table, block)
        self._done += len(chunk)
        return size

    def finished(self) -> Prefix:
        """The handle, after the last step."""
        assert self._hidden is not None
        return Prefix(len(self._tokens), self._blocks, self._table, self._hidden)
