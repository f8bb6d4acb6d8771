"""The work of chunks that have just been claimed, from their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from jobs.queue.claim_choice import Chosen
from jobs.store.codec import unpack_ids, unpack_options
from scoring.layout import ChunkWork, GroupWork, Rows


def claimed_work(rows: Mapping[int, Row[Any]], taken: Iterable[Chosen]) -> tuple[GroupWork, ...]:
    """Return the work of chunks by group; groups and chunks keep their order.

    rows: the inputs of each chunk, by id. One row of each group holds the tokens of its prefix.
    """
    # With shared prefixes, chunks of one group may belong to several tenants and need not be neighbours.
    groups: dict[int, list[Row[Any]]] = {}
    for chunk in taken:
        groups.setdefault(chunk.prefix_id, []).append(rows[chunk.id])
    return tuple(map(_group_work, groups.values()))


def _group_work(rows: Sequence[Row[Any]]) -> GroupWork:
    bearer = next(row for row in rows if row.tokens is not None)
    return GroupWork(
        owner=f"{bearer.owner}:{bearer.tokenizer_fingerprint}",
        prefix=unpack_ids(bearer.tokens),
        chunks=tuple(
            ChunkWork(
                id=row.id,
                rows=Rows.from_bytes(row.rows),
                label_token_ids=tuple(unpack_ids(row.label_token_ids).tolist()),
                head=unpack_options(row.options).head,
            )
            for row in rows
        ),
    )
