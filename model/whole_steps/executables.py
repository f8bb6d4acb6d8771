"""The compiled programs of whole steps: few, so that they are all compiled before a worker serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import structlog
from jax.typing import DTypeLike

from model.buckets import HeadKey
from model.executables import ExecutableTable
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

log = structlog.stdlib.get_logger("engine")


class WholeStepExecutables(ExecutableTable[WholeStepKey]):
    """The programs of :class:`model.whole_steps.programs.WholeStepPrograms`."""

    def __init__(
        self,
        programs: WholeStepPrograms,
        platform: Platform,
        shape: StepShape,
        check: Callable[[WholeStepKey, jax.stages.Compiled], None],
    ) -> None:
        super().__init__(check)
        self._programs = programs
        self._shape = shape
        self._options = dict(platform.compiler_options)

    def _compile(self, key: WholeStepKey) -> jax.stages.Compiled:
        started = time.perf_counter()
        program, arguments, donated = self.program(key)
        lowered = jax.jit(program, donate_argnums=donated).lower(*arguments)
        executable = lowered.compile(compiler_options=self._options)
        log.debug("compiled", program=str(key), seconds=round(time.perf_counter() - started, 2))
        return executable

    def program(self, key: WholeStepKey) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]:
        """Return a program, the shapes of its arguments, and the numbers of the donated ones."""
        programs, shape, weights = self._programs, self._shape, self._programs.weights
        rows = _ids(shape.tokens)
        tiles = _ids(shape.tiles, shape.longest), _ids(shape.tiles), rows
        pool = programs.pool(shape.blocks, shape.block_tokens)
        match key:
            case ExtendKey():
                slots = _ids(shape.slot_rows), _ids(shape.slot_rows), rows
                arguments = (*weights, *pool, rows, rows, *tiles, *slots, _ids(shape.max_items))
                return programs.extend, arguments, ()
            case PrefillKey():
                places = _ids(shape.tiles, 2), _ids(shape.tiles)
                arguments = (*weights, *pool, rows, rows, *tiles, *places)
                return programs.prefill, arguments, (len(weights), len(weights) + 1)
            case PackedKey(tokens, logit_rows, dense):
                sequence = _ids(tokens), _ids(tokens), _ids(tokens, 2, 2), _ids(logit_rows)
                return programs.packed(dense=dense), (*weights, *sequence), ()
            case HeadKey(head, states, labels):
                hidden = _shape(jnp.float32, states, programs.config.width)
                return programs.lm_head(head), (*programs.head, hidden, _ids(labels)), ()


def _ids(*sizes: int) -> jax.ShapeDtypeStruct:
    return _shape(jnp.int32, *sizes)


def _shape(dtype: DTypeLike, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]
