"""How large the measurement is: the model and the workloads that are asked for, or tiny ones to try the command."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workloads import WORKLOADS
from tools.tpu.workloads import Group, Workload


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of a run."""

    shape: str  # of the model whose speed is measured: a name in benchmarks.shapes
    tiny: bool = False

    @property
    def repeats(self) -> int:
        """How often something is timed, of which the median counts."""
        return 1 if self.tiny else 3

    def workload(self, name: str) -> Workload:
        """Return a workload of :data:`benchmarks.workloads.WORKLOADS`, or a bit of it."""
        whole = WORKLOADS[name]
        if not self.tiny:
            return whole
        few = whole.groups[:2]
        return Workload(tuple(Group(min(one.query, 70), tuple(min(item, 8) for item in one.items[:3])) for one in few))

    @property
    def settings(self) -> dict[str, object]:
        """Settings of engines, beside those of the environment: sizes that compile quickly for a tiny run."""
        if not self.tiny:
            return {}
        return {"step_tokens": 64, "max_multi_item_seq_len": 512, "prefix_cache_bytes": 2**24}
