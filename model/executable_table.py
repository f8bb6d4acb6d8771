"""The table of compiled programs. A program that is missing is compiled by the thread that needs it first.

Compiling takes seconds for a large model. Threads that need a program that is being compiled wait for it, and no other
thread does.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast

import jax
import structlog

from model.platforms import Platform
from model.programs.kind import ProgramKey

MAX_PROGRAMS = 256
"""Programs in the table at most: those of every model, and room for packed sequences and many labels. On a CPU each
takes about 45 (measured) of the 65,530 memory maps that Linux grants a process by default, and the compiler ends the
process when there are no more.
"""

MAX_SHELVED = 768
"""Programs of a shelf, of all shapes together, from which on those of other shapes are dropped; and of adapters, from
which on those of adapters that are gone are. See MAX_PROGRAMS."""

D = TypeVar("D")

Shared = MutableMapping[ProgramKey[Any], jax.stages.Compiled]
"""Programs that are compiled and checked, for all models of one shape."""

log = structlog.stdlib.get_logger("engine")


class SerializedProgram:
    """A program of several chips.

    Where two threads call programs, all chips must begin them in the same order: else some wait in one program, and the
    others in another, for each other.
    """

    def __init__(self, program: jax.stages.Compiled, lock: threading.Lock) -> None:
        self._program, self._lock = program, lock
        self.as_text = program.as_text

    def __call__(self, *arguments: Any) -> Any:
        with self._lock:
            return self._program(*arguments)


class ProgramShelf:
    """The programs of models that a process has loaded, so that another model of the same shape need not compile them.

    Programs take weights as arguments, and have been checked with those of the first model. For one thread.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[object, Shared] = OrderedDict()
        self.checked: set[object] = set()
        """Which models were compared with NumPy as a whole: configuration, shapes of steps, and fingerprint."""

    def of(self, shape: object) -> Shared:
        """Return the programs of a shape, which is all that programs are compiled for."""
        found = self._kept.setdefault(shape, {})
        self._kept.move_to_end(shape)
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MAX_SHELVED:
            self._kept.popitem(last=False)
        return found


class ExecutableTable(Generic[D]):
    """Compiled programs of a decoder by key. Safe to call from several threads.

    check: called with every program before it may be used; it raises an error if the program computes wrong results.
    shared: programs of other models of the same shape, to which those are added that are compiled here.
    """

    def __init__(
        self,
        decoder: D,
        platform: Platform,
        check: Callable[[ProgramKey[D], jax.stages.Compiled], None],
        shared: Shared | None = None,
    ) -> None:
        self.decoder = decoder
        self._shared: Shared = {} if shared is None else shared
        self._options = dict(platform.compiler_options)
        self._check = check
        self._lock = threading.Lock()
        self._turn = None if platform.chips is None else threading.Lock()
        self._table: OrderedDict[ProgramKey[D], Future[jax.stages.Compiled]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def clear(self) -> None:
        """Drop all programs. Nobody may be waiting for one."""
        self._table.clear()
        self._shared.clear()
        # Otherwise jax would keep them alive. Programs of other tables are not affected.
        jax.clear_caches()  # type: ignore[no-untyped-call]

    def __getitem__(self, key: ProgramKey[D]) -> jax.stages.Compiled:
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
            executable = self._shared.get(key) or self._compiled(key)
            future.set_result(executable)
        except BaseException as error:
            with self._lock:
                self._table.pop(key, None)
            future.set_exception(error)
            raise
        return future.result()

    def _compiled(self, key: ProgramKey[D]) -> jax.stages.Compiled:
        """Compile a program, and check it."""
        executable = self._compile(key)
        if self._turn is not None:
            executable = cast("jax.stages.Compiled", SerializedProgram(executable, self._turn))
        self._check(key, executable)
        self._shared[key] = executable
        return executable

    def _compile(self, key: ProgramKey[D]) -> jax.stages.Compiled:
        started = time.perf_counter()
        function, arguments, donated = key.source(self.decoder)
        lowered = jax.jit(function, donate_argnums=donated).lower(*arguments)
        executable = lowered.compile(compiler_options=self._options)
        log.debug("compiled", program=str(key), seconds=round(time.perf_counter() - started, 2))
        return executable

    def _evict(self) -> None:
        """Remove the least recently used program that is compiled."""
        oldest = next((key for key, future in self._table.items() if future.done()), None)
        if oldest is not None:
            del self._table[oldest]
            self._shared.pop(oldest, None)
            # Otherwise jax would keep it alive. Programs that are still in the table are not affected.
            jax.clear_caches()  # type: ignore[no-untyped-call]
            log.info("program evicted", program=str(oldest))
