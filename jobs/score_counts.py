"""How many rows had which scores, by artefact and hour. There is no text in it, no single score, and no tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import bindparam, delete, func, select

from jobs.store.database import Database
from jobs.store.tables import score_counts as table
from jobs.store.upsert import insert

KEPT_HOURS = 8 * 24
"""Older counts are removed."""


class Cell(NamedTuple):
    """What is counted: a cell of a distribution of the scores that an artefact was applied to."""

    artefact: str  # its id
    hour: int  # since 1970, in which the jobs ended
    distribution: str
    cell: int


_ADD = insert(table)
_ADD = _ADD.on_conflict_do_update(
    index_elements=list(table.primary_key), set_={"rows": table.c.rows + _ADD.excluded.rows}
)
_REMOVE = delete(table).where(table.c.hour < bindparam("oldest"))
_SUM = (
    select(table.c.artefact, table.c.distribution, table.c.cell, func.sum(table.c.rows))
    .where(table.c.hour >= bindparam("first"), table.c.hour < bindparam("end"))
    .group_by(table.c.artefact, table.c.distribution, table.c.cell)
)


def add_counts(db: Database, counts: Mapping[Cell, int]) -> None:
    """Add to what was counted, and remove what is old. Raises StorageUnavailable."""
    # In the order of their keys, so that two transactions can't wait for each other.
    rows = [{**cell._asdict(), "rows": number} for cell, number in sorted(counts.items())]
    with db.write() as tx:
        tx.execute(_REMOVE, {"oldest": rows[-1]["hour"] - KEPT_HOURS})
        tx.execute(_ADD, rows)


def sum_counts(db: Database, first: int, end: int) -> dict[tuple[str, str], dict[int, int]]:
    """Return the rows by artefact and distribution, and in it by cell, of the hours from first to before end.

    Raises StorageUnavailable.
    """
    found: dict[tuple[str, str], dict[int, int]] = {}
    with db.read() as tx:
        for artefact, distribution, cell, number in tx.execute(_SUM, {"first": first, "end": end}):
            found.setdefault((artefact, distribution), {})[cell] = int(number)
    return found
