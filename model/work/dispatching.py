"""Dispatches what is planned: all that has one adapter and one algorithm, and then the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from model.buckets import packed_logit_rows
from model.forward import Forward
from model.packed_sequence import pack_sequences
from model.phases import OnPhase, watched
from model.running.extending import Extender, GroupRows, StepOutput
from model.work.planned import Part
from scoring.planning.algorithms import Algorithm

Phased = tuple[str, StepOutput]
"""A step, behind the phase that it is in."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Dispatches steps for one call of an engine."""

    forward: Forward
    extender: Extender
    longest_packed: int  # tokens of a packed sequence
    on_phase: OnPhase | None

    def of(self, parts: Sequence[Part]) -> Iterator[Phased]:
        """Dispatch the steps of parts of groups."""
        by_adapter: dict[str | None, dict[Algorithm, list[GroupRows]]] = defaultdict(lambda: defaultdict(list))
        for part in parts:
            by_adapter[part.work.group.adapter][part.choice.algorithm].append(part.work)
        for adapter, work in by_adapter.items():
            yield from self._with(adapter, work)

    def _with(self, adapter: str | None, work: dict[Algorithm, list[GroupRows]]) -> Iterator[Phased]:
        """Dispatch all that has the same adapter, or none. No step has several."""
        of_phases: list[tuple[Iterator[StepOutput], Callable[[StepOutput | None], str]]] = [
            (self.extender.serial(work[Algorithm.SERIAL]), lambda _: "serial"),
            (self.extender.prefill_extend(work[Algorithm.PREFILL_EXTEND]), _prefill_or_extend),
            (self._packed(work[Algorithm.PACKED_SEGMENT], adapter, dense=False), lambda _: "packed"),
            (self._packed(work[Algorithm.PACKED_DENSE], adapter, dense=True), lambda _: "packed"),
        ]
        for steps, phase in of_phases:
            yield from ((phase(step), step) for step in watched(steps, phase, self.on_phase))

    def _packed(self, work: Sequence[GroupRows], adapter: str | None, *, dense: bool) -> Iterator[StepOutput]:
        """Compute several groups in packed sequences."""
        groups = ((part.group.prefix, part.rows) for part in work)
        for packed in pack_sequences(groups, self.longest_packed, packed_logit_rows(self.longest_packed)):
            computed = self.forward.packed(packed, dense=dense, adapter=adapter)
            yield [(row, computed.of(n, n + 1)) for n, row in enumerate(packed.rows)], computed


def _prefill_or_extend(step: StepOutput | None) -> str:
    """Return the phase of a step. Only one that extends a prefix has final states of rows."""
    return "extend" if step is None or step[0] else "prefill"
