"""Engines without a model: scores made up from the tokens, and steps that a test holds in its hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from scoring.layout import ChunkWork, GroupWork, LabelScores, Scored, TokenIds

POISON = 666
"""An engine fails at a sequence that holds this token."""


class MadeUpEngine:
    """Scores one chunk a step. Scores depend on the sequence and the label alone, as a real engine's do.

    hold: while this is set, the engine waits at the next step until it is let go on; broken: it fails at anything;
    steps: the first token of the chunk of each step so far; before: what to do in front of the step of a number.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.before: dict[int, Callable[[], None]] = {}
        self.batches: list[list[GroupWork]] = []
        self.holding = threading.Event()
        self._go_on = threading.Event()
        self._go_on.set()
        self.broken = False

    @classmethod
    def held(cls) -> MadeUpEngine:
        """One that stops in front of its first step."""
        engine = cls()
        engine.hold()
        return engine

    def hold(self) -> None:
        """Stop in front of the next step."""
        self.holding.clear()
        self._go_on.clear()

    def let_go(self) -> None:
        """Go on."""
        self._go_on.set()

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        self.batches.append(list(groups))
        for group in groups:
            for chunk in group.chunks:
                self.before.pop(len(self.steps), _nothing)()
                if not self._go_on.is_set():
                    self.holding.set()
                    self._go_on.wait()
                if self.broken:
                    raise RuntimeError("the device is gone")
                self.steps.append(int(chunk.rows.tokens[0]))
                scored = Scored(chunk.id, made_up_scores(group.prefix, chunk), cached_tokens=0)
                yield scored
                on_step()


def _nothing() -> None:
    pass


def made_up_scores(prefix: TokenIds, chunk: ChunkWork) -> LabelScores:
    """float32 [N, M], from the tokens of each sequence and the label."""
    logits = np.zeros((len(chunk.rows), len(chunk.label_token_ids)), np.float32)
    for n, end in enumerate(chunk.rows.prefix_ends):
        sequence = np.concatenate([prefix[:end], chunk.rows.row(n)])
        if POISON in sequence:
            raise RuntimeError("the engine chokes on this")
        for m, label in enumerate(chunk.label_token_ids):
            logits[n, m] = np.sin(np.dot(sequence, np.arange(1, len(sequence) + 1)) + label)
    return LabelScores(logits, logits - 1)
