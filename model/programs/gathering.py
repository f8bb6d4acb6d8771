"""The program that gathers final hidden states for a head, without the host."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.random import Generator

from model.buckets import HEAD_ROWS
from model.checks.expected import Case, ExpectedOutput
from model.chips.axes import WHOLE
from model.programs.decoder import DecoderParts
from model.programs.kind import ProgramKey, Source, float32, int32


@dataclass(frozen=True, slots=True)
class GatherKey(ProgramKey[DecoderParts]):
    """Some of the states that a step has computed, as rows of what a head takes."""

    states: int  # that there are

    def source(self, decoder: DecoderParts) -> Source:
        width = decoder.config.width
        arguments = (float32(HEAD_ROWS, width), float32(self.states, width), int32(HEAD_ROWS))
        return decoder.source(gather, arguments, (), (WHOLE,))

    def known_answer(self, decoder: DecoderParts, random: Generator) -> Case:
        width = decoder.config.width
        before, states = (random.standard_normal((rows, width), np.float32) for rows in (HEAD_ROWS, self.states))
        numbers = random.integers(-1, self.states, HEAD_ROWS, np.int32)
        arguments: tuple[ArrayLike, ...] = (before, states, numbers)
        expected = np.where(numbers[:, None] < 0, before, states[numbers])
        return arguments, (ExpectedOutput(expected, exact=True),)


def gather(before: Array, states: Array, numbers: Array) -> tuple[Array]:
    """(rows [R, width], states [N, width], int32 [R]) -> each row, or in its place the state of its number, if >= 0."""
    taken = jnp.take(states, jnp.maximum(numbers, 0), axis=0)
    return (jnp.where(numbers[:, None] < 0, before, taken),)
