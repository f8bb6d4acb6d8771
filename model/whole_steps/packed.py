"""The program of a packed sequence, which contains its prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from jax import Array
from numpy.random import Generator

from model.architecture.decoder import Layer
from model.attention.contract import AttendPacked, AttentionOutput
from model.attention.dense import DenseAttention
from model.checks.expected import Case
from model.checks.known_prompts import expected_states, known_prompt, prompt_states
from model.checks.numpy_decoder import Floats
from model.chips.axes import STATES
from model.packed_sequence import PackedSequence
from model.programs.kind import ProgramKey, Source, int32
from model.rows import item_rows
from model.score_buffer import ScoreBuffer
from model.whole_steps.decoder import Carried, StackedDecoder

COPIES = 3
"""How often the known prompt stands in a packed sequence, at different places."""


@dataclass(frozen=True, slots=True)
class PackedKey(ProgramKey[StackedDecoder]):
    """A packed sequence."""

    tokens: int
    logit_rows: int  # rows that are scored
    dense: bool  # with an explicit mask

    def source(self, decoder: StackedDecoder) -> Source:
        rows = int32(self.tokens)
        ranges = (int32(self.tokens, 2, 2),) * (1 if decoder.config.window is None else 2)
        sequence = rows, rows, *ranges, int32(self.logit_rows)
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

        def states(*, shaken: bool = False) -> Floats:
            return np.stack([of_row[-1] for of_row in prompt_states(decoder, [group], shaken=shaken)] * COPIES)

        arrays = sequence.arrays(self.tokens, self.logit_rows, decoder.config.window)
        return (*decoder.weights, *arrays), (expected_states(decoder, states),)


def packed(decoder: StackedDecoder, dense: bool, *arguments: Array) -> tuple[Array, ...]:
    """Compute a packed sequence; dense: with an explicit mask.

    (*weights, tokens [T], positions [T], ranges [T, 2, 2], logit positions [n]) -> hidden states of the logit
    positions, float32 [n, width]. ranges: what each token sees, as in
    :meth:`model.attention.contract.WholeStepAttention.packed`; behind them, what it sees in layers with a sliding
    window, if there are any.
    """
    weights = arguments[: len(decoder.weights)]
    tokens, positions, *ranges, logit_positions = arguments[len(weights) :]

    def attention(reach: int | None) -> AttendPacked:
        seen = ranges[0] if reach is None else ranges[1]
        return partial(_attend_densely, decoder.config.caps.scores, seen) if dense else decoder.attention.packed(seen)

    attend_packed, rotation = decoder.of_kinds(attention), decoder.rotation(positions)

    def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
        rotary = rotation(number)
        queries, own = layer.attention_inputs(hidden, rotary)
        return layer.self_attn.attended(attend_packed(number, queries, *own)), carried

    hidden, _ = decoder.through_layers(weights, tokens, attend, None, logit_positions)
    return (hidden,)


def _attend_densely(cap: float | None, ranges: Array, queries: Array, keys: Array, values: Array) -> AttentionOutput:
    out, log_sum_exp = DenseAttention(cap).attend(queries[None], keys[None], values[None], ranges[None])
    return AttentionOutput(out[0], log_sum_exp[0])
