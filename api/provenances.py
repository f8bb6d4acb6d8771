"""The provenances that this process has read. None of them ever changes, and there are few."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.queue.provenance import read_provenances
from jobs.store.database import Database
from jobs.store.provenance import Provenance, merged

Shown = tuple[Provenance | None, ...]
"""The provenances of a job's scores. None stands for scores of a version that recorded nothing."""


class KnownProvenances:
    """Finds provenances by their ids. Safe to use from threads."""

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
