"""The work of chunks that have just been claimed, from their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from jobs.queue.claims.claim_choice import Chosen
from jobs.store.codec import unpack_ids, unpack_options
from jobs.store.records import ClaimedJob
from scoring.layout import ChunkWork, Continuations, GroupWork, Rows
from scoring.options import Priority


def claimed_work(rows: Mapping[int, Row[Any]], taken: Iterable[Chosen]) -> tuple[GroupWork, ...]:
    """Return the work of chunks by group; groups and chunks keep their order.

    rows: the inputs of each chunk, by id. One row of each group holds the tokens of its prefix.
    """
    # With shared prefixes, chunks of one group may belong to several tenants and need not be neighbours.
    groups: dict[int, list[Row[Any]]] = {}
    for chunk in taken:
        groups.setdefault(chunk.prefix_id, []).append(rows[chunk.id])
    return tuple(map(_group_work, groups.values()))


def claimed_jobs(rows: Iterable[Row[Any]]) -> tuple[ClaimedJob, ...]:
    """Return the jobs of chunks."""
    jobs: dict[str, list[Row[Any]]] = {}
    for row in rows:
        jobs.setdefault(row.job_id, []).append(row)
    return tuple(
        ClaimedJob(job_id, Priority(of_job[0].priority), tuple(row.id for row in of_job), of_job[0].traceparent)
        for job_id, of_job in jobs.items()
    )


def _group_work(rows: Sequence[Row[Any]]) -> GroupWork:
    with_prefix = next(row for row in rows if row.tokens is not None)
    return GroupWork(
        owner=f"{with_prefix.owner}:{with_prefix.tokenizer_fingerprint}",
        prefix=unpack_ids(with_prefix.tokens),
        chunks=tuple(
            ChunkWork(
                id=row.id,
                rows=Rows.from_bytes(row.rows),
                **_what_is_scored(row),
            )
            for row in rows
        ),
        # It is a part of what distinguishes prefixes.
        adapter=unpack_options(with_prefix.options).adapter,
    )


def _what_is_scored(row: Row[Any]) -> dict[str, Any]:
    """Return what is computed for the rows of a chunk, as fields of its work."""
    options = unpack_options(row.options)
    if row.continuations is None:
        labels = tuple(unpack_ids(row.label_token_ids).tolist())
        return {"label_token_ids": labels, "head": options.head, "top": options.top}
    return {
        "label_token_ids": (),
        "head": options.head,
        "continuations": Continuations.from_bytes(row.continuations),
        "keep_targets": options.needs_targets,
        "top": options.top,
    }
