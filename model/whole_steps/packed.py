"""The program of a packed sequence, which contains its prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from jax import Array
from numpy.random import Generator

from model.architecture.decoder import Layer
from model.attention.dense import DenseAttention
from model.checks.expected import Case, ExpectedOutput
from model.checks.known_prompts import known_prompt, prompt_states
from model.chips.axes import STATES
from model.packed_sequence import PackedSequence
from model.programs.kind import Source, int32
from model.rows import item_rows
from model.score_buffer import ScoreBuffer
from model.whole_steps.decoder import Carried, StackedDecoder

COPIES = 3
"""How often the known prompt stands in a packed sequence, at different places."""


@dataclass(frozen=True, slots=True)
class PackedKey:
    """A packed sequence."""

    tokens: int
    logit_rows: int  # rows that are scored
    dense: bool  # with an explicit mask

    def source(self, decoder: StackedDecoder) -> Source:
        """See :class:`model.programs.kind.ProgramKey`."""
        rows = int32(self.tokens)
        sequence = rows, rows, int32(self.tokens, 2, 2), int32(self.logit_rows)
        return decoder.source(
            partial(packed, decoder, self.dense), (*decoder.weights, *sequence), decoder.axes, (STATES,)
        )

    def known_answer(self, decoder: StackedDecoder, random: Generator) -> Case:
        """Copies of the known prompt, whose final states NumPy computes."""
        group = known_prompt(decoder.config.vocabulary)
        (chunk,) = group.chunks
        rows = item_rows(ScoreBuffer.of(chunk))
        sequence = PackedSequence()
        for _ in range(COPIES):
            begin = sequence.add_prefix(group.prefix)
            for row in rows:
                sequence.add_row(row, begin)
        states = np.stack([of_row[-1] for of_row in prompt_states(decoder, [group])] * COPIES)
        arrays = sequence.arrays(self.tokens, self.logit_rows)
        return (*decoder.weights, *arrays), (ExpectedOutput(states, states_of=decoder),)


def packed(decoder: StackedDecoder, dense: bool, *arguments: Array) -> tuple[Array, ...]:
    """Compute a packed sequence; dense: with an explicit mask.

    (*weights, tokens [T], positions [T], ranges [T, 2, 2], logit positions [n]) -> hidden states of the logit
    positions, float32 [n, width]. ranges: what each token sees, as in
    :meth:`model.attention.contract.WholeStepAttention.packed`.
    """
    weights, (tokens, positions, ranges, logit_positions) = decoder.split(arguments)
    attend_packed = decoder.attention.packed(ranges)
    rotation = decoder.rotation(positions)

    def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
        queries, own = layer.queries(hidden, rotation), layer.key_values(hidden, rotation)
        if dense:
            batch = [part[None] for part in (queries, *own, ranges)]
            return DenseAttention().attend(batch[0], batch[1], batch[2], batch[3]).out[0], carried
        return attend_packed(queries, *own).out, carried

    hidden, _ = decoder.through_layers(weights, tokens, attend, logit_positions)
    return (hidden,)
