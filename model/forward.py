"""Steps through the layers: which programs run one after another, over whose weights, and into which blocks.

Calls are only dispatched here: nothing waits for the device, and what is returned is still being computed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from model.buckets import BeforeKey, Buckets, EnterKey, HeadKey, LeaveKey, OwnKey, PackedKey, ProjectKey, StoreKey
from model.executables import Executables
from model.programs import Programs
from model.steps import Step
from scoring.layout import TokenIds


class Forward:
    """A decoder and its pool of prefix blocks on the device. One thread at a time may call.

    blocks: of the pool.
    """

    def __init__(self, programs: Programs, executables: Executables, buckets: Buckets, blocks: int) -> None:
        self._programs = programs
        self._executables = executables
        self._embedding = programs.embedding
        self._layers = programs.layers
        self._head = programs.head
        self._buckets = buckets
        self.blocks = blocks
        self._pool = [self._empty_pool() for _ in programs.layers]
        heads = (buckets.step, programs.config.query_heads)
        self._nothing = (
            jnp.zeros((*heads, programs.config.head_dim), jnp.float32),
            jnp.full(heads, -jnp.inf, jnp.float32),
        )

    def grow_pool(self, blocks: int) -> None:
        """Have a pool of more blocks; what the present ones hold stays. Its programs are compiled when next called."""
        self.blocks = blocks
        for number, parts in enumerate(self._pool):
            self._pool[number] = tuple(
                larger.at[: len(part)].set(part) for larger, part in zip(self._empty_pool(), parts, strict=True)
            )

    def extend(self, step: Step, table: TokenIds) -> Array:
        """Hidden states of a step's extensions at their last tokens: float32 [n, width], the first of which count.

        table: int32 [longest], the blocks of the prefix that all of them continue; anything where they stand alone.
        """
        return self._run(step, table, block=None, read=True)

    def prefill(self, step: Step, table: TokenIds, block: int, *, read: bool) -> Array:
        """Continue a prefix by a step's only extension, and keep its keys and values in a block.

        Where ``read``, returns the hidden state of its last token as :meth:`extend` does; else something to wait for.
        """
        return self._run(step, table, block, read=read)

    def _run(self, step: Step, table: TokenIds, block: int | None, *, read: bool) -> Array:
        # Once, and not with each of some hundred calls.
        blocks, ends, kept, indices = jax.device_put(
            (
                table,
                step.ends,
                None if block is None else np.int32(block),
                [(items.starts, items.slots, items.lengths, items.reads) for items in step.own],
            )
        )
        size, reads = len(step.tokens), self._buckets.reads
        run = self._executables
        project, leave = run[ProjectKey(size)], run[LeaveKey(size)]
        own = [
            (run[OwnKey(items.span.length, items.span.rows, last=False)], starts, slots)
            for items, (starts, slots, _, _) in zip(step.own, indices, strict=True)
        ]
        before = run[BeforeKey(size, self.blocks)] if step.has_prefix else None
        hidden, *rotation = run[EnterKey(size)](*self._embedding, step.tokens, step.positions)
        for number, layer in enumerate(self._layers[:-1]):
            queries, keys, values = project(*layer, hidden, *rotation)
            out, log_sum_exp = self._nothing if before is None else before(queries, *self._pool[number], blocks, ends)
            self._store(number, keys, values, kept)
            for look, starts, slots in own:
                (out,) = look(queries, keys, values, out, log_sum_exp, starts, slots)
            (hidden,) = leave(*layer, hidden, out)
        last, layer = len(self._layers) - 1, self._layers[-1]
        queries, keys, values, hidden = run[ProjectKey(size, reads)](*layer, hidden, *rotation, step.places)
        out, log_sum_exp = self._nothing
        if before is not None and read:
            look = run[BeforeKey(reads, self.blocks)]
            out, log_sum_exp = look(queries, *self._pool[last], blocks, step.ends[step.places])
        self._store(last, keys, values, kept)
        if not read:
            return hidden  # type: ignore[no-any-return]
        for items, (starts, _, lengths, of_reads) in zip(step.own, indices, strict=True):
            look = run[OwnKey(items.span.length, items.span.rows, last=True)]
            (out,) = look(queries, keys, values, out, log_sum_exp, starts, lengths, of_reads)
        (hidden,) = run[LeaveKey(reads)](*layer, hidden, out)
        return hidden  # type: ignore[no-any-return]

    def packed(
        self, key: PackedKey, tokens: TokenIds, positions: TokenIds, ranges: TokenIds, places: TokenIds
    ) -> Array:
        """Hidden states at some places of one sequence that holds prefixes and items of several groups.

        tokens, positions: int32 [T]; ranges: int32 [T, 2, 2], what each token sees; places: int32 [n]. Returns float32
        [n, width].
        """
        run, size, reads = self._executables, key.tokens, key.reads
        project, leave, look = run[ProjectKey(size)], run[LeaveKey(size)], run[PackedKey(size, 0, key.dense)]
        hidden, *rotation = run[EnterKey(size)](*self._embedding, tokens, positions)
        for layer in self._layers[:-1]:
            queries, keys, values = project(*layer, hidden, *rotation)
            (attended,) = look(queries, keys, values, ranges)
            (hidden,) = leave(*layer, hidden, attended)
        layer = self._layers[-1]
        queries, keys, values, hidden = run[ProjectKey(size, reads)](*layer, hidden, *rotation, places)
        (attended,) = run[key](queries, keys, values, ranges[places])
        (found,) = run[LeaveKey(reads)](*layer, hidden, attended)
        return found  # type: ignore[no-any-return]

    def read(self, key: HeadKey, hidden: ArrayLike, labels: ArrayLike) -> tuple[Array, ...]:
        """A head's outputs, float32 [rows, labels] each: see :meth:`model.programs.Programs.read`."""
        outputs: tuple[Array, ...] = self._executables[key](*self._head, hidden, labels)
        return outputs

    def _store(self, layer: int, keys: Array, values: Array, block: Array | None) -> None:
        if block is not None:
            self._pool[layer] = self._executables[StoreKey(self.blocks)](*self._pool[layer], keys, values, block)

    def _empty_pool(self) -> tuple[Array, ...]:
        return tuple(jnp.zeros(part.shape, part.dtype) for part in self._programs.pool(self.blocks))
