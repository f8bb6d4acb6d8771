"""Computes rows in steps: whole sequences, and items behind prefixes that are in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from model.forward import NO_BLOCKS, Extension, Forward
from model.prefixes.cache import PrefixCache
from model.prefixes.prefix import Prefix
from model.rows import Branch, Row
from model.running.head_runner import FinalStates
from model.score_buffer import ScoreBuffer
from model.states import Computed, States, nothing_computed, without_pause
from scoring.layout import GroupWork, TokenIds

StepOutput = tuple[list[FinalStates], Computed]
"""A step that is dispatched, and the final states of the rows that it completes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """A group, and those of its rows and branches that are computed by one algorithm."""

    group: GroupWork
    rows: Sequence[Row]
    branches: Sequence[Branch] = ()
    shared: Sequence[tuple[ScoreBuffer, int]] = ()  # tokens of the prefix that items of chunks share
    unpaid: tuple[ScoreBuffer, int] | None = None  # those of the item that pays for the prefix

    def by_beginning(self, step_tokens: int) -> Iterator[GroupRows]:
        """Yield a part for each number of tokens of the prefix that rows see, whose prefix has only these tokens.

        The first part sees the most, and has the branches. A row of every part pays for what the part computes, as far
        as :func:`scoring.planning.folds.shared_tokens` credits it with that.
        """
        if not self.rows and not self.branches:
            yield self
            return
        most = max([*(row.begin for row in self.rows), *(branch.begin for branch in self.branches)])
        begins = {row.begin for row in self.rows} | {most}
        for begin in sorted(begins, reverse=True):
            group = replace(self.group, prefix=self.group.prefix[:begin])
            rows = [row for row in self.rows if row.begin == begin]
            payer = rows[0] if rows else next(branch.end for branch in self.branches if branch.begin == begin)
            is_short = bool(rows) and len(rows[0].tokens) <= step_tokens
            credit = begin if is_short else begin // step_tokens * step_tokens
            unpaid = self.unpaid if len(begins) == 1 else (payer.buffer, credit)
            if begin == most:
                yield replace(self, group=group, rows=rows, unpaid=unpaid)
            else:
                yield GroupRows(group, rows, unpaid=unpaid)

    def joined(self, other: GroupRows) -> GroupRows:
        """Return all rows and branches of two parts of a group. The first part pays for the prefix."""
        return GroupRows(
            self.group,
            [*self.rows, *other.rows],
            [*self.branches, *other.branches],
            [*self.shared, *other.shared],
            other.unpaid if self.unpaid is None else self.unpaid,
        )


class Extender:
    """Computes rows by the forward pass, in steps that are as full as it allows.

    Steps are only dispatched. Whoever takes them says how many may run ahead, by waiting for earlier ones.
    """

    def __init__(self, forward: Forward, cache: PrefixCache) -> None:
        self._forward = forward
        self._cache = cache

    def serial(self, work: Sequence[GroupRows]) -> Iterator[StepOutput]:
        """Compute whole sequences, without a prefix. All groups have the same adapter, here and below."""
        adapter = _adapter_of(work)
        rows = [row for part in work for row in part.rows]
        yield from self._extend([_extension(row, row.tokens, 0, adapter=adapter) for row in rows], {})
        yield from self._branches([(branch, None) for part in work for branch in part.branches], adapter)

    def prefill_extend(self, work: Sequence[GroupRows]) -> Iterator[StepOutput]:
        """Prefill the prefixes that are not cached, and compute the items behind them."""
        if self._forward.has_states:
            # Between the ends of blocks there is no state to go on from. So what sees less is a prefix of its own.
            work = [part for one in work for part in one.by_beginning(self._forward.shapes.step_tokens)]
            yield from self.serial([part for part in work if not len(part.group.prefix)])
            work = [part for part in work if len(part.group.prefix)]
        for together in self._sharing_steps(work):
            yield from self._prefill_extend(together)

    def _sharing_steps(self, work: Sequence[GroupRows]) -> Iterator[Sequence[GroupRows]]:
        """Yield groups that are computed together: one, or as many as the cache has room for."""
        if self._forward.prefixes == 1:
            yield from ([one] for one in work)
            return
        by_query: dict[tuple[str, bytes], GroupRows] = {}
        for part in work:
            query = part.group.owner, part.group.prefix.tobytes()
            known = by_query.get(query)
            by_query[query] = part if known is None else known.joined(part)
        yield from self._with_room([(part, self._room_of(part)) for part in by_query.values()])

    def _room_of(self, part: GroupRows) -> int:
        """Return the tokens of the blocks of a group's prefix and of all its branches."""
        return self._padded(len(part.group.prefix)) + sum(self._padded(len(branch.tokens)) for branch in part.branches)

    def _padded(self, tokens: int) -> int:
        """Return the tokens of the blocks that so many tokens take."""
        size = self._forward.block_tokens
        return -(-tokens // size) * size

    def _with_room(self, sized: Sequence[tuple[T, int]], beside: int = 0) -> Iterator[list[T]]:
        """Yield what may be in the pool together, by the tokens of the blocks of each: within its budget, or one alone.

        beside: the tokens of the blocks of what is in the pool with all of them.
        """
        room = self._cache.budget_tokens - beside
        together, left = list[T](), room
        for one, taken in sized:
            if together and taken > left:
                yield together
                together, left = [], room
            together.append(one)
            left -= taken
        if together:
            yield together

    def _prefill_extend(self, work: Sequence[GroupRows]) -> Iterator[StepOutput]:
        with ExitStack() as stack:
            adapter = _adapter_of(work)
            opened = (self._cache.query(part.group.owner, part.group.prefix, adapter) for part in work)
            queries = list(map(stack.enter_context, opened))
            for computed in self._cache.obtain(queries):
                yield [], computed
            extensions = list[Extension]()
            for query, part in zip(queries, work, strict=True):
                self._count_shared(part, query)
                assert query.hidden is not None
                yield [(row, query.hidden) for row in part.rows if _ends_with(row, query)], nothing_computed()
                rows = [row for row in part.rows if not _ends_with(row, query)]
                extensions += [_behind(row, query) for row in rows]
            yield from self._extend(extensions, {id(query.table): query for query in queries})
            branches = [(branch, query) for query, part in zip(queries, work, strict=True) for branch in part.branches]
            yield from self._branches(branches, adapter, queries)

    def _branches(
        self,
        branches: Sequence[tuple[Branch, Prefix | None]],
        adapter: str | None,
        queries: Sequence[Prefix] = (),
    ) -> Iterator[StepOutput]:
        """Compute branches, each on the blocks of its query if it has one, and the labels behind them.

        queries: all that are in use meanwhile, whose blocks the branches leave to them.
        """
        sized = [((branch, query), self._padded(len(branch.tokens))) for branch, query in branches]
        beside = sum(self._padded(len(query.tokens)) for query in queries)
        alone = self._forward.prefixes == 1
        for together in ([one] for one, _ in sized) if alone else self._with_room(sized, beside):
            with ExitStack() as stack:
                prefixes = []
                for branch, query in together:
                    if query is not None and (tokens := without_pause(self._again(query, branch))):
                        yield [], nothing_computed(tokens)
                    sequence = self._cache.sequence(branch.tokens, query, branch.begin, adapter=adapter)
                    prefixes.append(stack.enter_context(sequence))
                for computed in self._cache.obtain(prefixes):
                    yield [], computed
                extensions = list[Extension]()
                for prefix, (branch, _) in zip(prefixes, together, strict=True):
                    assert prefix.hidden is not None
                    yield [(branch.end, prefix.hidden)], nothing_computed()
                    extensions += [_behind(row, prefix) for row in branch.rows]
                yield from self._extend(extensions, {id(prefix.table): prefix for prefix in prefixes})

    def _again(self, query: Prefix, branch: Branch) -> Iterator[Computed]:
        """Obtain a query whose blocks were taken, if the pool has room for it beside a branch."""
        blocks = self._padded(len(query.tokens)) + self._padded(len(branch.tokens))
        if not query.is_complete and blocks <= self._cache.budget_tokens:
            yield from query.obtain()

    def _extend(self, extensions: Sequence[Extension], behind: dict[int, Prefix]) -> Iterator[StepOutput]:
        """Compute extensions, those longer than a step last. behind: the prefixes, by the identity of their tables."""
        longest = self._forward.shapes.step_tokens
        fitting = [extension for extension in extensions if len(extension.tokens) <= longest]

        for step in self._forward.fill(fitting):
            rows = [extension.row for extension in step if extension.row is not None]
            tables = {id(extension.table) for extension in step}
            # If preempting work has taken blocks, they are computed again without a pause.
            again = without_pause(_restored([behind[table] for table in tables if table in behind]))
            computed = self._forward.run(step)
            computed.tokens += again
            yield _states_of(rows, computed), computed
        for extension in extensions:
            if len(extension.tokens) > longest:
                yield from self._long_row(extension, behind.get(id(extension.table)))

    def _long_row(self, extension: Extension, base: Prefix | None) -> Iterator[StepOutput]:
        """Compute a row that is longer than a step as a sequence of its own, whose last final states are the row's."""
        row = extension.row
        assert row is not None
        assert not row.tails, "a row whose tails do not see one another fits into a step"
        tokens, common = extension.tokens, extension.start
        if base is not None:
            tokens = np.concatenate([base.tokens[:common], tokens])
        with self._cache.sequence(tokens, base, common, row.read, extension.adapter) as sequence:
            for computed in sequence.obtain():
                yield _pieces(row, sequence.take()), computed
            assert sequence.hidden is not None
            last = [(row, sequence.hidden)] if row.read == 1 else _pieces(row, sequence.take())
        yield last, nothing_computed()

    def _count_shared(self, part: GroupRows, query: Prefix) -> None:
        """Credit items with the tokens of their query as cached, one of them only with those computed before."""
        for buffer, tokens in part.shared:
            buffer.cached_tokens += tokens
        if part.unpaid is not None:
            buffer, tokens = part.unpaid
            buffer.cached_tokens -= max(0, tokens - (query.shared or 0))


def _restored(prefixes: Sequence[Prefix]) -> Iterator[Computed]:
    """Obtain sequences whose blocks were taken, until all of them have theirs. Yields each step.

    Obtaining one may take the blocks of another again, but only while there is other work in the pool.
    """
    while lost := [prefix for prefix in prefixes if not prefix.is_complete]:
        yield from lost[0].obtain()


def _states_of(rows: Sequence[Row], computed: Computed) -> list[FinalStates]:
    """Return each row of a step with its final states."""
    stops = np.cumsum([row.read for row in rows]).tolist()
    return [(row, computed.of(stop - row.read, stop)) for row, stop in zip(rows, stops, strict=True)]


def _pieces(row: Row, states: Iterable[tuple[int, States]]) -> list[FinalStates]:
    """Return pieces of a row that is read at several tokens; states: of each piece, behind the number of its first."""
    return [(row.piece(first, len(of_piece)), of_piece) for first, of_piece in states]


def _behind(row: Row, prefix: Prefix) -> Extension:
    """Return the row itself, or for a row without tokens the last token that it sees."""
    if len(row.tokens):
        return _extension(row, row.tokens, row.begin, prefix.table, prefix.adapter)
    last = prefix.tokens[row.begin - 1 : row.begin]
    return Extension(last, row.begin - 1, row, prefix.table, adapter=prefix.adapter)


def _extension(
    row: Row, tokens: TokenIds, start: int, table: TokenIds = NO_BLOCKS, adapter: str | None = None
) -> Extension:
    return Extension(tokens, start, row, table, read=row.read, tails=row.tails, adapter=adapter)


def _adapter_of(work: Sequence[GroupRows]) -> str | None:
    return work[0].group.adapter if work else None


def _ends_with(row: Row, prefix: Prefix) -> bool:
    """Return whether a row is scored at the prefix's last token."""
    return not len(row.tokens) and row.begin == len(prefix.tokens)
