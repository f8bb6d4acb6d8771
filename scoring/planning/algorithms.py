"""The four algorithms that can score a group, and the rule that selects one for a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

AlgorithmSetting = Literal["auto", "packed", "prefill_extend", "serial"]
"""What a deployment may ask for; ``auto`` leaves the choice to the planner."""


class Algorithm(StrEnum):
    """All algorithms give the same scores up to rounding (``docs/algorithms.md``)."""

    SERIAL = "serial"  # whole sequences, batched and padded
    PREFILL_EXTEND = "prefill_extend"  # the prefix once, into a cache that all items extend
    PACKED_SEGMENT = "packed_segment"  # prefixes and items in one sequence, without the tiles that nobody sees
    PACKED_DENSE = "packed_dense"  # the same sequence with an explicit mask


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decide about algorithms: see :mod:`settings.engine`."""

    algorithm: AlgorithmSetting
    mask: Literal["auto", "dense", "segment"]  # of packed sequences
    prefill_extend_enabled: bool
    min_prefix_tokens: int  # with ``auto``, rows behind shorter prefixes are scored serially
    max_packed_tokens: int  # of a packed sequence
    batch_invariant: bool = True  # a row's algorithm depends on the lengths of its own prefix and item alone
    min_extended_rows: int = 1  # by estimates, ``prefill_extend`` is considered for this many items or more
    max_dense_tokens: int = 0  # packed sequences up to this length have a mask, where ``mask`` is ``auto``
    may_pack: bool = True  # the model can compute packed sequences

    @property
    def is_exact(self) -> bool:
        """Whether no bit of a row depends on other rows. In packed sequences, their lengths may matter."""
        return self.batch_invariant and self.algorithm != "packed"

    @property
    def uses_estimates(self) -> bool:
        """Whether the algorithm is chosen for a whole group, by estimates."""
        return self.algorithm == "auto" and not self.batch_invariant

    @property
    def may_use_segments(self) -> bool:
        """Whether packed sequences without a mask can occur."""
        return self.may_pack and self.mask != "dense" and (self.algorithm == "packed" or self.uses_estimates)

    @property
    def may_use_dense_mask(self) -> bool:
        """Whether packed sequences with a mask can occur."""
        has_masks = self.mask == "dense" or (self.mask == "auto" and self.max_dense_tokens > 0)
        return self.may_pack and has_masks and (self.algorithm == "packed" or self.uses_estimates)

    def packed_algorithm(self, tokens: int) -> Algorithm:
        """Return the algorithm of a packed sequence of ``tokens`` tokens."""
        dense = self.mask == "dense" or (self.mask == "auto" and tokens <= self.max_dense_tokens)
        return Algorithm.PACKED_DENSE if dense else Algorithm.PACKED_SEGMENT


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm, and the reason for it."""

    algorithm: Algorithm
    reason: str
    fallback: bool = False  # the settings ask for another algorithm, which is not possible


def choose(policy: Policy, prefix_length: int, prefix_end: int, own_length: int, group_length: int) -> Choice:
    """Choose the algorithm of a row from its prefix and its own length alone, so that no other row changes its bits.

    All lengths are in tokens. prefix_length: of the group's prefix; prefix_end: the part of it that the row sees;
    own_length: of the item; group_length: of the prefix and all items, for the mask of a packed sequence.
    """
    if prefix_end == 0:
        return Choice(Algorithm.SERIAL, "there is no prefix to share")
    match policy.algorithm:
        case "serial":
            return Choice(Algorithm.SERIAL, "asked for")
        case "packed" if prefix_length + own_length <= policy.max_packed_tokens:
            return Choice(policy.packed_algorithm(group_length), "asked for")
        case "auto" if prefix_end < policy.min_prefix_tokens:
            return Choice(Algorithm.SERIAL, "the prefix is short")
    asked = policy.algorithm != "auto"
    if not policy.prefill_extend_enabled:
        return Choice(Algorithm.SERIAL, "prefill_extend is switched off", fallback=True)
    if policy.algorithm == "packed":
        return Choice(Algorithm.PREFILL_EXTEND, "prefix and item exceed max_multi_item_seq_len", fallback=True)
    return Choice(Algorithm.PREFILL_EXTEND, "asked for" if asked else "the prefix is shared")
