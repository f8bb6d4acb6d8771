"""Recording and reading where scores come from: see :mod:`jobs.store.provenance`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import bindparam, func, select

from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.lists import is_one_of
from jobs.store.provenance import Provenance
from jobs.store.tables import DONE, chunk_scores, chunks, provenances
from jobs.store.upsert import insert_if_new


def record_provenance(db: Database, provenance: Provenance) -> int:
    """Store a provenance unless it is stored already. Returns its id. Raises StorageUnavailable."""
    row = {"id": provenance.id, "content": asdict(provenance), "recorded_at": NOW}
    with db.write() as tx:
        tx.execute(insert_if_new(provenances).values(row))
    return provenance.id


def read_provenances(db: Database, ids: Collection[int]) -> dict[int, Provenance]:
    """Return provenances by id. Those that are not stored are left out. Raises StorageUnavailable."""
    with db.read() as tx:
        return {row.id: Provenance.read(row.content) for row in tx.execute(_FIND, {"ids": list(ids)})}


def provenance_ids_of(db: Database, job_id: str) -> tuple[int | None, ...]:
    """Return the distinct provenances of a job's scores, in the order of its items.

    None stands for scores of a version that recorded nothing. It reads a row for each chunk, so it is meant for jobs
    that have ended. Raises StorageUnavailable.
    """
    with db.read(slow=True) as tx:
        return tuple(tx.scalars(_OF_JOB, {"of_job": job_id}))


_FIND = select(*provenances.c["id", "content"]).where(is_one_of(provenances.c.id, "ids"))
_OF_JOB = (
    select(chunk_scores.c.provenance_id)
    .join(chunks, chunks.c.id == chunk_scores.c.chunk_id)
    .where(chunks.c.job_id == bindparam("of_job"), DONE)
    .group_by(chunk_scores.c.provenance_id)
    .order_by(func.min(chunks.c.first_item))
)
