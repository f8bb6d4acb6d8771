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
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import structlog
from jax.typing import DTypeLike

from model.platforms import Platform

MAX_PROGRAMS = 256
"""Programs in the table at most: those of every model, and room for packed sequences and many labels. On a CPU each
takes about 45 (measured) of the 65,530 memory maps that Linux grants a process by default, and the compiler ends the
process when there are no more.
"""

K = TypeVar("K", bound=Hashable)

log = structlog.stdlib.get_logger("engine")


class Source(NamedTuple):
    """What a program is compiled from."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Arrays, or their shapes."""
    donated: tuple[int, ...] = ()
    """Numbers of the arguments whose memory the outputs may take."""


class ExecutableTable(ABC, Generic[K]):
    """Compiled programs by key. Safe to call from several threads.

    check: called with every program before it may be used; it raises an error if the program computes wrong results.
    """

    def __init__(self, platform: Platform, check: Callable[[K, jax.stages.Compiled], None]) -> None:
        self._options = dict(platform.compiler_options)
        self._check = check
        self._lock = threading.Lock()
        self._table: OrderedDict[K, Future[jax.stages.Compiled]] = OrderedDict()

    @abstractmethod
    def source(self, key: K) -> Source:
        """Return the function of a program and the shapes of its arguments."""

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

    def _compile(self, key: K) -> jax.stages.Compiled:
        started = time.perf_counter()
        function, arguments, donated = self.source(key)
        lowered = jax.jit(function, donate_argnums=donated).lower(*arguments)
        executable = lowered.compile(compiler_options=self._options)
        log.debug("compiled", program=str(key), seconds=round(time.perf_counter() - started, 2))
        return executable

    def _evict(self) -> None:
        """Remove the least recently used program that is compiled."""
        oldest = next((key for key, future in self._table.items() if future.done()), None)
        if oldest is not None:
            del self._table[oldest]
            # Otherwise jax would keep it alive. Programs that are still in the table are not affected.
            jax.clear_caches()  # type: ignore[no-untyped-call]
            log.info("program evicted", program=str(oldest))


def int32(*sizes: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument of int32."""
    return array(jnp.int32, *sizes)


def float32(*sizes: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument of float32."""
    return array(jnp.float32, *sizes)


def array(dtype: DTypeLike, *sizes: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument."""
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]
