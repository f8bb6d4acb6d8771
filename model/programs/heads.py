"""The heads of a decoder: when their programs are compiled, and how they are called over states on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jax import Array

from model.buckets import HEAD_ROWS, LABEL_BUCKETS
from model.programs.decoder import DecoderParts
from model.programs.gathering import GatherKey
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from model.states import States
from scoring.layout import Head, TokenIds

ProgramOf = Callable[[Any], Callable[..., tuple[Any, ...]]]
"""Returns the program of a key, ready to be called."""


class Heads:
    """Runs heads over the states that steps have computed. Calls are only dispatched."""

    def __init__(self, decoder: DecoderParts, program: ProgramOf) -> None:
        self._decoder = decoder
        self._program = program

    def of_labels(
        self, head: Head, states: Sequence[States], labels: Sequence[int], *, top: bool = False
    ) -> tuple[Array, ...]:
        """Return label logits and log-probabilities, float32 [at least n, at least labels], of n states.

        n: at most :data:`model.buckets.HEAD_ROWS`. top: the log-probability of the vocabulary's most probable token
        comes behind them, float32 [at least n, 1].
        """
        key = HeadKey.of(head, len(labels), top=top)
        return self._run(key, states, key.padded(labels))

    def of_targets(self, states: Sequence[States], targets: TokenIds, *, top: bool = False) -> tuple[Array, ...]:
        """Return log-probabilities over the whole vocabulary, and whether no other token is more probable.

        states: n, as above; targets: int32 [n, m], m of each state. Both outputs are [at least n, at least m]. top: the
        vocabulary's most probable token, int32, and its log-probability, float32, come behind them, [at least n, 1]
        each.
        """
        key = TargetHeadKey.of(targets.shape[1], top=top)
        return self._run(key, states, key.padded(targets))

    def _run(self, key: Hashable, states: Sequence[States], ids: TokenIds) -> tuple[Array, ...]:
        outputs: tuple[Array, ...] = self._program(key)(*self._decoder.head, self._gathered(states), ids)
        for output in outputs:
            output.copy_to_host_async()
        return outputs

    def _gathered(self, states: Sequence[States]) -> Any:
        """Return states one after another, float32 [HEAD_ROWS, width]. Those on the device stay there."""
        rows = np.zeros((HEAD_ROWS, self._decoder.config.width), np.float32)
        numbers: dict[int, tuple[Any, TokenIds]] = {}
        first = 0
        for some in states:
            places = slice(first, first + len(some))
            first = places.stop
            if isinstance(some.array, np.ndarray):
                rows[places] = some.array[some.numbers]
                continue
            known = numbers.get(id(some.array))
            if known is None:
                known = numbers[id(some.array)] = some.array, np.full(HEAD_ROWS, -1, np.int32)
            known[1][places] = some.numbers
        gathered: Any = rows
        for array, of_array in numbers.values():
            (gathered,) = self._program(GatherKey(len(array)))(gathered, array, of_array)
        return gathered


def first_heads() -> tuple[HeadKey, ...]:
    """Return the heads that are compiled before serving: those for few labels."""
    return tuple(HeadKey.of(head, LABEL_BUCKETS[0]) for head in Head)


def rest_of_heads(*, has_classes: bool = False) -> tuple[HeadKey | TargetHeadKey, ...]:
    """Return the heads that are not compiled before serving, up to the largest bucket.

    has_classes: whether the outputs are classes, among which nobody asks for the most probable one or for targets.
    """
    heads = (HeadKey.of(head, labels) for labels in LABEL_BUCKETS[1:] for head in Head)
    if has_classes:
        return tuple(heads)
    of_targets = (TargetHeadKey.of(targets, top=True) for targets in LABEL_BUCKETS)
    of_labels = (HeadKey.of(head, labels, top=True) for labels in LABEL_BUCKETS for head in Head)
    return (*map(TargetHeadKey.of, LABEL_BUCKETS), *heads, *of_labels, *of_targets)
