"""An engine without a model: it computes its scores from the tokens by a formula, and tests control its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from scoring.layout import ChunkWork, GroupWork, LabelScores, ScoredChunk, TokenIds
from tests.packed_rows import whole_sequences

POISON = 666
"""The engine raises an error at a sequence that contains this token."""


class MadeUpEngine:
    """Scores one chunk a step. As with a real engine, a score depends only on the sequence and the label."""

    def __init__(self) -> None:
        self.steps: list[int] = []  # for each step so far, the first token of its chunk
        self.before: dict[int, Callable[[], None]] = {}  # what to call before the step with this number
        self.batches: list[list[GroupWork]] = []  # what each call of score was given
        self.holding = threading.Event()  # set once the engine waits before a step
        self._go_on = threading.Event()
        self._go_on.set()
        self.broken = False  # whether it fails at any work

    @classmethod
    def held(cls) -> MadeUpEngine:
        """Create an engine that waits before its first step."""
        engine = cls()
        engine.hold()
        return engine

    def hold(self) -> None:
        """Wait before the next step until :meth:`go_on`."""
        self.holding.clear()
        self._go_on.clear()

    def go_on(self) -> None:
        """Wait no longer."""
        self._go_on.set()

    def score(
        self,
        groups: Sequence[GroupWork],
        on_step: Callable[[], None],
        on_phase: Callable[[str, float], None] | None = None,
    ) -> Iterator[ScoredChunk]:
        self.batches.append(list(groups))
        for group in groups:
            for chunk in group.chunks:
                self.before.pop(len(self.steps), _nothing)()
                if not self._go_on.is_set():
                    self.holding.set()
                    self._go_on.wait()
                if self.broken:
                    raise RuntimeError("the device is gone")
                behind = None if chunk.continuations is None else chunk.continuations.tokens
                self.steps.append(int((chunk.rows.tokens if behind is None else behind)[0]))
                scored = made_up_chunk(group.prefix, chunk)
                if on_phase is not None:
                    on_phase("extend", 0.001)
                yield scored
                on_step()


def _nothing() -> None:
    pass


def made_up_chunk(prefix: TokenIds, chunk: ChunkWork) -> ScoredChunk:
    """Compute the scores of a chunk."""
    if chunk.continuations is None:
        return ScoredChunk(chunk.id, made_up_scores(prefix, chunk), cached_tokens=0)
    rows, continuations = whole_sequences(prefix, chunk.rows), chunk.continuations
    logprobs: list[float] = []
    sums: list[float] = []
    ends = np.cumsum(continuations.lengths).tolist()
    for n, end in enumerate(ends):
        sequence = rows[n // chunk.columns][: continuations.kept[n]]
        first = len(logprobs)
        for target in continuations.tokens[len(logprobs) : end].tolist():
            logprobs.append(float(np.sin(np.dot(sequence, np.arange(1, len(sequence) + 1)) + target)) - 2)
            sequence = [*sequence, target]
        if POISON in sequence:
            raise RuntimeError("the engine chokes on this")
        sums.append(sum(logprobs[first:]) / int(continuations.divisors[n]))
    values = np.array(sums, np.float32).reshape(len(rows), chunk.columns)
    return ScoredChunk(
        chunk.id,
        LabelScores(values, values),
        cached_tokens=0,
        token_logprobs=np.array(logprobs, np.float32),
        greedy=continuations.lengths == 0,
    )


def made_up_scores(prefix: TokenIds, chunk: ChunkWork) -> LabelScores:
    """Compute float32 [N, M] from the tokens of each sequence and the label."""
    logits = np.zeros((len(chunk.rows), len(chunk.label_token_ids)), np.float32)
    for n, sequence in enumerate(whole_sequences(prefix, chunk.rows)):
        if POISON in sequence:
            raise RuntimeError("the engine chokes on this")
        for m, label in enumerate(chunk.label_token_ids):
            logits[n, m] = np.sin(np.dot(sequence, np.arange(1, len(sequence) + 1)) + label)
    return LabelScores(logits, logits - 1)
