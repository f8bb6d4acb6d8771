"""The prefill of one sequence, a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array

from model.forward import Computed, Extension, Forward
from model.lookahead import Lookahead
from model.score_buffer import Floats
from scoring.layout import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    """A prefilled prefix."""

    blocks: tuple[int, ...]  # its own, without those that it shares with another prefix
    table: TokenIds  # all of its blocks in order, int32 [longest]
    hidden: Floats  # final hidden state of its last token, [width]


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Blocks for a sequence."""

    blocks: tuple[int, ...]  # its own, without those that it shares with another prefix
    table: TokenIds  # all of its blocks in order, int32 [longest]
    done: int  # how many of its first tokens are in the shared blocks


class Prefill:
    """A sequence that is computed into blocks of the pool.

    read: how many of its last tokens are read; allocate: takes blocks of the pool for the sequence; release: gives
    blocks back.
    """

    def __init__(
        self,
        forward: Forward,
        tokens: TokenIds,
        read: int,
        allocate: Callable[[], Allocation],
        release: Callable[[tuple[int, ...]], None],
        lookahead: Lookahead,
    ) -> None:
        self._forward = forward
        self._tokens = tokens
        self._read = read
        self._allocate = allocate
        self._release = release
        self._lookahead = lookahead
        self._taken = 0  # tokens that are read whose states were taken
        self._untaken: list[tuple[range, Computed]] = []  # steps, and which of the tokens that are read are theirs
        self._states: Array | None = None
        self._index = 0  # of the last token's state
        self._lost = False
        self.uncounted = 0  # tokens of steps that were not yielded
        self._begin()

    def _begin(self) -> None:
        allocation = self._allocate()
        self._blocks, self._table, self._done = allocation.blocks, allocation.table, allocation.done

    def steps(self) -> Iterator[int]:
        """Compute all steps. Yields the tokens of each, padding included.

        Once its blocks were taken, it computes the rest without a pause, so that it comes to an end even if it is
        preempted at every pause.
        """
        while self._lost or self._done < len(self._tokens):
            again = self._lost
            if again:
                self._begin()
                self._lost = False
            computed = self._step()
            while again and self._done < len(self._tokens):
                computed += self._step()
            if again:
                self.uncounted += computed
            else:
                yield computed

    @property
    def is_lost(self) -> bool:
        """Whether its blocks were taken."""
        return self._lost

    @property
    def is_complete(self) -> bool:
        """Whether all of its tokens are computed, and it still has its blocks."""
        return not self._lost and self._done == len(self._tokens)

    def pieces(self) -> list[Extension]:
        """Return all that is left to compute, a block at a time."""
        size, length = self._forward.block_tokens, len(self._tokens)
        starts = range(self._done, length, size)
        return [
            Extension(self._tokens[start : start + size], start, None, self._table, self._table[start // size :][:1])
            for start in starts
        ]

    def note(self, step: Sequence[Extension], computed: Computed) -> None:
        """Take notice of a step that may hold the last one of the pieces."""
        for index, piece in enumerate(step):
            if piece.table is self._table and piece.start + len(piece.tokens) == len(self._tokens):
                self._states, self._index, self._done = computed.states, index, len(self._tokens)

    def _step(self) -> int:
        """Dispatch the next step, and wait for the one before it, or for itself. Returns the tokens of the step."""
        size = self._forward.block_tokens
        start, stop = self._done, min(self._done + self._forward.shapes.step_tokens, len(self._tokens))
        blocks = self._table[start // size : -(-stop // size)]
        first_read = len(self._tokens) - self._read
        read = max(0, stop - max(start, first_read))
        piece = Extension(self._tokens[start:stop], start, None, self._table, blocks, read)
        before, self._done = self._states, stop
        computed = self._forward.run([piece])
        self._states = computed.states
        if read and self._read > 1:
            self._untaken.append((range(stop - read - first_read, stop - first_read), computed))
        awaited = before if self._lookahead.allowed() else computed.states
        jax.block_until_ready(awaited)  # type: ignore[no-untyped-call]
        return computed.tokens

    def take(self) -> Iterator[tuple[int, Floats]]:
        """Yield the states of further tokens that are read, if several are, and the number of the first of them.

        No state is taken twice, although a prefill that begins again computes it twice.
        """
        for numbers, computed in self._untaken:
            if self._taken < numbers.stop:
                yield self._taken, computed.fetch()[self._taken - numbers.start : len(numbers)]
                self._taken = numbers.stop
        self._untaken.clear()

    def lose(self) -> None:
        """Release the blocks. The next step begins again."""
        self._release(self._blocks)
        self._blocks, self._lost = (), True

    def finished(self) -> CachedPrefix:
        """Return the prefix, after the last step."""
        assert self._states is not None
        return CachedPrefix(self._blocks, self._table, np.asarray(self._states)[self._index])
