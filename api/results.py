"""Read jobs together with their scores and what computed them, for the routes that answer with them."""

from __future__ import annotations

from collections.abc import Sequence

from api.drift import ScoreCounts
from api.metrics import Metrics
from api.rounds import Rounds
from api.store import Store
from jobs.queue.provenance import provenance_ids_of, read_provenances
from jobs.queue.read import results_of, scores_of
from jobs.store.database import Database
from jobs.store.provenance import Provenance, merged
from jobs.store.records import JobRecord, JobResult, JobStatus, ScorePage
from jobs.tenancy.ownership import job_not_found

MAX_VALUES = 2**20
"""Scores that are read with one query, unless one job alone has more: this bounds the memory of a query."""


Shown = tuple[Provenance | None, ...]
"""The provenances of a job's scores. None stands for scores of a version that recorded nothing."""


class KnownProvenances:
    """The provenances that this process has read, by their ids. Safe to use from threads.

    None of them ever changes, and there are few.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, Provenance] = {}

    def known(self, ids: Sequence[int | None]) -> Shown | None:
        """Return provenances, or None if one of them must be looked up. Never blocks."""
        if any(one is not None and one not in self._known for one in ids):
            return None
        return merged(tuple(None if one is None else self._known[one] for one in ids))

    def look_up(self, ids: Sequence[int | None]) -> Shown:
        """Return provenances, and read those that are not known yet. Blocks on SQL. Raises StorageUnavailable."""
        missing = [one for one in ids if one is not None and one not in self._known]
        if missing:
            self._known |= read_provenances(self._database, missing)
        return merged(tuple(None if one is None else self._known.get(one) for one in ids))


class Results:
    """The results of jobs, as a process reads them. Create it inside the event loop that uses it."""

    def __init__(self, store: Store, metrics: Metrics, counts: ScoreCounts) -> None:
        self.provenances = KnownProvenances(store.database)
        self.counts = counts
        self._store = store
        self._metrics = metrics
        self._rounds = Rounds(lambda job_ids: store.threads.sql(results_of, store.database, job_ids), MAX_VALUES)

    async def shared(self, tenant: str, job_id: str, values: int) -> JobResult:
        """Return a job, and its scores if it has succeeded, from a query that all who ask meanwhile share.

        values: how many scores it has. Raises RequestError JOB_NOT_FOUND, StorageUnavailable.
        """
        found = await self._rounds.answer(job_id, values)
        if found is None or found[0].tenant != tenant:
            raise job_not_found()
        return found

    def read(self, job: JobRecord, max_items: int | None = None) -> JobResult:
        """Count a job that has ended, and read its scores unless it has more than ``max_items``. Blocks on SQL."""
        self._metrics.count_ended(job.id, job.status)
        if job.status is not JobStatus.SUCCEEDED or (max_items is not None and job.total_items > max_items):
            return job, None
        page = scores_of(self._store.database, job, 0, job.total_items)
        self.counts.count_page(page)
        return job, page

    def read_provenance(self, job: JobRecord, page: ScorePage | None) -> Shown | None:
        """Return what computed the scores of a job that has ended; None before that. Blocks on SQL.

        page: all scores of the job, if they were read.
        """
        if not job.status.ended:
            return None
        ids = provenance_ids_of(self._store.database, job.id) if page is None else page.provenances
        return self.provenances.look_up(ids)

    async def find_provenance(self, tenant: str, ids: Sequence[int | None]) -> Shown:
        """Return provenances. They are read from the database the first time that this process meets them."""
        known = self.provenances.known(ids)
        return known if known is not None else await self._store.threads.sql_of(tenant, self.provenances.look_up, ids)
