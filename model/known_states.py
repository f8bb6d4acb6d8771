"""The final states of known prompts, as an engine computes them, to be compared with NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from model.prefixes.cache import PrefixCache
from model.rows import Row, item_rows, whole
from model.running.extending import Extender, GroupRows, StepOutput
from model.score_buffer import Floats, ScoreBuffer
from scoring.layout import GroupWork, TokenIds


@dataclass(frozen=True, slots=True)
class KnownStates:
    """Computes groups with one chunk each as an engine does, and keeps nothing in its cache of prefixes."""

    extender: Extender
    prefix_cache: PrefixCache
    width: int  # of a state
    step_tokens: int

    def by_algorithm(self, companies: Sequence[Sequence[GroupWork]]) -> dict[str, Floats]:
        """Return the states of the rows of all companies in order, float32 [N, width], by the name of an algorithm.

        companies: groups that are computed together.
        """
        serial = [self._states(self.extender.serial, groups, whole) for groups in companies]
        extended = [self._states(self.extender.prefill_extend, groups, lambda row, _: row) for groups in companies]
        found = {"serial": serial, "prefill_extend": extended}
        return {name: np.concatenate(list(chain(*states))) for name, states in found.items()}

    def everywhere(self, companies: Sequence[Sequence[GroupWork]]) -> list[Floats]:
        """Return the states of all own tokens of each row, or of the last one of a long row, [tokens, width] each."""

        def reading(row: Row, _: TokenIds) -> Row:
            read = len(row.tokens) if 0 < len(row.tokens) <= self.step_tokens else 1
            return Row(row.tokens, row.begin, row.buffer, np.zeros(read, np.int64), np.ones(read, np.int64))

        return [
            states for groups in companies for states in self._states(self.extender.prefill_extend, groups, reading)
        ]

    def _states(
        self,
        compute: Callable[[Sequence[GroupRows]], Iterator[StepOutput]],
        groups: Sequence[GroupWork],
        reading: Callable[[Row, TokenIds], Row],
    ) -> list[Floats]:
        """Return the states that rows are read at, [read, width] each.

        reading: makes what is computed of an item and the prefix of its group.
        """
        rows = [[reading(row, group.prefix) for row in item_rows(ScoreBuffer.of(group.chunks[0]))] for group in groups]
        places = {id(row): place for place, row in enumerate(chain(*rows))}
        found = [np.zeros((0, self.width), np.float32)] * len(places)
        for states, _ in compute([GroupRows(group, of_group) for group, of_group in zip(groups, rows, strict=True)]):
            for row, hidden in states:
                found[places[id(row)]] = hidden.fetch()
        for group, of_group in zip(groups, rows, strict=True):
            for end in {len(group.prefix), *(row.begin for row in of_group)}:
                self.prefix_cache.drop(group.owner, group.prefix[:end])
        return found
