"""A check of the rotary angles at the far positions of long sequences, where the known prompts do not reach.

The angle of a position is as large as the position, and what a device computes of large angles can be wrong alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
from jax import Array
from numpy.random import Generator

from model.architecture.decoder import rotary_embeddings
from model.checks import numpy_decoder
from model.checks.expected import Case, ExpectedOutput
from model.chips.axes import WHOLE
from model.programs.kind import ProgramKey, Source, int32
from model.whole_steps.decoder import StackedDecoder


@dataclass(frozen=True, slots=True)
class PositionsKey(ProgramKey[StackedDecoder]):
    """The rotary angles of a step's tokens, by all kinds of layers. It is compiled to be checked."""

    def source(self, decoder: StackedDecoder) -> Source:
        def angles(positions: Array) -> tuple[Array, ...]:
            return tuple(chain(*rotary_embeddings(positions, decoder.config)))

        outputs = 2 * len(decoder.config.ropes)
        return decoder.source(angles, (int32(decoder.shape.tokens),), (), (WHOLE,) * outputs)

    def known_answer(self, decoder: StackedDecoder, random: Generator) -> Case:
        """Positions from the first to the last one that is served."""
        config, last = decoder.config, decoder.shape.longest * decoder.shape.block_tokens - 1
        positions = np.linspace(0, last, decoder.shape.tokens).astype(np.int32)
        rotary = [numpy_decoder.rotary_angles(positions, rope, config.head_dim) for rope in config.ropes]
        return (positions,), tuple(ExpectedOutput(part, min_scale=0.1) for part in chain(*rotary))
