"""Known-answer tests of the programs of whole steps.

A program of a whole step is the whole model, so a packed sequence is compared with the decoder in NumPy. The programs
that need the pool are checked on a known prompt before a worker serves (:meth:`ModelChecks.check_model`).
"""

from __future__ import annotations

import jax
import numpy as np

from model.buckets import HeadKey
from model.checks.known_answer import Case, ModelChecks, known_prompt
from model.packed_sequence import PackedSequence
from model.platforms import Platform
from model.score_buffer import Row, ScoreBuffer
from model.whole_steps.executables import PackedKey, WholeStepKey
from model.whole_steps.programs import WholeStepPrograms

COPIES = 3
"""How often the known prompt stands in a packed sequence, at different places."""


class KnownWholeSteps(ModelChecks[WholeStepKey]):
    """Checks the programs of whole steps."""

    def __init__(self, programs: WholeStepPrograms, platform: Platform) -> None:
        super().__init__(programs, platform)
        self._programs = programs

    def check(self, key: WholeStepKey, executable: jax.stages.Compiled) -> None:
        """Run a program, unless it needs the pool. Raises :class:`model.checks.known_answer.KnownAnswerError`."""
        match key:
            case HeadKey():
                super().check(key, executable)
            case PackedKey(tokens, logit_rows, _):
                self._check_packed(str(key), executable, tokens, logit_rows)

    def _case(self, key: WholeStepKey) -> Case:
        assert isinstance(key, HeadKey)
        return self._lm_head(np.random.default_rng(0), key.head, key.rows, key.labels)

    def _check_packed(self, name: str, executable: jax.stages.Compiled, tokens: int, logit_rows: int) -> None:
        group = known_prompt(self._config.vocabulary)
        (chunk,) = group.chunks
        buffer, stops = ScoreBuffer.of(chunk), np.cumsum(chunk.rows.lengths)
        rows = [
            Row(chunk.rows.tokens[stop - length : stop], end, buffer, index)
            for index, (stop, length, end) in enumerate(
                zip(stops, chunk.rows.lengths, chunk.rows.prefix_ends, strict=True)
            )
        ]
        sequence = PackedSequence()
        for _ in range(COPIES):
            begin = sequence.add_prefix(group.prefix)
            for row in rows:
                sequence.add_row(row, begin)
        (states,) = executable(*self._programs.weights, *sequence.arrays(tokens, logit_rows))
        found = np.asarray(states)[: COPIES * len(rows)].reshape(COPIES, len(rows), -1)
        self.check_model(group, {f"{name}, at place {place}": found[place] for place in range(COPIES)})
