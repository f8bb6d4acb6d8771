"""The head for targets: from final hidden states to scores of tokens, of which each state has its own."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
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
from model.programs.label_head import expected_top
from scoring.layout import TokenIds

GREEDY_LEAD = 0.05
"""By how much a logit must lead for its token to be the most probable one whatever is rounded."""


@dataclass(frozen=True, slots=True)
class TargetHeadKey(ProgramKey[DecoderParts]):
    """Scores of target tokens from final hidden states, each of which has targets of its own."""

    rows: int
    targets: int  # of a row
    top: bool = False  # whether it gives the most probable token of the vocabulary as well

    @classmethod
    def of(cls, targets: int, *, top: bool = False) -> TargetHeadKey:
        """Return the program for states of so many targets each."""
        return cls(HEAD_ROWS, label_bucket(targets), top)

    def padded(self, targets: TokenIds) -> TokenIds:
        """Return targets, int32 [n, m], in the program's shape, [rows, targets]. Zeros fill the rest."""
        ids = np.zeros((self.rows, self.targets), np.int32)
        ids[: len(targets), : targets.shape[1]] = targets
        return ids

    def source(self, decoder: DecoderParts) -> Source:
        program = target_head(
            decoder.norm,
            as_rows=decoder.head_as_rows,
            vocabulary=decoder.outputs,
            top=self.top,
            cap=decoder.config.caps.logits,
        )
        states = float32(self.rows, decoder.config.width)
        arguments = (*decoder.head, states, int32(self.rows, self.targets))
        return decoder.source(program, arguments, decoder.head_axes, (WHOLE,) * (4 if self.top else 2))

    def known_answer(self, decoder: DecoderParts, random: Generator) -> Case:
        """Other targets for each of the distinct states, one of which is its most probable token."""
        states, known = head_states(decoder.config.width), decoder.over_vocabulary
        ids = random.integers(0, decoder.config.outputs, (HEAD_STATES, self.targets), np.int32)
        ids[:, self.targets // 2] = known.highest
        # Where two tokens are nearly as probable, rounding may make either of them the most probable one.
        clear = known.lead >= min(GREEDY_LEAD, known.lead.max())
        logits = numpy_decoder.label_logits(decoder, states, ids.reshape(-1))
        own = np.arange(HEAD_STATES)
        logits = logits.reshape(HEAD_STATES, HEAD_STATES, self.targets)[own, own]
        turns = in_turn(self.rows, HEAD_STATES)
        greedy = (ids == known.highest[:, None])[turns]
        is_clear = np.flatnonzero(clear[turns]).astype(np.int32)
        arguments: tuple[ArrayLike, ...] = (*decoder.head, states[turns], ids[turns])
        expected = (
            ExpectedOutput((logits - known.log_sum_exp)[turns]),
            ExpectedOutput(greedy[is_clear], is_clear, exact=True),
        )
        if not self.top:
            return arguments, expected
        highest = ExpectedOutput(known.highest[turns][is_clear], is_clear, exact=True)
        return arguments, (*expected, highest, expected_top(decoder, turns))


def target_head(
    norm_graph: nnx.GraphDef[Norm],
    *,
    as_rows: bool,
    vocabulary: Vocabulary = OnOneChip(),  # noqa: B008 (it has no state)
    top: bool = False,
    cap: float | None = None,
) -> Program:
    """(norm weight, kernel, hidden [R, width], targets int32 [R, M]) -> log-probabilities, and whether greedy, [R, M].

    Each state has targets of its own. The log-probabilities, float32, are over the whole vocabulary, with the same bits
    as those of :func:`model.programs.label_head.lm_head`. A target is greedy if no token is more probable. With
    ``top``, the most probable token, int32, and its log-probability come behind them, [R, 1] each; if it is a target,
    both log-probabilities have the same bits. hidden, kernel and cap: as there.
    """

    def program(weight: Array, kernel: Array, hidden: Array, targets: Array) -> tuple[Array, ...]:
        norm: Norm = nnx.merge(norm_graph, nnx.State({"weight": nnx.Param(weight)}))
        logits = capped(project(norm(hidden), kernel, transposed=as_rows), cap)
        of_targets = vocabulary.pick(targets, lambda ids: jnp.take_along_axis(logits, ids, axis=1))
        highest = vocabulary.highest(logits)
        greedy = of_targets >= highest
        log_sum_exp = vocabulary.log_sum_exp(logits)
        logprobs = of_targets - log_sum_exp
        of_vocabulary = (vocabulary.most_probable(logits), highest - log_sum_exp) if top else ()
        return logprobs, greedy, *of_vocabulary

    return program
