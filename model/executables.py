"""The table of compiled programs. A program that is missing is compiled by the thread that needs it first.

Compiling takes seconds for a large model. Threads that need a program that is being compiled wait for it, and no other
thread does.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import structlog
from jax.typing import DTypeLike

from model.buckets import (
    Buckets,
    EmbedKey,
    HeadKey,
    Key,
    OutputMLPKey,
    PackedAttentionKey,
    PrefixAttentionKey,
    QKVKey,
    SelfAttentionKey,
    StoreKey,
)
from model.platforms import Platform
from model.programs import Programs

MAX_PROGRAMS = 256
"""Programs in the table at most: those of every model, and room for packed sequences and many labels. On a CPU each
takes about 45 (measured) of the 65,530 memory maps that Linux grants a process by default, and the compiler ends the
process when there are no more.
"""

K = TypeVar("K", bound=Hashable)
Check = Callable[[Key, jax.stages.Compiled], None]  # raises an error if a program computes wrong results

log = structlog.stdlib.get_logger("engine")


class ExecutableTable(ABC, Generic[K]):
    """Compiled programs by key. Safe to call from several threads.

    check: called with every program before it may be used.
    """

    def __init__(self, check: Callable[[K, jax.stages.Compiled], None]) -> None:
        self._check = check
        self._lock = threading.Lock()
        self._table: OrderedDict[K, Future[jax.stages.Compiled]] = OrderedDict()

    @abstractmethod
    def _compile(self, key: K) -> jax.stages.Compiled:
        """Compile a program."""

    def __getitem__(self, key: K) -> jax.stages.Compiled:
        """Return a program; compile and check it first if that was not done before.

        If either fails, all threads that wait for the program get the error, and the next call tries again.
        """
        with self._lock:
            known = self._table.get(key)
            future = known or self._table.setdefault(key, Future())
            self._table.move_to_end(key)
            if len(self._table) > MAX_PROGRAMS:
                self._evict()
        if known is not None:
            return known.result()
        try:
            executable = self._compile(key)
            self._check(key, executable)
            future.set_result(executable)
        except BaseException as error:
            with self._lock:
                self._table.pop(key, None)
            future.set_exception(error)
            raise
        return future.result()

    def _evict(self) -> None:
        """Remove the least recently used program that is compiled."""
        oldest = next((key for key, future in self._table.items() if future.done()), None)
        if oldest is not None:
            del self._table[oldest]
            # Otherwise jax would keep it alive. Programs that are still in the table are not affected.
            jax.clear_caches()  # type: ignore[no-untyped-call]
            log.info("program evicted", program=str(oldest))


class Executables(ExecutableTable[Key]):
    """The programs of :class:`model.programs.Programs`.

    max_prefix_blocks: blocks of the longest prefix.
    """

    def __init__(
        self, programs: Programs, platform: Platform, buckets: Buckets, max_prefix_blocks: int, check: Check
    ) -> None:
        super().__init__(check)
        self._programs = programs
        self._buckets = buckets
        self._max_prefix_blocks = max_prefix_blocks
        self._dtype = programs.head[1].dtype
        self._options = dict(platform.compiler_options)

    def _compile(self, key: Key) -> jax.stages.Compiled:
        started = time.perf_counter()
        program, arguments = self._program(key)
        donated = (0, 1) if isinstance(key, StoreKey) else ()
        lowered = jax.jit(program, donate_argnums=donated).lower(*arguments)
        executable = lowered.compile(compiler_options=self._options)
        log.debug("compiled", program=str(key), seconds=round(time.perf_counter() - started, 2))
        return executable

    def _program(self, key: Key) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return a program and the shapes of its arguments."""
        programs, config, buckets = self._programs, self._programs.config, self._buckets
        query_heads, kv_heads = (config.query_heads, config.head_dim), (config.kv_heads, config.head_dim)
        half = config.head_dim // 2
        layer = programs.layers[0]

        def hidden(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            return _floats(tokens, config.width), _floats(tokens, half), _floats(tokens, half)

        def attended(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            rows = buckets.padded_rows(tokens)
            return _floats(rows, *query_heads), _floats(rows, config.query_heads)

        def queries(tokens: int) -> jax.ShapeDtypeStruct:
            return _shape(self._dtype, buckets.padded_rows(tokens), *query_heads)

        def key_values(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            return (_shape(self._dtype, buckets.padded_rows(tokens), *kv_heads),) * 2

        match key:
            case EmbedKey(tokens):
                return programs.embed, (*programs.embedding, _ids(tokens), _ids(tokens))
            case QKVKey(tokens, 0):
                return programs.qkv, (*layer, *hidden(tokens))
            case QKVKey(tokens, logit_rows):
                return programs.qkv_for_logits, (*layer, *hidden(tokens), _ids(logit_rows))
            case PrefixAttentionKey(tokens, blocks):
                prefix = (*programs.pool(blocks), _ids(self._max_prefix_blocks))
                return programs.prefix_attention, (queries(tokens), *prefix, _ids(tokens))
            case SelfAttentionKey(length, rows, last):
                program = programs.self_attention_for_logits(length) if last else programs.self_attention(length)
                step = buckets.step_tokens
                indices = (_ids(rows), _ids(rows)) if last else (_ids(step),)
                return program, (queries(step), *key_values(step), *attended(step), _ids(rows), *indices)
            case PackedAttentionKey(tokens, logit_rows, dense):
                rows = logit_rows or tokens
                return programs.packed_attention(dense=dense), (queries(rows), *key_values(tokens), _ids(rows, 2, 2))
            case OutputMLPKey(tokens):
                return programs.output_mlp, (*layer, hidden(tokens)[0], attended(tokens)[0])
            case StoreKey(blocks):
                return programs.store, (
                    *programs.pool(blocks),
                    *key_values(buckets.step_tokens),
                    _ids(buckets.step_blocks),
                )
            case HeadKey(head, rows, labels):
                return programs.lm_head(head), (*programs.head, _floats(rows, config.width), _ids(labels))


def _ids(*sizes: int) -> jax.ShapeDtypeStruct:
    return _shape(jnp.int32, *sizes)


def _floats(*sizes: int) -> jax.ShapeDtypeStruct:
    return _shape(jnp.float32, *sizes)


def _shape(dtype: DTypeLike, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]
