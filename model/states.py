"""What steps compute: final hidden states, which stay on the device until somebody needs their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import jax
import numpy as np
from jax import Array

from model.score_buffer import Floats
from scoring.layout import TokenIds


@dataclass(slots=True, eq=False)
class States:
    """Final hidden states of some tokens, before the final norm."""

    array: Array | Floats  # float32 [any, width], on the device, or on the host
    numbers: TokenIds  # int32 [n]: which of its rows they are

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, first: int, stop: int) -> States:
        """Return some of them."""
        return States(self.array, self.numbers[first:stop])

    def fetch(self) -> Floats:
        """Wait for the device, and return them: [n, width]."""
        fetched: Floats = np.asarray(self.array)[self.numbers]
        return fetched

    def leave_device(self) -> None:
        """Keep them on the host alone, so that the rest of the array need not be kept for their sake."""
        self.array, self.numbers = self.fetch(), np.arange(len(self.numbers), dtype=np.int32)


@dataclass(slots=True, eq=False)
class Computed:
    """What a call has dispatched. Its arrays are still being computed."""

    states: Array | None
    """Final hidden states, before the final norm: float32 [at least n, width], for the n tokens that are read, in the
    order of extensions, or for each of n rows of a packed sequence. Of an extension that is not read, there is the
    state of any token. None: nothing was dispatched."""
    tokens: int  # computed, padding included
    read: TokenIds | None = None  # which of the states those of the n tokens are, int32 [n]; None: the first
    _kept: list[States] = field(default_factory=list)
    _is_complete: bool = False

    def of(self, first: int, stop: int) -> States:
        """Return the states of some of the tokens that are read."""
        assert self.states is not None
        return States(
            self.states, np.arange(first, stop, dtype=np.int32) if self.read is None else self.read[first:stop]
        )

    def kept(self, number: int) -> States:
        """Return a state that somebody keeps. It leaves the device once the step is complete."""
        assert self.states is not None
        states = States(self.states, np.array([number], np.int32))
        self._kept.append(states)
        if self._is_complete:
            self.wait()
        return states

    def wait(self) -> None:
        """Wait for the device."""
        jax.block_until_ready(self.states)  # type: ignore[no-untyped-call]
        for states in self._kept:
            states.leave_device()
        self._kept.clear()
        self._is_complete = True


def nothing_computed(tokens: int = 0) -> Computed:
    """Return a step that is complete. tokens: that were computed and are not counted yet."""
    return Computed(None, tokens)


def without_pause(steps: Iterable[Computed]) -> int:
    """Have steps computed without a pause, of which none is dispatched before the last but one is complete.

    Returns how many tokens they compute.
    """
    tokens, before = 0, nothing_computed()
    for step in steps:
        before.wait()
        tokens, before = tokens + step.tokens, step
    return tokens
