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
    sequence. batch_invariant: nothing but a row's own lengths may decide. Where it is off, fewest_extended: ``auto``
    extends a prefix for so many items or more. longest_dense: a packed sequence of at most so many tokens has a mask,
    where ``mask`` is ``auto``.
    """

    algorithm: Wanted
    mask: Literal["auto", "dense", "segment"]
    prefill_extend_enabled: bool
    shortest_prefix: int
    longest_packed: int
    batch_invariant: bool = True
    fewest_extended: int = 1
    longest_dense: int = 0

    @property
    def looks_around(self) -> bool:
        """Whether a row's company may decide how it is scored."""
        return self.algorithm == "auto" and not self.batch_invariant

    @property
    def may_pack(self) -> bool:
        """Whether there may be packed sequences without a mask."""
        return self.mask != "dense" and (self.algorithm == "packed" or self.looks_around)

    @property
    def may_mask(self) -> bool:
        """Whether there may be packed sequences with a mask."""
        masks = self.mask == "dense" or (self.mask == "auto" and self.longest_dense > 0)
        return masks and (self.algorithm == "packed" or self.looks_around)

    def packed(self, tokens: int) -> Algorithm:
        """The kind of packed sequence for so many tokens."""
        dense = self.mask == "dense" or (self.mask == "auto" and tokens <= self.longest_dense)
        return Algorithm.PACKED_DENSE if dense else Algorithm.PACKED_SEGMENT


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm, and why. fallback: it is not the one that was asked for."""

    algorithm: Algorithm
    reason: str
    fallback: bool = False


def choose(policy: Policy, prefix_length: int, prefix_end: int, own_length: int, group_length: int) -> Choice:
    """How to score a row: from its prefix and its own length alone, so that its company can't change its bits.

    prefix_length: of the group's prefix; prefix_end: how much of it the row sees; own_length: the item's; group_length:
    of the prefix and all items, which only tells how a packed sequence is masked. In tokens.
    """
    if prefix_end == 0:
        return Choice(Algorithm.SERIAL, "there is no prefix to share")
    match policy.algorithm:
        case "serial":
            return Choice(Algorithm.SERIAL, "asked for")
        case "packed" if prefix_length + own_length <= policy.longest_packed:
            return Choice(policy.packed(group_length), "asked for")
        case "auto" if prefix_end < policy.shortest_prefix:
            return Choice(Algorithm.SERIAL, "the prefix is short")
    asked = policy.algorithm != "auto"
    if not policy.prefill_extend_enabled:
        return Choice(Algorithm.SERIAL, "prefill_extend is switched off", fallback=True)
    if policy.algorithm == "packed":
        return Choice(Algorithm.PREFILL_EXTEND, "prefix and item exceed max_multi_item_seq_len", fallback=True)
    return Choice(Algorithm.PREFILL_EXTEND, "asked for" if asked else "the prefix is shared")
