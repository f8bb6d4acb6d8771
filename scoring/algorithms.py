"""The four ways to score a group, and which one a row is scored by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Wanted = Literal["auto", "packed", "prefill_extend", "serial"]
"""What a deployment may ask for; ``auto`` leaves it to :func:`choose`."""


class Algorithm(StrEnum):
    """What runs; every one gives the same score up to rounding (SEMANTICS: "Algorithms")."""

    SERIAL = "serial"
    """Whole sequences, batched and padded."""
    PREFILL_EXTEND = "prefill_extend"
    """The prefix once, into a cache that all items extend."""
    PACKED_SEGMENT = "packed_segment"
    """Prefixes and items in one sequence; what a token sees follows from a few numbers, and empty tiles are skipped."""
    PACKED_DENSE = "packed_dense"
    """The same with an explicit mask."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What is switched on. Settings of the v1.0 spec, under its names; see :mod:`settings.engine`.

    shortest_prefix: in tokens; ``auto`` scores rows behind shorter ones serially. longest_packed: tokens of a packed
    sequence.
    """

    algorithm: Wanted
    mask: Literal["auto", "dense", "segment"]
    prefill_extend_enabled: bool
    shortest_prefix: int
    longest_packed: int


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm, and why. fallback: it is not the one that was asked for."""

    algorithm: Algorithm
    reason: str
    fallback: bool = False


def choose(policy: Policy, prefix_length: int, prefix_end: int, own_length: int) -> Choice:
    """How to score a row: from its prefix and its own length alone, so that its company can't change its bits.

    prefix_length: of the group's prefix; prefix_end: how much of it the row sees; own_length: the item's. In tokens.
    """
    if prefix_end == 0:
        return Choice(Algorithm.SERIAL, "there is no prefix to share")
    match policy.algorithm:
        case "serial":
            return Choice(Algorithm.SERIAL, "asked for")
        case "packed" if prefix_length + own_length <= policy.longest_packed:
            dense = policy.mask == "dense"
            return Choice(Algorithm.PACKED_DENSE if dense else Algorithm.PACKED_SEGMENT, "asked for")
        case "auto" if prefix_end < policy.shortest_prefix:
            return Choice(Algorithm.SERIAL, "the prefix is short")
    asked = policy.algorithm != "auto"
    if not policy.prefill_extend_enabled:
        return Choice(Algorithm.SERIAL, "prefill_extend is switched off", fallback=True)
    if policy.algorithm == "packed":
        return Choice(Algorithm.PREFILL_EXTEND, "prefix and item exceed max_multi_item_seq_len", fallback=True)
    return Choice(Algorithm.PREFILL_EXTEND, "asked for" if asked else "the prefix is shared")
