"""The table of compiled programs: ready ones are called at once, others are compiled by who needs them first.

Compiling takes seconds for a large model. Who needs a program that is being compiled waits for it; nobody else does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import structlog
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from model.attention import Attention
from model.buckets import BLOCK_TOKENS, HeadKey, Key, PackedKey, PrefillKey, RowsKey, StoreKey
from model.decoder import Decoder
from model.platforms import attention_for, compiler_options
from model.programs import HEADS, body, store

MOST_PROGRAMS = 96
"""Programs of one table. On a CPU each takes about 450 of the 65,530 memory maps that Linux grants a process by default
(measured), and the compiler ends the process when there are no more.
"""

log = structlog.stdlib.get_logger("engine")


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A pool of prefix blocks. blocks: of the pool; longest: blocks that one prefix may have."""

    blocks: int
    longest: int


class Executables:
    """Compiled programs by key, over one decoder's weights. Safe to call from several threads.

    attention: None for the platform's own.
    """

    def __init__(self, decoder: Decoder, pool: PoolShape, attention: Attention | None = None) -> None:
        platform = jax.devices()[0].platform
        self.config = decoder.config
        self.pool = pool
        self._body = body(decoder, attention or attention_for(platform))
        self._head_kernel = decoder.head_kernel()
        self._dtype = self._head_kernel.dtype
        self._options = compiler_options(platform)
        self._lock = threading.Lock()
        self._table: OrderedDict[Key, Future[jax.stages.Compiled]] = OrderedDict()

    def empty_pool(self) -> tuple[Array, Array]:
        """Keys and values of a pool without content, as programs take them."""
        return tuple(jnp.zeros(shape.shape, shape.dtype) for shape in self._pool_shapes())  # type: ignore[return-value]

    def rows(self, key: RowsKey, *arguments: ArrayLike) -> Array:
        """See :meth:`model.decoder.Body.rows`: pool keys and values, table, tokens, lengths, ends."""
        hidden: Array = self.compiled(key)(*self._body.weights, *arguments)
        return hidden

    def prefill(self, key: PrefillKey, *arguments: ArrayLike) -> tuple[Array, Array, Array]:
        """See :meth:`model.decoder.Body.prefill`: pool keys and values, table, tokens, length, start."""
        outputs: tuple[Array, Array, Array] = self.compiled(key)(*self._body.weights, *arguments)
        return outputs

    def store(self, key: StoreKey, *arguments: ArrayLike) -> tuple[Array, Array]:
        """See :func:`model.programs.store`. The pool that is passed is gone; the returned one has its memory."""
        pool: tuple[Array, Array] = self.compiled(key)(*arguments)
        return pool

    def packed(self, key: PackedKey, *arguments: ArrayLike) -> Array:
        """See :meth:`model.decoder.Body.packed`: tokens, positions, ranges, read."""
        hidden: Array = self.compiled(key)(*self._body.weights, *arguments)
        return hidden

    def head(self, key: HeadKey, hidden: ArrayLike, labels: ArrayLike) -> tuple[Array, ...]:
        """The head's outputs, float32 [rows, labels] each: hidden float32 [rows, W], labels int32 [labels]."""
        outputs: tuple[Array, ...] = self.compiled(key)(self._head_kernel, hidden, labels)
        return outputs

    def compiled(self, key: Key) -> jax.stages.Compiled:
        """The executable, compiled now if it has not been yet. A failure is told to all who waited, and not kept."""
        with self._lock:
            known = self._table.get(key)
            future = known or self._table.setdefault(key, Future())
            self._table.move_to_end(key)
            if len(self._table) > MOST_PROGRAMS:
                self._evict()
        if known is not None:
            return known.result()
        try:
            future.set_result(self._compile(key))
        except BaseException as error:
            with self._lock:
                self._table.pop(key, None)
            future.set_exception(error)
            raise
        return future.result()

    def _evict(self) -> None:
        """Forget the program that was not used for the longest time, of those that are ready."""
        oldest = next((key for key, future in self._table.items() if future.done()), None)
        if oldest is not None:
            del self._table[oldest]
            # Or jax would keep it alive. Programs that are still in the table are not touched by this.
            jax.clear_caches()  # type: ignore[no-untyped-call]
            log.info("program evicted", program=str(oldest))

    def _compile(self, key: Key) -> jax.stages.Compiled:
        weights, width = self._body.weights, self.config.width
        pool, table = self._pool_shapes(), _ids(self.pool.longest)
        program: Callable[..., Any]
        arguments: tuple[Any, ...]
        donated: tuple[int, ...] = ()
        match key:
            case RowsKey(rows, length):
                program = self._body.rows
                arguments = (*weights, *pool, table, _ids(rows, length), _ids(rows), _ids(rows))
            case PrefillKey(tokens):
                program, arguments = self._body.prefill, (*weights, *pool, table, _ids(tokens), _ids(), _ids())
            case StoreKey(tokens):
                outer = pool[0].shape[1:3]
                of_keys, of_values = (*outer, self.config.head_dim, tokens), (*outer, tokens, self.config.head_dim)
                block = (_shape(pool[0].dtype, *of_keys), _shape(pool[1].dtype, *of_values))
                program, arguments, donated = store, (*pool, *block, _ids()), (0, 1)
            case PackedKey(tokens, reads, dense):
                program = self._body.packed_dense if dense else self._body.packed
                arguments = (*weights, _ids(tokens), _ids(tokens), _ids(tokens, 2, 2), _ids(reads))
            case HeadKey(head, rows, labels):
                program, arguments = HEADS[head], (self._head_kernel, _shape(jnp.float32, rows, width), _ids(labels))
        lowered = jax.jit(program, donate_argnums=donated).lower(*arguments)
        return lowered.compile(compiler_options=self._options)

    def _pool_shapes(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        config, blocks = self.config, self.pool.blocks
        dtype = jnp.uint16 if self._dtype == jnp.bfloat16 else self._dtype
        outer = (blocks, config.layers, config.kv_heads)
        return (
            _shape(dtype, *outer, config.head_dim, BLOCK_TOKENS),
            _shape(dtype, *outer, BLOCK_TOKENS, config.head_dim),
        )


def _ids(*sizes: int) -> jax.ShapeDtypeStruct:
    return _shape(jnp.int32, *sizes)


def _shape(dtype: DTypeLike, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]
