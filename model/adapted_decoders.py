"""The decoders of adapters, which share the weights of a base, and the compiled programs over them.

Programs take weights as arguments. So adapters that change the same projections by factors of the same ranks share
programs, and only what differs from the base in structure is compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from model.architecture.decoder import Decoder
from model.checks.known_answer import ModelChecks
from model.executable_table import MAX_SHELVED, ExecutableTable
from model.programs.decoder import DecoderParts

D = TypeVar("D", bound=DecoderParts)

Check = Callable[[ModelChecks[Any], str], None]
"""Takes the checks of an adapter's programs, and its key."""


class Programs(NamedTuple, Generic[D]):
    """A decoder, and its programs."""

    decoder: D
    executables: ExecutableTable[D]


class AdaptedDecoders(Generic[D]):
    """The decoder of a base, and those of the adapters that steps may name.

    make: takes a decoder apart for programs; compiling: returns a table for its programs, and their checks.
    """

    def __init__(
        self,
        base: Decoder,
        make: Callable[[Decoder], D],
        compiling: Callable[[D], tuple[ExecutableTable[D], ModelChecks[D]]],
    ) -> None:
        self._make = make
        self._compiling = compiling
        decoder = make(base)
        executables, self.checks = compiling(decoder)
        self._found: dict[str | None, Programs[D]] = {None: Programs(decoder, executables)}
        self._tables: dict[object, ExecutableTable[D]] = {}

    @property
    def base(self) -> Programs[D]:
        """The decoder without an adapter."""
        return self._found[None]

    def __getitem__(self, adapter: str | None) -> Programs[D]:
        """Return the decoder with an adapter, by its key, or without one."""
        return self._found[adapter]

    def add(self, adapter: str, decoder: Decoder, check: Check) -> None:
        """Have an adapter. If no adapter before has had the same programs, they are checked first.

        check: compares what is computed with the adapter of a key with NumPy. It raises
        :class:`model.checks.known_answer.KnownAnswerError`, after which the adapter is not there.
        """
        made = self._make(decoder)
        known = self._tables.get(made.structure)
        if known is not None:
            self._found[adapter] = Programs(made, known)
            return
        executables, checks = self._compiling(made)
        self._found[adapter] = Programs(made, executables)
        try:
            check(checks, adapter)
        except BaseException:
            self.drop(adapter)
            raise
        self._tables[made.structure] = executables

    def drop(self, adapter: str) -> None:
        """Have an adapter no longer.

        Programs stay for others, and so do the weights that these were checked with. If there are too many, the oldest
        go that no adapter has.
        """
        self._found.pop(adapter, None)
        used = {id(programs.executables) for programs in self._found.values()}
        for structure, table in list(self._tables.items()):
            if sum(map(len, self._tables.values())) > MAX_SHELVED and id(table) not in used:
                self._tables.pop(structure).clear()
