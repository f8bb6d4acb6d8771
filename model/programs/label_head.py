"""The head for labels: from final hidden states to scores of the same labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jax.typing import ArrayLike
from numpy.random import Generator

from model.architecture.projections import Norm
from model.buckets import HEAD_ROWS, label_bucket
from model.checks import numpy_decoder
from model.checks.cases import HEAD_STATES, head_states, in_turn
from model.checks.expected import Case, ExpectedOutput
from model.chips.axes import WHOLE
from model.chips.vocabulary import OnOneChip, Vocabulary
from model.layers.linear import capped, project
from model.programs.decoder import DecoderParts
from model.programs.kind import Program, ProgramKey, Source, float32, int32
from scoring.layout import Head, TokenIds

_COLUMNS = 128
"""Columns of a kernel that are read for one of them: those that a TPU's memory holds together. To gather single ones,
its compiler would transpose the whole kernel.
"""


@dataclass(frozen=True, slots=True)
class HeadKey(ProgramKey[DecoderParts]):
    """Scores of labels from final hidden states."""

    head: Head
    rows: int
    labels: int
    top: bool = False  # whether it gives the log-probability of the most probable token of the vocabulary as well

    @classmethod
    def of(cls, head: Head, labels: int, *, top: bool = False) -> HeadKey:
        """Return the program for a number of labels."""
        return cls(head, HEAD_ROWS, label_bucket(labels), top)

    def padded(self, labels: Sequence[int]) -> TokenIds:
        """Return labels in the program's shape, [labels]. Zeros fill the rest."""
        ids = np.zeros(self.labels, np.int32)
        ids[: len(labels)] = labels
        return ids

    def source(self, decoder: DecoderParts) -> Source:
        program = lm_head(
            self.head,
            decoder.norm,
            as_rows=decoder.head_as_rows,
            by_tiles=decoder.heads_by_tiles,
            vocabulary=decoder.outputs,
            top=self.top,
            cap=decoder.config.caps.logits,
        )
        arguments = (*decoder.head, float32(self.rows, decoder.config.width), int32(self.labels))
        return decoder.source(program, arguments, decoder.head_axes, (WHOLE,) * (3 if self.top else 2))

    def known_answer(self, decoder: DecoderParts, random: Generator) -> Case:
        ids = random.integers(0, decoder.config.outputs, self.labels, np.int32)
        turns, states = in_turn(self.rows, HEAD_STATES), head_states(decoder.config.width)
        logits = numpy_decoder.label_logits(decoder, states, ids)
        arguments: tuple[ArrayLike, ...] = (*decoder.head, states[turns], ids)
        logprobs = logits - decoder.over_vocabulary.log_sum_exp
        # Those of few classes may be near zero, where their errors are those of the logits.
        scale = float(np.abs(logits).mean()) if decoder.config.classes else 0.0
        expected = (ExpectedOutput(logits[turns]), ExpectedOutput(logprobs[turns], min_scale=scale))
        return arguments, (*expected, expected_top(decoder, turns)) if self.top else expected


def expected_top(decoder: DecoderParts, turns: TokenIds) -> ExpectedOutput:
    """Return the log-probabilities of the most probable tokens of the distinct states, of which rows have ``turns``.

    They may be near zero, where their errors are those of the logits.
    """
    known = decoder.over_vocabulary
    return ExpectedOutput((known.peak - known.log_sum_exp)[turns], min_scale=float(np.abs(known.peak).mean()))


def lm_head(
    head: Head,
    norm_graph: nnx.GraphDef[Norm],
    *,
    as_rows: bool,
    by_tiles: bool = False,
    vocabulary: Vocabulary = OnOneChip(),  # noqa: B008 (it has no state)
    top: bool = False,
    cap: float | None = None,
) -> Program:
    """(norm weight, kernel, bias of the head if it has one, hidden [R, width], labels int32 [M]) -> label logits and
    log-probabilities, float32 [R, M].

    With ``top``, the log-probability of the most probable token of the vocabulary comes behind them, [R, 1]. If that is
    a label, both have the same bits. The log-probabilities are over the whole vocabulary. With :attr:`Head.LOGITS`, the
    logits come from the labels' part of the kernel alone. hidden: before the final norm; kernel: [width, vocabulary],
    or its transpose with ``as_rows``.
    by_tiles: columns of the kernel are read as a TPU's memory holds them; else gathered. cap: of logits, see
    :func:`model.layers.linear.capped`.
    """

    def made(products: Array, bias: Array | None = None) -> Array:
        return capped(products if bias is None else products + bias.astype(jnp.float32), cap)

    def program(weight: Array, kernel: Array, *others: Array) -> tuple[Array, ...]:
        *bias, hidden, labels = others
        norm: Norm = nnx.merge(norm_graph, nnx.State({"weight": nnx.Param(weight)}))
        logits = made(project(norm(hidden), kernel, transposed=as_rows), *bias)
        label_logits = vocabulary.pick(labels, lambda ids: jnp.take(logits, ids, axis=1))
        log_sum_exp = vocabulary.log_sum_exp(logits)
        logprobs = label_logits - log_sum_exp
        of_vocabulary = (vocabulary.highest(logits) - log_sum_exp,) if top else ()
        if head is Head.LOGPROBS:
            return label_logits, logprobs, *of_vocabulary

        def of_labels(ids: Array) -> Array:
            own_bias = [jnp.take(one, ids) for one in bias]
            if by_tiles and not as_rows:
                return made(project(norm(hidden), _rows_by_tiles(kernel, ids), transposed=True), *own_bias)
            own = jnp.take(kernel, ids, axis=0 if as_rows else 1)
            return made(project(norm(hidden), own, transposed=as_rows), *own_bias)

        return vocabulary.pick(labels, of_labels), logprobs, *of_vocabulary

    return program


def _rows_by_tiles(kernel: Array, labels: Array) -> Array:
    """Return columns of a kernel as rows: [M, width]."""
    width, vocabulary = kernel.shape
    columns = min(_COLUMNS, vocabulary)

    def row(label: Array) -> Array:
        begin = jnp.minimum(label // columns * columns, vocabulary - columns)
        near = lax.dynamic_slice(kernel, (0, begin), (width, columns))
        wanted = jnp.arange(columns, dtype=labels.dtype) == label - begin
        return jnp.sum(jnp.where(wanted, near, 0), axis=1, dtype=kernel.dtype)  # the sum of one number and zeros

    rows: Array = lax.map(row, labels)
    return rows
