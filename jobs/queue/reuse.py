"""Scores that are kept for later jobs, so that an item that was scored before is not computed again.

A kept score stands under a hash of all that was computed, and under the provenance of what computed it. It is used only
if a live worker has that provenance, so it has the very bits that this worker would give. A tenant's scores are for its
own jobs alone. They hold no text, but whoever knows a text could find out whether it was scored. So nothing is kept by
default, and what belongs to a job is removed when its owner deletes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import (
    Column,
    ColumnElement,
    Integer,
    LargeBinary,
    Select,
    bindparam,
    column,
    delete,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY

from checkpoints.card import ModelCard
from jobs.queue.provenance import read_provenances, record_provenance
from jobs.queue.worker_registry import seen_within
from jobs.store.clock import NOW
from jobs.store.codec import SCORES, unpack_ids, unpack_options
from jobs.store.database import Database, Transaction
from jobs.store.lists import is_one_of
from jobs.store.records import Origin, Submission
from jobs.store.tables import Seconds, chunk_inputs, chunks, jobs, prefixes, workers
from jobs.store.tables import kept_scores as table
from jobs.store.upsert import insert_if_new
from scoring.chunk import Chunk
from scoring.layout import Continuations, Rows
from scoring.options import ScoreOptions
from scoring.sources import CONTENT_BYTES, Known, Sources, contents, scores_of
from scoring.work import work_of_each_row

FOUND_AT_ONCE = 20_000  # items that one statement looks for
REMOVED_AT_ONCE = 10_000  # rows that one transaction removes


@dataclass(frozen=True, slots=True, eq=False)
class NewScores:
    """Scores of a chunk that are to be kept."""

    contents: Sequence[bytes]  # of its computed items: see scoring.sources.contents
    columns: npt.NDArray[np.float32]  # [items, columns]: see scoring.sources.columns_of
    provenance: int  # of what computed them, without algorithms
    algorithms: Sequence[str]


def may_be_kept(options: ScoreOptions) -> bool:
    """Return whether the scores of a job can be used again.

    They are not if its answer shows more of an item than its scores, and not with an adapter, whose files may change.
    """
    return not options.needs_targets and options.adapter is None


def reusing(db: Database, submissions: Sequence[Submission]) -> list[Submission]:
    """Return submissions with the scores that are kept of their items. Raises StorageUnavailable."""
    if not db.settings.reuse_scores_seconds:
        return list(submissions)
    of_jobs = with_kept(db, [(submission, submission.chunks) for submission in submissions])
    return [
        submission if of_job is submission.chunks else replace(submission, chunks=of_job)
        for submission, of_job in zip(submissions, of_jobs, strict=True)
    ]


def with_kept(db: Database, given: Sequence[tuple[Submission, Sequence[Chunk]]]) -> list[Sequence[Chunk]]:
    """Return chunks of submissions with the scores that are kept of their items. Raises StorageUnavailable."""
    found = [of_job for _, of_job in given]
    wanted = [
        number
        for number, (submission, of_job) in enumerate(given)
        if of_job and submission.may_reuse and submission.origin is not Origin.CALL and may_be_kept(submission.options)
    ]
    if not wanted or not db.settings.reuse_scores_seconds:
        return found
    live = _live_provenances(db)
    for tenant in dict.fromkeys(given[number][0].tenant for number in wanted):
        asked: list[_Asked] = []
        for number in wanted:
            submission, of_job = given[number]
            provenances = live.get((submission.model, submission.work_key))
            if submission.tenant == tenant and provenances:
                asked += [_Asked.of(submission, chunk, (number, place)) for place, chunk in enumerate(of_job)]
        kept = _find(db, tenant, [content for one in asked for content in one.contents], live)
        if kept:
            changed: dict[int, list[Chunk]] = {}
            for one in asked:
                number, place = one.where
                submission, of_job = given[number]
                if number not in changed:
                    changed[number] = list(of_job)
                changed[number][place] = one.with_kept(kept, live[submission.model, submission.work_key])
            for number, own in changed.items():
                found[number] = own
    return _with_provenances(db, found)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A chunk of which kept scores are looked for."""

    chunk: Chunk
    where: tuple[int, int]  # among the submissions, and among the chunks of its own
    prefix: int  # tokens
    labels: int
    items: npt.NDArray[np.int64]  # that would be computed
    contents: Sequence[bytes]  # of these items

    @classmethod
    def of(cls, submission: Submission, chunk: Chunk, where: tuple[int, int]) -> _Asked:
        options = submission.options
        ids = submission.label_token_ids
        found = contents(submission.prefix, *chunk.computed, ids, options.head, top=options.top)
        items = np.arange(len(chunk.rows)) if chunk.sources is None else np.flatnonzero(chunk.sources.computed)
        return cls(chunk, where, len(submission.prefix), len(ids), items, found)

    def with_kept(self, kept: Mapping[bytes, Sequence[Any]], live: Collection[int]) -> Chunk:
        """Return the chunk with those of the kept scores that come from the provenance that has most of them."""
        rows = [
            {row.provenance_id: row for row in kept.get(content, ()) if row.provenance_id in live}
            for content in self.contents
        ]
        counts = Counter(provenance for of_item in rows for provenance in of_item)
        if not counts:
            return self.chunk
        [(provenance, count)] = counts.most_common(1)
        used = [of_item.get(provenance) for of_item in rows]
        is_known = np.zeros(len(self.chunk.rows), np.bool_)
        is_known[self.items[[row is not None for row in used]]] = True
        scores = np.frombuffer(b"".join(row.scores for row in used if row is not None), SCORES).reshape(count, -1)
        algorithms = {name for row in used if row is not None for name in row.algorithms.split(",")}
        known = Known(scores_of(scores, self.labels), provenance, tuple(sorted(algorithms)))
        sources = (self.chunk.sources or Sources.all_computed(len(is_known))).with_known(is_known, known)
        work = 0.0
        if not sources.is_known:
            of_rows = work_of_each_row(self.chunk.rows, self.chunk.continuations, self.prefix)
            work = float(of_rows[sources.computed].sum())
        return replace(self.chunk, work=round(work), sources=sources)


def _live_provenances(db: Database) -> dict[tuple[str, str], set[int]]:
    """Return the provenances of the live workers whose scores can be kept, by their model and work key."""
    found: dict[tuple[str, str], set[int]] = {}
    with db.read() as tx:
        rows = tx.execute(_LIVE.where(seen_within(db, db.settings.worker_fresh_seconds))).all()
    for row in rows:
        key = ModelCard(row.model, 0, 0, row.tokenizer_fingerprint, version=row.version).work_key
        found.setdefault((row.model, key), set()).add(row.provenance_id)
    return found


def _find(
    db: Database, tenant: str, wanted: Sequence[bytes], live: Mapping[tuple[str, str], Collection[int]]
) -> dict[bytes, list[Any]]:
    """Return the kept scores with these contents, from live provenances."""
    found: dict[bytes, list[Any]] = {}
    given = {
        "of_tenant": tenant,
        "provenances": sorted({one for ids in live.values() for one in ids}),
        "seconds": db.settings.reuse_scores_seconds,
    }
    different = sorted(set(wanted))
    with db.read(slow=True) as tx:
        for start in range(0, len(different), FOUND_AT_ONCE):
            some = different[start : start + FOUND_AT_ONCE]
            for row in tx.execute(_FIND if tx.is_sqlite else _LOOK_UP, given | _wanted(some, tx)):
                found.setdefault(row.content, []).append(row)
    return found


def _wanted(hashes: Sequence[bytes], tx: Transaction) -> dict[str, Any]:
    """Return the parameters of a statement that looks for contents: on PostgreSQL their hashes, one behind another.

    The driver would take longer to write an array of them than PostgreSQL to find them.
    """
    return {"contents": hashes} if tx.is_sqlite else {"joined": b"".join(hashes), "count": len(hashes)}


def _with_provenances(db: Database, found: list[Sequence[Chunk]]) -> list[Sequence[Chunk]]:
    """Have the provenances recorded of chunks that no worker will finish, and say in the chunks which they are."""
    whole = {
        (chunk.sources.known.provenance, chunk.sources.known.algorithms)
        for of_job in found
        for chunk in of_job
        if chunk.is_known and chunk.sources is not None and chunk.sources.known is not None
    }
    if not whole:
        return found
    bases = read_provenances(db, {provenance for provenance, _ in whole})
    full = {key: replace(bases[key[0]], algorithms=key[1]) for key in whole}
    recorded = read_provenances(db, {one.id for one in full.values()})
    for one in full.values():
        if one.id not in recorded:
            record_provenance(db, one)

    def settled(chunk: Chunk) -> Chunk:
        if not chunk.is_known or chunk.sources is None or chunk.sources.known is None:
            return chunk
        known = chunk.sources.known
        known = replace(known, stored_provenance=full[known.provenance, known.algorithms].id)
        return replace(chunk, sources=replace(chunk.sources, known=known))

    return [[settled(chunk) for chunk in of_job] for of_job in found]


def keep(tx: Transaction, new: Sequence[tuple[str, NewScores]]) -> None:
    """Keep scores, each with the name of its tenant. Those that are kept already stay as they are."""
    rows = [
        (tenant, content, one.provenance, ",".join(one.algorithms), scores)
        for tenant, one in new
        for content, scores in zip(one.contents, _in_bytes(one.columns), strict=True)
    ]
    rows.sort()  # so that two transactions can't wait for each other
    if not rows:
        return
    if tx.is_sqlite:
        tx.execute(_KEEP_EACH, [dict(zip(_GIVEN, row, strict=True)) for row in rows])
    else:
        tx.execute(_KEEP, dict(zip(_GIVEN, map(list, zip(*rows, strict=True)), strict=True)))


def _in_bytes(columns: npt.NDArray[np.float32]) -> Iterator[bytes]:
    data, size = np.ascontiguousarray(columns, SCORES).tobytes(), SCORES.itemsize * columns.shape[1]
    return (data[start : start + size] for start in range(0, len(data), size))


def forget(tx: Transaction, chunk_ids: Collection[int]) -> None:
    """Remove the kept scores of all items of chunks whose jobs are deleted."""
    tenants = list(tx.scalars(_TENANTS_WITH_SCORES.where(chunks.c.id.in_(chunk_ids))))
    if not tenants:
        return
    wanted: dict[str, set[bytes]] = {}
    for row in tx.execute(_OF_CHUNKS.where(chunks.c.id.in_(chunk_ids), chunks.c.tenant.in_(tenants))):
        options = unpack_options(row.options)
        if may_be_kept(options):
            behind = None if row.continuations is None else Continuations.from_bytes(row.continuations)
            ids = tuple(unpack_ids(row.label_token_ids).tolist())
            rows = Rows.from_bytes(row.rows)
            found = contents(unpack_ids(row.tokens), rows, behind, ids, options.head, top=options.top)
            wanted.setdefault(row.tenant, set()).update(found)
    for tenant, of_tenant in sorted(wanted.items()):
        different = sorted(of_tenant)
        for start in range(0, len(different), FOUND_AT_ONCE):
            given = {"of_tenant": tenant, **_wanted(different[start : start + FOUND_AT_ONCE], tx)}
            found_ids = list(tx.scalars(_FIND_IDS if tx.is_sqlite else _LOOK_UP_IDS, given))
            locked = list(tx.scalars(_LOCK, {"ids": found_ids})) if found_ids else []
            if locked:
                tx.execute(_REMOVE, {"ids": locked})


def forget_tenant(db: Database, tenant: str) -> None:
    """Remove all kept scores of a tenant."""
    found = True
    while found:
        with db.write(slow=True) as tx:
            ids = list(tx.scalars(_LOCK_OF_TENANT, {"of_tenant": tenant}))
            if ids:
                tx.execute(_REMOVE, {"ids": ids})
            found = bool(ids)


def remove_old(db: Database) -> int:
    """Remove some of the kept scores that are too old or too many. Return how many were removed.

    They are counted by their ids, so there may be fewer than the limit says, but never more.
    """
    settings = db.settings
    with db.read() as tx:
        newest = tx.scalar(select(func.max(table.c.id)))
    if newest is None:
        return 0
    oldest = select(table.c.id, table.c.kept_at).order_by(table.c.id).limit(REMOVED_AT_ONCE).subquery()
    too_old = oldest.c.kept_at <= NOW - settings.reuse_scores_seconds
    surplus = select(oldest.c.id).where(or_(too_old, oldest.c.id <= newest - settings.max_kept_scores))
    with db.write(slow=True) as tx:
        free = select(table.c.id).where(table.c.id.in_(surplus)).order_by(table.c.id)
        ids = list(tx.scalars(free.with_for_update(skip_locked=True)))
        if ids:
            tx.execute(_REMOVE, {"ids": ids})
        return len(ids)


_LIVE = select(*workers.c["model", "tokenizer_fingerprint", "version", "provenance_id"]).where(
    workers.c.provenance_id.is_not(None)
)
_HAS_CONTENT = (table.c.tenant == bindparam("of_tenant"), is_one_of(table.c.content, "contents"))
_USABLE = (
    is_one_of(table.c.provenance_id, "provenances"),
    table.c.kept_at > NOW - bindparam("seconds", type_=Seconds),
)
_FOUND = table.c["content", "provenance_id", "algorithms", "scores"]
_FIND = select(*_FOUND).where(*_HAS_CONTENT, *_USABLE)
_FIND_IDS = select(table.c.id).where(*_HAS_CONTENT)


def _looking_up(columns: Sequence[Column[Any]], *which: ColumnElement[bool]) -> Select[Any]:
    """Return a query that has PostgreSQL look for each content by the index, whatever its statistics say.

    It might read all scores of the tenant instead, and compare each with thousands of contents. With an offset, it
    can't make a join of this.
    """
    number = func.generate_series(0, bindparam("count", type_=Integer) - 1).column_valued("number")
    joined, start = bindparam("joined", type_=LargeBinary), 1 + CONTENT_BYTES * number
    wanted = select(func.substring(joined, start, CONTENT_BYTES).label("content")).subquery("wanted")
    own = (table.c.tenant == bindparam("of_tenant"), table.c.content == wanted.c.content, *which)
    found = select(*columns).where(*own).correlate(wanted).offset(literal_column("0")).lateral("found")
    return select(*found.c).select_from(wanted.join(found, true()))


_LOOK_UP = _looking_up(list(_FOUND), *_USABLE)
_LOOK_UP_IDS = _looking_up([table.c.id])
_IN_ORDER = select(table.c.id).order_by(table.c.content, table.c.provenance_id).with_for_update()
_LOCK = _IN_ORDER.where(is_one_of(table.c.id, "ids"))
_LOCK_OF_TENANT = _IN_ORDER.where(table.c.tenant == bindparam("of_tenant")).limit(REMOVED_AT_ONCE)
_REMOVE = delete(table).where(is_one_of(table.c.id, "ids"))
_GIVEN = ("tenant", "content", "provenance_id", "algorithms", "scores")
_KEEP_EACH = insert_if_new(table).values({name: bindparam(name) for name in _GIVEN} | {"kept_at": NOW})
_NEW = (
    func.unnest(*(bindparam(name, type_=ARRAY(table.c[name].type, dimensions=1)) for name in _GIVEN))
    .table_valued(*(column(name, table.c[name].type) for name in _GIVEN), name="new")
    .render_derived()
)
_KEEP = insert_if_new(table).from_select(
    (*_GIVEN, "kept_at"), select(*(_NEW.c[name] for name in _GIVEN), NOW.label("kept_at"))
)
_TENANTS_WITH_SCORES = (
    select(chunks.c.tenant)
    .where(select(table.c.id).where(table.c.tenant == chunks.c.tenant).limit(1).scalar_subquery().is_not(None))
    .distinct()
)
_OF_CHUNKS = (
    select(
        chunks.c.tenant,
        *chunk_inputs.c["rows", "continuations"],
        *jobs.c["label_token_ids", "options"],
        prefixes.c.tokens,
    )
    .join(chunk_inputs, chunk_inputs.c.chunk_id == chunks.c.id)
    .join(jobs, jobs.c.id == chunks.c.job_id)
    .join(prefixes, prefixes.c.id == chunks.c.prefix_id)
)
