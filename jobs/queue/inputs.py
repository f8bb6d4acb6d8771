"""Reading what a job was asked: the tokens of its query, of some of its items, and of its labels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Row, and_, bindparam, select

from jobs.store.codec import unpack_ids, unpack_options
from jobs.store.database import Database, Transaction
from jobs.store.lists import is_one_of
from jobs.store.tables import chunk_inputs, chunks, jobs, prefixes
from jobs.tenancy.ownership import find_job
from scoring.layout import Continuations, Rows, TokenIds
from scoring.options import Scoring


@dataclass(frozen=True, slots=True, eq=False)
class ItemTokens:
    """One item."""

    tokens: TokenIds  # behind the part of the query that it shares
    prefix_end: int  # how many tokens of the query it shares


@dataclass(frozen=True, slots=True, eq=False)
class JobInputs:
    """What a job was asked."""

    work_key: str  # of the model whose tokenizer made the tokens
    query: TokenIds
    labels: Sequence[Sequence[int]] | None
    """The tokens of each label, as they stand behind the first item; None if each item has labels of its own."""
    items: Mapping[int, ItemTokens]  # by their index, those that were asked for and exist, in that order


_FIRST_ITEMS = select(chunks.c.first_item).where(chunks.c.job_id == bindparam("of_job")).order_by(chunks.c.first_item)
_ROWS = (
    select(chunks.c.first_item, *chunk_inputs.c["rows", "continuations"])
    .join(chunk_inputs, chunk_inputs.c.chunk_id == chunks.c.id)
    .where(and_(chunks.c.job_id == bindparam("of_job"), is_one_of(chunks.c.first_item, "of_first_items")))
)
_PREFIX = select(*prefixes.c["tokens", "tokenizer_fingerprint"]).where(prefixes.c.id == bindparam("of_prefix"))


def work_keys(db: Database, job_ids: Sequence[str]) -> dict[str, str]:
    """Return the work keys of jobs by their ids, whichever tenants own them. Removed jobs are left out."""
    with db.read() as tx:
        return {row.id: row.tokenizer_fingerprint for row in tx.execute(_WORK_KEYS, {"of_jobs": job_ids})}


_WORK_KEYS = (
    select(jobs.c.id, prefixes.c.tokenizer_fingerprint)
    .join(prefixes, prefixes.c.id == jobs.c.prefix_id)
    .where(is_one_of(jobs.c.id, "of_jobs"))
)


def read_inputs(db: Database, tenant: str, job_id: str, indices: Sequence[int]) -> JobInputs:
    """Return what a job was asked, with these of its items. Raises RequestError JOB_NOT_FOUND."""
    # One snapshot, so that a job that is deleted meanwhile is read whole.
    with db.read(snapshot=True) as tx:
        job = find_job(tx, tenant, job_id)
        prefix = tx.execute(_PREFIX, {"of_prefix": job.prefix_id}).one()
        scoring = unpack_options(job.options).scoring
        # Behind each prompt of a completion, a placeholder stands for the tokens that follow.
        items = _items(tx, job_id, indices, scoring, (job.form or {}).get("max_tokens", 0))
        match scoring:
            case Scoring.LIKELIHOOD:
                labels: list[list[int]] = []
            case Scoring.SEQUENCE:
                labels = _labels_behind_first_item(tx, job_id)
            case _:
                labels = [[label] for label in unpack_ids(job.label_token_ids).tolist()]
    return JobInputs(
        prefix.tokenizer_fingerprint,
        unpack_ids(prefix.tokens),
        labels if job.item_labels is None else None,
        items,
    )


def _labels_behind_first_item(tx: Transaction, job_id: str) -> list[list[int]]:
    found = tx.execute(_ROWS, {"of_job": job_id, "of_first_items": [0]}).one_or_none()
    if found is None:
        return []
    of_first = Continuations.from_bytes(found.continuations).of_rows(0, 1, len(Rows.from_bytes(found.rows)))
    return [tokens.tolist() for tokens in np.split(of_first.tokens, np.cumsum(of_first.lengths))[: len(of_first)]]


def _items(
    tx: Transaction, job_id: str, indices: Sequence[int], scoring: Scoring, behind: int
) -> dict[int, ItemTokens]:
    # An index of the database has the first items of all chunks, so only the chunks with wanted items are read.
    first_items = list(tx.scalars(_FIRST_ITEMS, {"of_job": job_id}))
    places = {index: bisect_right(first_items, index) - 1 for index in indices} if first_items else {}
    firsts = {index: first_items[place] for index, place in places.items()}
    found = tx.execute(_ROWS, {"of_job": job_id, "of_first_items": sorted(set(firsts.values()))}).all()
    rows = {row.first_item: _rows(row, scoring, behind) for row in found}
    return {
        index: _item(rows[first], index - first)
        for index, first in firsts.items()
        if first in rows and index - first < len(rows[first])
    }


def _rows(row: Row[Any], scoring: Scoring, behind: int) -> Rows:
    """Return the items of a chunk. Those of a likelihood are rows and their targets, but for those behind the items."""
    rows = Rows.from_bytes(row.rows)
    if scoring is not Scoring.LIKELIHOOD:
        return rows
    targets = Continuations.from_bytes(row.continuations)
    own, rest = (np.split(part.tokens, np.cumsum(part.lengths)[:-1]) for part in (rows, targets))
    items = [np.concatenate([one, more[: len(more) - behind]]) for one, more in zip(own, rest, strict=True)]
    return Rows.pack(items, rows.prefix_ends)


def _item(rows: Rows, place: int) -> ItemTokens:
    begin = int(rows.lengths[:place].sum())
    return ItemTokens(rows.tokens[begin : begin + int(rows.lengths[place])], int(rows.prefix_ends[place]))
