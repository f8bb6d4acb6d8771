"""Groups of work, how they are cut, and what is computed for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.prefixes.cache import PrefixCache
from model.running.extending import GroupRows
from model.score_buffer import EngineError, ScoreBuffer
from model.work.layout import lay_out
from scoring.layout import ChunkWork, GroupWork, Rows, TokenIds
from scoring.planning.algorithms import Algorithm, Choice
from scoring.planning.cut import Cut, cut
from scoring.planning.estimates import NOTHING, Estimate, Estimator
from scoring.planning.folds import estimate, payer, shared_tokens
from scoring.planning.lengths import GroupLengths
from scoring.planning.planner import Planner


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows and branches of a group that are computed by one algorithm."""

    choice: Choice
    work: GroupRows
    items: int


@dataclass(frozen=True, slots=True, eq=False)
class PlannedGroup:
    """A group, and what is computed for it."""

    parts: Sequence[Part]
    cuts: Sequence[Cut]  # of the chunks with labels of one token, and of those with labels of several

    def estimate(self, estimator: Estimator) -> Estimate:
        """Estimate the plan by the stored rates. The prefix counts once."""
        total = NOTHING
        for number, one in enumerate(self.cuts):
            total += estimate(estimator, replace(one, group=replace(one.group, cached=one.group.cached or number > 0)))
        return total


@dataclass(frozen=True, slots=True, eq=False)
class WorkPlanner:
    """Plans groups of work for one engine."""

    planner: Planner
    cache: PrefixCache
    context: int  # tokens of the longest sequence that is served

    def plan(self, group: GroupWork, buffers: Sequence[ScoreBuffer]) -> PlannedGroup:
        """Plan a group. Raises EngineError for a sequence that is empty or longer than the context."""
        for buffer in buffers:
            self._check(buffer.chunk, len(group.prefix))
        of_rows = [one for one in buffers if one.chunk.continuations is None]
        of_targets = [one for one in buffers if one.chunk.continuations is not None]
        cuts, parts = list[Cut](), list[Part]()
        for of_kind in (of_rows, of_targets):
            if of_kind:
                cuts.append(self.cut(group, of_kind))
                parts += self._parts(cuts[-1], group, of_kind)
        return PlannedGroup(parts, cuts)

    def cut(self, group: GroupWork, buffers: Sequence[ScoreBuffer]) -> Cut:
        """Cut chunks of one kind of a group."""
        chunks = [(buffer.chunk.rows, buffer.chunk.continuations) for buffer in buffers]
        is_cached = self.cache.has(group.owner, self._computed_prefix(group, [rows for rows, _ in chunks]))
        return cut(self.planner, GroupLengths.of(len(group.prefix), chunks, cached=is_cached))

    def _computed_prefix(self, group: GroupWork, rows: Sequence[Rows]) -> TokenIds:
        """Return what is computed of a prefix: all, or of models with states, as much as a row sees."""
        if not self.cache.has_states:
            return group.prefix
        return group.prefix[: max(int(one.prefix_ends.max(initial=0)) for one in rows)]

    def _parts(self, made: Cut, group: GroupWork, buffers: Sequence[ScoreBuffer]) -> list[Part]:
        found, chunk_of = list[Part](), np.repeat(np.arange(len(buffers)), [len(one.chunk.rows) for one in buffers])
        for number, (choice, laid_out) in enumerate(
            zip(made.choices, lay_out(made, group.prefix, buffers), strict=True)
        ):
            items = made.items_of(number)
            for chunk in np.unique(chunk_of[items]).tolist():
                buffers[chunk].algorithms.add(choice.algorithm.value)
            work = GroupRows(group, laid_out.rows, laid_out.branches)
            if choice.algorithm is Algorithm.PREFILL_EXTEND:
                shared = shared_tokens(made, self.planner.estimator.shapes.step_tokens)
                sums = np.bincount(chunk_of[items], shared[items], len(buffers)).astype(np.int64)
                first = payer(made)
                work = replace(
                    work,
                    shared=list(zip(buffers, sums.tolist(), strict=True)),
                    unpaid=None if first is None else (buffers[chunk_of[first]], int(shared[first])),
                )
            found.append(Part(choice, work, len(items)))
        return found

    def _check(self, chunk: ChunkWork, prefix_length: int) -> None:
        """Raise EngineError for a row that is too long, too short, or sees more than the prefix."""
        rows, longest = chunk.rows, chunk.rows.sequence_lengths
        wrong = (longest < 1) | (longest > self.context) | (rows.prefix_ends < 0) | (rows.prefix_ends > prefix_length)
        if wrong.any():
            row = int(wrong.argmax())
            raise EngineError(
                f"chunk {chunk.id}, row {row}: {rows.lengths[row]} tokens behind {rows.prefix_ends[row]} of a prefix "
                f"of {prefix_length}, the context is {self.context}"
            )
        if chunk.continuations is None or not chunk.columns:
            return
        continuations, whole = chunk.continuations, np.repeat(longest, chunk.columns)
        wrong = (continuations.kept > whole) | (continuations.sequence_lengths > self.context)
        if wrong.any():
            number = int(wrong.argmax())
            raise EngineError(
                f"chunk {chunk.id}, continuation {number}: {continuations.lengths[number]} targets behind "
                f"{continuations.kept[number]} of {whole[number]} tokens, the context is {self.context}"
            )
