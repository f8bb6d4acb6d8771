"""The table of compiled programs: ready ones are called at once, others are compiled by who needs them first.

Compiling takes seconds for a large model. Who needs a program that is being compiled waits for it; nobody else does.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import structlog
from jax.typing import DTypeLike

from model.buckets import (
    BeforeKey,
    Buckets,
    EnterKey,
    HeadKey,
    Key,
    LeaveKey,
    OwnKey,
    PackedKey,
    ProjectKey,
    StoreKey,
)
from model.platforms import compiler_options
from model.programs import Programs

MOST_PROGRAMS = 256
"""Programs of one table: those that every model has, and room for what packed sequences and many labels add. On a CPU
each takes about 45 of the 65,530 memory maps that Linux grants a process by default (measured), and the compiler ends
the process when there are no more.
"""

Check = Callable[[Key, jax.stages.Compiled], None]
"""Raises if a program computes something else than it should."""

log = structlog.stdlib.get_logger("engine")


class Executables:
    """Compiled programs by key. Safe to call from several threads.

    longest: blocks that one prefix may have; check: called with every program before anyone may use it.
    """

    def __init__(self, programs: Programs, buckets: Buckets, longest: int, check: Check) -> None:
        self._programs = programs
        self._buckets = buckets
        self._longest = longest
        self._check = check
        self._dtype = programs.head[1].dtype
        self._options = compiler_options(jax.devices()[0].platform)
        self._lock = threading.Lock()
        self._table: OrderedDict[Key, Future[jax.stages.Compiled]] = OrderedDict()

    def __getitem__(self, key: Key) -> jax.stages.Compiled:
        """The executable, compiled and checked now if it has not been yet.

        A failure of either is told to all who waited, and not kept.
        """
        with self._lock:
            known = self._table.get(key)
            future = known or self._table.setdefault(key, Future())
            self._table.move_to_end(key)
            if len(self._table) > MOST_PROGRAMS:
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
        """Forget the program that was not used for the longest time, of those that are ready."""
        oldest = next((key for key, future in self._table.items() if future.done()), None)
        if oldest is not None:
            del self._table[oldest]
            # Or jax would keep it alive. Programs that are still in the table are not touched by this.
            jax.clear_caches()  # type: ignore[no-untyped-call]
            log.info("program evicted", program=str(oldest))

    def _compile(self, key: Key) -> jax.stages.Compiled:
        started = time.perf_counter()
        program, arguments = self._program(key)
        donated = (0, 1) if isinstance(key, StoreKey) else ()
        lowered = jax.jit(program, donate_argnums=donated).lower(*arguments)
        executable = lowered.compile(compiler_options=self._options)
        log.debug("compiled", program=str(key), seconds=round(time.perf_counter() - started, 2))
        return executable

    def _program(self, key: Key) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A program and the shapes of its arguments."""
        programs, config, buckets = self._programs, self._programs.config, self._buckets
        heads, kv_heads, half = (
            (config.query_heads, config.head_dim),
            (config.kv_heads, config.head_dim),
            config.head_dim // 2,
        )
        layer = programs.layers[0]

        def step(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            return _floats(tokens, config.width), _floats(tokens, half), _floats(tokens, half)

        def seen(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            return _floats(buckets.interface(tokens), *heads), _floats(buckets.interface(tokens), config.query_heads)

        def queries(tokens: int) -> jax.ShapeDtypeStruct:
            return _shape(self._dtype, buckets.interface(tokens), *heads)

        def key_values(tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
            return (_shape(self._dtype, buckets.interface(tokens), *kv_heads),) * 2

        match key:
            case EnterKey(tokens):
                return programs.enter, (*programs.embedding, _ids(tokens), _ids(tokens))
            case ProjectKey(tokens, 0):
                return programs.project, (*layer, *step(tokens))
            case ProjectKey(tokens, reads):
                return programs.project_read, (*layer, *step(tokens), _ids(reads))
            case BeforeKey(tokens, blocks):
                return programs.before, (
                    queries(tokens),
                    *self._programs.pool(blocks),
                    _ids(self._longest),
                    _ids(tokens),
                )
            case OwnKey(span, rows, last):
                own = programs.own_last(span) if last else programs.own(span)
                whole = buckets.step
                indices = (_ids(rows), _ids(rows)) if last else (_ids(whole),)
                return own, (queries(whole), *key_values(whole), *seen(whole), _ids(rows), *indices)
            case PackedKey(tokens, reads, dense):
                looking = reads or tokens
                return programs.packed(dense=dense), (queries(looking), *key_values(tokens), _ids(looking, 2, 2))
            case LeaveKey(tokens):
                return programs.leave, (*layer, step(tokens)[0], seen(tokens)[0])
            case StoreKey(blocks):
                return programs.store, (*self._programs.pool(blocks), *key_values(buckets.step), _ids())
            case HeadKey(head, rows, labels):
                return programs.read(head), (*programs.head, _floats(rows, config.width), _ids(labels))


def _ids(*sizes: int) -> jax.ShapeDtypeStruct:
    return _shape(jnp.int32, *sizes)


def _floats(*sizes: int) -> jax.ShapeDtypeStruct:
    return _shape(jnp.float32, *sizes)


def _shape(dtype: DTypeLike, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]
