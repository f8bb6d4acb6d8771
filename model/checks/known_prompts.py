"""Prompts of random tokens whose final states are known, because NumPy computes them as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.buckets import SHORTEST_LENGTH_BUCKET
from model.checks.expected import ExpectedOutput
from model.checks.numpy_decoder import Floats, ServedDecoder
from model.checks.numpy_states import final_states
from scoring.layout import ChunkWork, GroupWork, Head, Rows, TokenIds

PREFIX = 5  # tokens
ITEMS = ((3, 5), (1, 5), (0, 5), (2, 4), (SHORTEST_LENGTH_BUCKET + 1, 5))
"""The known prompt's items, in two length buckets: own tokens, and how many tokens of the prefix they see."""

Content = tuple[bytes, bytes]  # what a row sees of its prefix, and its own tokens


@dataclass(frozen=True, slots=True, eq=False)
class KnownPrompts:
    """Prompts, and the companies in which they are scored, one company after another.

    Rows of a company that stand in no prompt are only there as company.
    """

    prompts: tuple[GroupWork, ...]  # each row once
    companies: tuple[tuple[GroupWork, ...], ...]

    def copies(self) -> Copies:
        """Return which rows of the companies stand in a prompt."""
        numbers = {content: number for number, content in enumerate(contents(self.prompts))}
        of_all = np.array([numbers.get(content, -1) for groups in self.companies for content in contents(groups)])
        rows = np.flatnonzero(of_all >= 0)
        _, first, copy_of = np.unique(of_all[rows], return_index=True, return_inverse=True)
        return Copies(rows, of_all[rows], first[copy_of])


class Copies(NamedTuple):
    """The n rows of all companies, one company after another, that stand in a prompt."""

    rows: npt.NDArray[np.intp]  # [n]: which of all rows they are
    numbers: npt.NDArray[np.intp]  # [n]: which row of the prompts each of them is
    first: npt.NDArray[np.intp]  # [n]: which of the n rows is the first one with the same number


def known_prompt(vocabulary: int) -> GroupWork:
    """Return a prompt of a few tokens, the same for all models with such a vocabulary."""
    random = np.random.default_rng(0)
    prefix = random.integers(0, vocabulary, PREFIX, np.int32)
    items = [random.integers(0, vocabulary, length, np.int32) for length, _ in ITEMS]
    return prompt(prefix, list(zip(items, (end for _, end in ITEMS), strict=True)))


def known_alone(vocabulary: int) -> KnownPrompts:
    """Return the same prompt without any company."""
    known = known_prompt(vocabulary)
    return KnownPrompts((known,), ((known,),))


def prompt(prefix: TokenIds, items: Sequence[tuple[TokenIds, int]], owner: str = "known answer") -> GroupWork:
    """Return a prefix with items, of which each has its own tokens and sees so many tokens of the prefix."""
    rows = Rows.pack([tokens for tokens, _ in items], [end for _, end in items])
    return GroupWork(owner, prefix, (ChunkWork(0, rows, (0,), Head.LOGITS),))


def contents(groups: Sequence[GroupWork]) -> Iterator[Content]:
    """Yield what decides the final state of each row."""
    for group in groups:
        for chunk in group.chunks:
            stops = np.cumsum(chunk.rows.lengths).tolist()
            lengths, ends = chunk.rows.lengths.tolist(), chunk.rows.prefix_ends.tolist()
            for stop, length, end in zip(stops, lengths, ends, strict=True):
                yield group.prefix[:end].tobytes(), chunk.rows.tokens[stop - length : stop].tobytes()


def expected_states(decoder: ServedDecoder, states: Callable[..., Floats]) -> ExpectedOutput:
    """Return final states that programs must compute. states: computes them in NumPy, also ``shaken``."""
    of_median = decoder.config.mixture is not None
    return ExpectedOutput(states(), states_of=decoder, shaken=partial(states, shaken=True), of_median=of_median)


def prompt_states(decoder: ServedDecoder, groups: Sequence[GroupWork], *, shaken: bool = False) -> list[Floats]:
    """Return NumPy's final states of each row of the groups, which have a chunk each.

    They are those of all own tokens, [length, width], or of an empty row, that of the last token that it sees.
    shaken: see :func:`model.checks.numpy_states.final_states`.
    """
    tokens, positions, rows = list[TokenIds](), list[TokenIds](), list[slice]()
    length = sum(len(group.prefix) + len(group.chunks[0].rows.tokens) for group in groups)
    visible, begin = np.zeros((length, length), np.bool_), 0
    for group in groups:
        (chunk,) = group.chunks
        of_group = chunk.rows
        size = len(group.prefix) + len(of_group.tokens)
        tokens += [group.prefix, of_group.tokens]
        positions.append(np.arange(size, dtype=np.int32))
        visible[begin : begin + size, begin : begin + size] = np.tri(size, dtype=np.bool_)
        stops = len(group.prefix) + np.cumsum(of_group.lengths)
        for stop, own, end in zip(
            stops.tolist(), of_group.lengths.tolist(), of_group.prefix_ends.tolist(), strict=True
        ):
            visible[begin + stop - own : begin + stop, begin + end : begin + stop - own] = False
            positions[-1][stop - own : stop] = end + np.arange(own)
            first, last = (stop - own, stop) if own else (end - 1, end)
            rows.append(slice(begin + first, begin + last))
        begin += size
    found = final_states(decoder, np.concatenate(tokens), np.concatenate(positions), visible, shaken=shaken)
    return [found[row] for row in rows]
