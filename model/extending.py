"""Computes rows in steps: whole sequences, and items behind prefixes that are in the cache."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from model.forward import NO_BLOCKS, Computed, Extension, Forward
from model.head_runner import FinalStates
from model.lookahead import Lookahead
from model.prefixes.cache import BranchPin, Pin, PrefixCache
from model.rows import Branch, Row
from model.score_buffer import Floats, ScoreBuffer, TargetBuffer
from scoring.layout import GroupWork, TokenIds

StepOutput = tuple[list[FinalStates], int]
"""The final states of the rows that a step has completed, and the tokens that it computed, padding included."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """A group, and those of its rows and branches that are computed by one algorithm."""

    group: GroupWork
    rows: Sequence[Row]
    branches: Sequence[Branch] = ()
    shared: Sequence[tuple[ScoreBuffer | TargetBuffer, int]] = ()  # tokens of the prefix that items of chunks share
    unpaid: tuple[ScoreBuffer | TargetBuffer, int] | None = None  # those of the item that pays for the prefix

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

    keeps_prefixes: whether prefixes stay in the cache for later work.
    """

    def __init__(self, forward: Forward, cache: PrefixCache, lookahead: Lookahead, *, keeps_prefixes: bool) -> None:
        self._forward = forward
        self._cache = cache
        self._lookahead = lookahead
        self._keeps_prefixes = keeps_prefixes

    def serial(self, work: Sequence[GroupRows]) -> Iterator[StepOutput]:
        """Compute whole sequences, without a prefix."""
        yield from self._extend([_extension(row, row.tokens, 0) for part in work for row in part.rows], {})
        yield from self._branches([(branch, None) for part in work for branch in part.branches])

    def prefill_extend(self, work: Sequence[GroupRows]) -> Iterator[StepOutput]:
        """Prefill the prefixes that are not cached, and compute the items behind them."""
        for together in self._sharing_steps(work):
            yield from self._prefill_extend(together)

    def _sharing_steps(self, work: Sequence[GroupRows]) -> Iterator[Sequence[GroupRows]]:
        """Yield groups that are computed together: one, or as many as the cache has room for."""
        if self._forward.prefixes == 1:
            yield from ([one] for one in work)
            return
        by_key: dict[str, GroupRows] = {}
        for part in work:
            key = cache_key(part.group)
            known = by_key.get(key)
            by_key[key] = part if known is None else known.joined(part)
        yield from self._with_room([(part, self._room_of(part)) for part in by_key.values()])

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
            pins = []
            for part in work:
                key = cache_key(part.group)
                self._count_shared(part, is_cached=key in self._cache)
                pins.append(stack.enter_context(self._cache.pinned(key, part.group.prefix)))
            for computed in self._cache.obtain(pins):
                yield [], computed
            extensions, behind = list[Extension](), dict[int, Pin]()
            for pin, part in zip(pins, work, strict=True):
                assert pin.hidden is not None
                yield [(row, pin.hidden) for row in part.rows if _ends_with(row, pin.tokens)], 0
                stand_in = _stand_in()
                behind[id(stand_in)] = pin
                rows = [row for row in part.rows if not _ends_with(row, pin.tokens)]
                extensions += [_behind(row, pin.tokens, stand_in) for row in rows]
            yield from self._extend(extensions, behind)
            branches = [(branch, pin) for pin, part in zip(pins, work, strict=True) for branch in part.branches]
            yield from self._branches(branches, pins)
            if not self._keeps_prefixes:
                for pin in pins:
                    self._cache.drop(pin.key)

    def _branches(
        self, branches: Sequence[tuple[Branch, Pin | None]], queries: Sequence[Pin] = ()
    ) -> Iterator[StepOutput]:
        """Compute branches, each on the blocks of its query if that is pinned, and the labels behind them.

        queries: all that are pinned meanwhile, whose blocks the branches leave to them.
        """
        sized = [((branch, base), self._padded(len(branch.tokens))) for branch, base in branches]
        beside = sum(self._padded(len(pin.tokens)) for pin in queries)
        alone = self._forward.prefixes == 1
        for together in ([one] for one, _ in sized) if alone else self._with_room(sized, beside):
            with ExitStack() as stack:
                pins = []
                for branch, base in together:
                    if base is not None and (computed := sum(self._again(base, branch))):
                        yield [], computed
                    pins.append(stack.enter_context(self._cache.branch(branch.tokens, branch.begin, base)))
                for computed in self._cache.obtain(pins):
                    yield [], computed
                yield from self._behind_branches(pins, [branch for branch, _ in together])

    def _again(self, base: Pin, branch: Branch) -> Iterator[int]:
        """Obtain a query whose blocks were taken, if the pool has room for it beside a branch. Yields tokens."""
        blocks = self._padded(len(base.tokens)) + self._padded(len(branch.tokens))
        if base.prefix is None and blocks <= self._cache.budget_tokens:
            yield from base.obtain()

    def _behind_branches(self, pins: Sequence[BranchPin], branches: Sequence[Branch]) -> Iterator[StepOutput]:
        extensions, behind = list[Extension](), dict[int, Pin]()
        for pin, branch in zip(pins, branches, strict=True):
            assert pin.hidden is not None
            yield [(branch.end, pin.hidden)], 0
            stand_in = _stand_in()
            behind[id(stand_in)] = pin
            extensions += [_behind(row, pin.tokens, stand_in) for row in branch.rows]
        yield from self._extend(extensions, behind)

    def _extend(self, extensions: Sequence[Extension], behind: dict[int, Pin]) -> Iterator[StepOutput]:
        """Compute extensions, those longer than a step last.

        A step is laid out while the last one runs, where that is allowed. behind: the prefixes, by the identity of the
        extensions' tables.
        """
        longest = self._forward.shapes.step_tokens
        fitting = [extension for extension in extensions if len(extension.tokens) <= longest]

        def dispatched() -> Iterator[tuple[list[Row], Computed, int]]:
            for step in self._forward.fill(fitting):
                rows = [extension.row for extension in step if extension.row is not None]
                pins = {id(extension.table): behind.get(id(extension.table)) for extension in step}
                # If preempting work has taken blocks, they are computed again without a pause.
                again = sum(_restored([pin for pin in pins.values() if pin is not None]))
                computed = self._forward.run([_with_table(one, pins[id(one.table)]) for one in step])
                yield rows, computed, again + computed.tokens

        for rows, computed, tokens in _one_ahead(dispatched(), self._lookahead):
            yield _states_of(rows, computed.fetch()), tokens
        for extension in extensions:
            if len(extension.tokens) > longest:
                yield from self._long_row(extension, behind.get(id(extension.table)))

    def _long_row(self, extension: Extension, pin: Pin | None) -> Iterator[StepOutput]:
        """Compute a row that is longer than a step as a prefix of its own, whose last final states are the row's."""
        row = extension.row
        assert row is not None
        assert not row.tails, "a row whose tails do not see one another fits into a step"
        tokens = extension.tokens if pin is None else np.concatenate([pin.tokens[: extension.start], extension.tokens])
        with self._cache.prefill(tokens, extension.start, pin, row.read) as prefill:
            for computed in prefill.steps():
                yield _pieces(row, prefill.take()), computed
            own = prefill.finished()
        self._cache.release(own.blocks)
        last = [(row, own.hidden)] if row.read == 1 else _pieces(row, prefill.take())
        yield last, prefill.uncounted

    def _count_shared(self, part: GroupRows, *, is_cached: bool) -> None:
        """Credit items with the tokens of their prefix as cached, all but one of them unless the prefix is cached."""
        for buffer, tokens in part.shared:
            buffer.cached_tokens += tokens
        if part.unpaid is not None and not is_cached:
            buffer, tokens = part.unpaid
            buffer.cached_tokens -= tokens


def cache_key(group: GroupWork) -> str:
    """Return the key of a group's prefix in the cache, made of its owner and its content."""
    return f"{group.owner}:{hashlib.sha256(group.prefix.tobytes()).hexdigest()}"


def _restored(pins: Sequence[Pin]) -> Iterator[int]:
    """Obtain prefixes whose blocks were taken, until all of them are in the cache. Yields the tokens of each step.

    Obtaining one may take the blocks of another again, but only while the cache still holds other work's.
    """
    while lost := [pin for pin in pins if pin.prefix is None]:
        yield from lost[0].obtain()


def _with_table(extension: Extension, pin: Pin | None) -> Extension:
    if pin is None:
        return extension
    assert pin.prefix is not None
    # Not by dataclasses.replace, which takes five times as long: this is done for every item.
    table, tails = pin.prefix.table, extension.tails
    return Extension(extension.tokens, extension.start, extension.row, table, read=extension.read, tails=tails)


def _one_ahead(items: Iterable[T], lookahead: Lookahead) -> Iterator[T]:
    """Yield the same items, and ask for the next one before each is yielded, where that is allowed."""
    waiting = deque[T]()
    for item in items:
        waiting.append(item)
        while len(waiting) > lookahead.allowed():
            yield waiting.popleft()
    yield from waiting


def _states_of(rows: Sequence[Row], states: Floats) -> list[FinalStates]:
    """Return each row of a step with its final states."""
    stops = np.cumsum([row.read for row in rows]).tolist()
    return [(row, states[stop - row.read : stop]) for row, stop in zip(rows, stops, strict=True)]


def _pieces(row: Row, states: Iterable[tuple[int, Floats]]) -> list[FinalStates]:
    """Return pieces of a row that is read at several tokens; states: of each piece, behind the number of its first."""
    return [(row.piece(first, len(of_piece)), of_piece) for first, of_piece in states]


def _stand_in() -> TokenIds:
    """Return an array that tells a prefix from others until its table of blocks is known, just before a step."""
    return np.zeros(0, np.int32)


def _behind(row: Row, prefix: TokenIds, table: TokenIds) -> Extension:
    """Return the row itself, or for a row without tokens the last token that it sees."""
    if len(row.tokens):
        return _extension(row, row.tokens, row.begin, table)
    return Extension(prefix[row.begin - 1 : row.begin], row.begin - 1, row, table)


def _extension(row: Row, tokens: TokenIds, start: int, table: TokenIds = NO_BLOCKS) -> Extension:
    return Extension(tokens, start, row, table, read=row.read, tails=row.tails)


def _ends_with(row: Row, prefix: TokenIds) -> bool:
    """Return whether a row is scored at the prefix's last token."""
    return not len(row.tokens) and row.begin == len(prefix)
