"""The compiled programs of whole steps: few, so that they are all compiled before a worker serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from model.buckets import HeadKey
from model.executable_table import ExecutableTable, Source, float32, int32
from model.platforms import Platform
from model.whole_steps.programs import WholeStepPrograms
from model.whole_steps.shape import StepShape


@dataclass(frozen=True, slots=True)
class ExtendKey:
    """A step of items behind prefixes."""


@dataclass(frozen=True, slots=True)
class PrefillKey:
    """A step of pieces of prefixes."""


@dataclass(frozen=True, slots=True)
class PackedKey:
    """A packed sequence."""

    tokens: int
    logit_rows: int  # rows that are scored
    dense: bool  # with an explicit mask


WholeStepKey = ExtendKey | PrefillKey | PackedKey | HeadKey


class WholeStepExecutables(ExecutableTable[WholeStepKey]):
    """The programs of :class:`model.whole_steps.programs.WholeStepPrograms`."""

    def __init__(
        self,
        programs: WholeStepPrograms,
        platform: Platform,
        shape: StepShape,
        check: Callable[[WholeStepKey, jax.stages.Compiled], None],
    ) -> None:
        super().__init__(platform, check)
        self._programs = programs
        self._shape = shape

    def source(self, key: WholeStepKey) -> Source:
        """See :class:`model.executable_table.ExecutableTable`."""
        programs, shape, weights = self._programs, self._shape, self._programs.weights
        rows = int32(shape.tokens)
        tiles = int32(shape.tiles, shape.longest), int32(shape.tiles), rows
        pool = programs.pool(shape.blocks, shape.block_tokens)
        match key:
            case ExtendKey():
                slots = int32(shape.slot_rows), int32(shape.slot_rows), rows
                arguments = (*weights, *pool, rows, rows, *tiles, *slots, int32(shape.max_items))
                return Source(programs.extend, arguments)
            case PrefillKey():
                places = int32(shape.tiles, 2), int32(shape.tiles)
                arguments = (*weights, *pool, rows, rows, *tiles, *places)
                return Source(programs.prefill, arguments, donated=(len(weights), len(weights) + 1))
            case PackedKey(tokens, logit_rows, dense):
                sequence = int32(tokens), int32(tokens), int32(tokens, 2, 2), int32(logit_rows)
                return Source(programs.packed(dense=dense), (*weights, *sequence))
            case HeadKey(head, states, labels):
                hidden = float32(states, programs.config.width)
                return Source(programs.lm_head(head), (*programs.head, hidden, int32(labels)))
