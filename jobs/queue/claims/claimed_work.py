"""The work of chunks that have just been claimed, from their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from jobs.queue.claims.claim_choice import Chosen
from jobs.store.codec import unpack_ids, unpack_options
from jobs.store.records import ClaimedJob, PartialChunk
from scoring.chunk import computed_part, sequence_tokens
from scoring.layout import ChunkWork, Continuations, GroupWork, Rows
from scoring.options import Priority
from scoring.sources import Sources


def claimed_work(
    rows: Mapping[int, Row[Any]], taken: Iterable[Chosen], provenance_id: int | None
) -> tuple[tuple[GroupWork, ...], dict[int, PartialChunk]]:
    """Return the work of chunks by group, and the chunks of which not every item is computed.

    Groups and chunks keep their order. rows: the inputs of each chunk, by id. One row of each group holds the tokens of
    its prefix. provenance_id: of the worker. It computes what others than its like have scored.
    """
    partial: dict[int, PartialChunk] = {}
    # With shared prefixes, chunks of one group may belong to several tenants and need not be neighbours.
    groups: dict[int, list[Row[Any]]] = {}
    for chunk in taken:
        groups.setdefault(chunk.prefix_id, []).append(rows[chunk.id])
    return tuple(_group_work(of_group, provenance_id, partial) for of_group in groups.values()), partial


def claimed_jobs(rows: Iterable[Row[Any]]) -> tuple[ClaimedJob, ...]:
    """Return the jobs of chunks."""
    jobs: dict[str, list[Row[Any]]] = {}
    for row in rows:
        jobs.setdefault(row.job_id, []).append(row)
    return tuple(
        ClaimedJob(job_id, Priority(of_job[0].priority), tuple(row.id for row in of_job), of_job[0].traceparent)
        for job_id, of_job in jobs.items()
    )


def _group_work(rows: Sequence[Row[Any]], provenance_id: int | None, partial: dict[int, PartialChunk]) -> GroupWork:
    with_prefix = next(row for row in rows if row.tokens is not None)
    return GroupWork(
        owner=f"{with_prefix.owner}:{with_prefix.tokenizer_fingerprint}",
        prefix=unpack_ids(with_prefix.tokens),
        chunks=tuple(_chunk_work(row, provenance_id, partial) for row in rows),
        # It is a part of what distinguishes prefixes.
        adapter=unpack_options(with_prefix.options).adapter,
    )


def _chunk_work(row: Row[Any], provenance_id: int | None, partial: dict[int, PartialChunk]) -> ChunkWork:
    options = unpack_options(row.options)
    rows = Rows.from_bytes(row.rows)
    continuations = None if row.continuations is None else Continuations.from_bytes(row.continuations)
    if row.sources is not None:
        planned = sources = Sources.from_bytes(row.sources)
        if planned.known is not None and planned.known.provenance != provenance_id:
            sources = planned.without_known()
        own = computed_part(rows, continuations, sources)
        not_computed = sequence_tokens(rows, continuations) - sequence_tokens(*own)
        partial[row.id] = PartialChunk(sources, not_computed, planned.reused - sources.reused)
        rows, continuations = own
    return ChunkWork(
        id=row.id,
        rows=rows,
        label_token_ids=tuple(unpack_ids(row.label_token_ids).tolist()) if continuations is None else (),
        head=options.head,
        continuations=continuations,
        keep_targets=continuations is not None and options.needs_targets,
        top=options.top,
    )
