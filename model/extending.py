"""Computes rows in steps: whole sequences, and items behind prefixes that are in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

import numpy as np
from jax import Array

from model.forward import Extension, Forward
from model.head_runner import FinalState
from model.prefix_cache import Pin, PrefixCache
from model.score_buffer import Row
from scoring.layout import GroupWork, TokenIds

StepOutput = tuple[list[FinalState], int]
"""The final states of the rows that a step has completed, and the tokens that it computed, padding included."""

GroupRows = tuple[GroupWork, list[Row]]  # a group and those of its rows that are computed in one way

T = TypeVar("T")


class Extender:
    """Computes rows by the forward pass, in steps that are as full as it allows.

    keeps_prefixes: whether prefixes stay in the cache for later work.
    """

    def __init__(self, forward: Forward, cache: PrefixCache, *, keeps_prefixes: bool) -> None:
        self._forward = forward
        self._cache = cache
        self._keeps_prefixes = keeps_prefixes

    def serial(self, work: Sequence[GroupRows]) -> Iterator[StepOutput]:
        """Compute whole sequences, without a prefix."""
        whole = [
            Extension(np.concatenate([group.prefix[: row.prefix_end], row.tokens]), 0, row)
            for group, rows in work
            for row in rows
        ]
        yield from self._extend(whole, {})

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
        for group, rows in work:
            by_key.setdefault(cache_key(group), (group, []))[1].extend(rows)
        together, left = list[GroupRows](), self._cache.budget_tokens
        for group, rows in by_key.values():
            blocks = -(-len(group.prefix) // self._forward.block_tokens)
            if together and blocks * self._forward.block_tokens > left:
                yield together
                together, left = [], self._cache.budget_tokens
            together.append((group, rows))
            left -= blocks * self._forward.block_tokens
        if together:
            yield together

    def _prefill_extend(self, work: Sequence[GroupRows]) -> Iterator[StepOutput]:
        with ExitStack() as stack:
            pins = []
            for group, rows in work:
                key = cache_key(group)
                self._count_shared(rows if key in self._cache else rows[1:])
                pins.append(stack.enter_context(self._cache.pinned(key, group.prefix)))
            for computed in self._cache.obtain(pins):
                yield [], computed
            extensions, behind = list[Extension](), dict[int, Pin]()
            for pin, (_, rows) in zip(pins, work, strict=True):
                assert pin.hidden is not None
                yield [(row, pin.hidden) for row in rows if _ends_with(row, pin.tokens)], 0
                # What tells the prefix from others until its blocks are known, just before a step.
                prefix = np.zeros(0, np.int32)
                behind[id(prefix)] = pin
                extensions += [_extension(row, pin.tokens, prefix) for row in rows if not _ends_with(row, pin.tokens)]
            yield from self._extend(extensions, behind)
            if not self._keeps_prefixes:
                for pin in pins:
                    self._cache.drop(pin.key)

    def _extend(self, extensions: Sequence[Extension], behind: dict[int, Pin]) -> Iterator[StepOutput]:
        """Compute extensions, those longer than a step last.

        A step is laid out while the last one runs. behind: the prefixes, by the identity of the extensions' tables.
        """
        longest = self._forward.shapes.step_tokens
        fitting = [extension for extension in extensions if len(extension.tokens) <= longest]

        def dispatched() -> Iterator[tuple[list[Row], Array, int]]:
            for step in self._forward.fill(fitting):
                rows = [extension.row for extension in step if extension.row is not None]
                pins = {id(extension.table): behind.get(id(extension.table)) for extension in step}
                # If preempting work has taken blocks, they are computed again without a pause.
                again = sum(_restored([pin for pin in pins.values() if pin is not None]))
                computed = self._forward.run([_with_table(one, pins[id(one.table)]) for one in step])
                yield rows, computed.states, again + computed.tokens

        for rows, states, tokens in _one_ahead(dispatched()):
            yield list(zip(rows, np.asarray(states), strict=False)), tokens
        for extension in extensions:
            if len(extension.tokens) > longest:
                yield from self._long_row(extension, behind.get(id(extension.table)))

    def _long_row(self, extension: Extension, pin: Pin | None) -> Iterator[StepOutput]:
        """Compute a row that is longer than a step as a prefix of its own, whose final state is the row's."""
        assert extension.row is not None
        tokens = extension.tokens if pin is None else np.concatenate([pin.tokens[: extension.start], extension.tokens])
        with self._cache.prefill(tokens, extension.start, pin) as prefill:
            for computed in prefill.steps():
                yield [], computed
            own = prefill.finished()
        self._cache.release(own.blocks)
        yield [(extension.row, own.hidden)], prefill.uncounted

    def _count_shared(self, rows: Sequence[Row]) -> None:
        """Credit rows with the tokens of their prefix as cached. Rows longer than a step share whole steps alone."""
        step = self._forward.shapes.step_tokens
        for row in rows:
            row.buffer.cached_tokens += row.prefix_end // step * step if len(row.tokens) > step else row.prefix_end


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
    return Extension(extension.tokens, extension.start, extension.row, pin.prefix.table)


def _one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items, and ask for the next one before each is yielded."""
    waiting: list[T] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting


def _extension(row: Row, prefix: TokenIds, table: TokenIds) -> Extension:
    """Return the item itself, or for an empty item that ends within the prefix the last token that it sees."""
    if len(row.tokens):
        return Extension(row.tokens, row.prefix_end, row, table)
    return Extension(prefix[row.prefix_end - 1 : row.prefix_end], row.prefix_end - 1, row, table)


def _ends_with(row: Row, prefix: TokenIds) -> bool:
    """Return whether a row is scored at the prefix's last token."""
    return not len(row.tokens) and row.prefix_end == len(prefix)
