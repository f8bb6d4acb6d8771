"""The table of compiled programs: ready ones are called at once, others are compiled by who needs them first.

Compiling takes seconds for a large model. Who needs a program that is being compiled waits for it; nobody else does.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from model.buckets import BodyKey, HeadKey, Key
from model.decoder import Decoder
from model.programs import HEADS, body

COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {"cpu": {"xla_backend_optimization_level": "1"}}
"""By platform. On a CPU: a third less time to compile, and no slower (the products are library calls)."""


class Executables:
    """Compiled programs by key, over one decoder's weights. Safe to call from several threads."""

    def __init__(self, decoder: Decoder) -> None:
        self._body = body(decoder)
        self._head_kernel = decoder.head_kernel()
        self._width = decoder.config.width
        self._options = COMPILER_OPTIONS.get(jax.devices()[0].platform, {})
        self._lock = threading.Lock()
        self._table: dict[Key, Future[jax.stages.Compiled]] = {}

    def body(self, key: BodyKey, tokens: ArrayLike, last: ArrayLike) -> Array:
        """Hidden states at the scoring positions: tokens int32 [rows, length], last int32 [rows]; float32 [rows, W]."""
        hidden: Array = self.compiled(key)(*self._body.weights, tokens, last)
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
        if known is not None:
            return known.result()
        try:
            future.set_result(self._compile(key))
        except BaseException as error:
            with self._lock:
                del self._table[key]
            future.set_exception(error)
            raise
        return future.result()

    def _compile(self, key: Key) -> jax.stages.Compiled:
        if isinstance(key, BodyKey):
            shapes = (_shape(jnp.int32, key.rows, key.length), _shape(jnp.int32, key.rows))
            lowered = jax.jit(self._body.run).lower(*self._body.weights, *shapes)
        else:
            hidden = _shape(jnp.float32, key.rows, self._width)
            lowered = jax.jit(HEADS[key.head]).lower(self._head_kernel, hidden, _shape(jnp.int32, key.labels))
        return lowered.compile(compiler_options=self._options)


def _shape(dtype: DTypeLike, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]
