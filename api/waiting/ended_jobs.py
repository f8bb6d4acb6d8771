"""Which jobs have ended, as far as this process knows."""

from __future__ import annotations

import threading
from collections import OrderedDict

MAX_ENDED_JOBS = 20_000
"""How many ended jobs are remembered; the ones that were seen longest ago are forgotten first."""


class EndedJobs:
    """The ids of jobs that ended lately. Safe to use from threads."""

    def __init__(self) -> None:
        self._counted: OrderedDict[str, bool] = OrderedDict()  # by job id: whether its end was counted already
        self._lock = threading.Lock()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._counted

    def add(self, job_id: str, *, counting: bool = False) -> bool:
        """Remember that a job has ended. With ``counting``, return whether it is counted now for the first time."""
        with self._lock:
            counted = self._counted.get(job_id, False)
            self._counted[job_id] = counted or counting
            self._counted.move_to_end(job_id)
            if len(self._counted) > MAX_ENDED_JOBS:
                self._counted.popitem(last=False)
        return counting and not counted

    def remove(self, job_id: str) -> None:
        with self._lock:
            self._counted.pop(job_id, None)
