"""Items of a job that are equal although they stand in different chunks: a worker computes each of them once.

Equal items of one chunk are found when the job is accepted (:mod:`scoring.sources`). Chunks are scored apart, perhaps
by several workers. So a worker remembers the scores of a job's items, and gives them to equal items of chunks that it
claims later: they have the bits that would have been computed. A job is charged as if nothing was remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from jobs.store.records import Claim, ClaimedJob, PartialChunk
from scoring.chunk import computed_part, sequence_tokens
from scoring.layout import ChunkWork, ScoredChunk
from scoring.sources import Known, Sources, columns_of, contents, scores_of

MOST_ITEMS = 65_536
"""Items of all jobs that are remembered, each in some 300 bytes."""

MOST_JOBS = 1_024
"""Jobs that are remembered."""

Scored = tuple[bytes, tuple[str, ...]]
"""The columns of an item's scores (:func:`scoring.sources.columns_of`) as float32, and the algorithms of its chunk."""


class RepeatedItems:
    """Remembers the scores of items. Safe to use from threads.

    provenance_id: of the worker, see :class:`jobs.store.records.WorkerRecord`. If it is None, nothing is remembered,
    because scores depend on more than on what is scored.
    """

    def __init__(self, provenance_id: int | None) -> None:
        self._provenance_id = provenance_id
        self._lock = threading.Lock()
        self._jobs: dict[str, dict[bytes, Scored]] = {}  # scores by content, by job; the one claimed last comes last
        self._items = 0  # of all jobs

    def without_scored(self, claim: Claim) -> Claim:
        """Return a claim in which no item is computed whose scores are remembered.

        One item of each chunk is computed in any case, because the engine scores every chunk of a claim. Most jobs have
        a single chunk, so nothing is remembered of a job before its second chunk is claimed.
        """
        if self._provenance_id is None or claim.interactive or not claim.durable:
            return claim
        of_jobs = {number: scored for job in claim.jobs for scored in [self._of_job(job)] for number in job.chunk_ids}
        groups, partial = [], dict(claim.partial)
        asked: dict[int, Sequence[bytes]] = {}
        for group in claim.groups:
            left = []
            for chunk in group.chunks:
                scored = of_jobs[chunk.id]
                if scored is None or group.adapter is not None or chunk.keep_targets:
                    left.append(chunk)
                    continue
                ids, head = chunk.label_token_ids, chunk.head
                found = contents(group.prefix, chunk.rows, chunk.continuations, ids, head, top=chunk.top)
                known = np.array([one in scored for one in found])
                known[:1] &= not known.all()
                if known.any():
                    of_known = [scored[one] for one, is_known in zip(found, known, strict=True) if is_known]
                    chunk, partial[chunk.id] = self._without(chunk, known, of_known, partial.get(chunk.id))
                left.append(chunk)
                asked[chunk.id] = [one for one, is_known in zip(found, known, strict=True) if not is_known]
            groups.append(replace(group, chunks=tuple(left)))
        return replace(claim, groups=tuple(groups), partial=partial, contents=asked)

    def remember(self, claim: Claim, computed: Sequence[ScoredChunk]) -> None:
        """Remember the scores of chunks of a claim as they were computed."""
        if not claim.contents:
            return
        of_chunks = {number: job.id for job in claim.jobs for number in job.chunk_ids}
        with self._lock:
            for chunk in computed:
                scored = self._jobs.get(of_chunks[chunk.id])
                if scored is None or chunk.id not in claim.contents:
                    continue
                for content, row in zip(claim.contents[chunk.id], columns_of(chunk.scores), strict=True):
                    if content not in scored and self._has_room(of_chunks[chunk.id]):
                        scored[content] = row.tobytes(), chunk.algorithms
                        self._items += 1

    def _of_job(self, job: ClaimedJob) -> Mapping[bytes, Scored] | None:
        """Note that chunks of a job are claimed, and return its scores; None if this is the first chunk of the job."""
        with self._lock:
            scored = self._jobs.pop(job.id, None)
            is_first = scored is None and len(job.chunk_ids) == 1
            self._jobs[job.id] = scored or {}
            if len(self._jobs) > MOST_JOBS:
                self._forget_oldest()
            return None if is_first else self._jobs[job.id]

    def _has_room(self, job_id: str) -> bool:
        """Return whether one item more of a job can be remembered, and forget those of older jobs for it."""
        while self._items >= MOST_ITEMS and next(iter(self._jobs)) != job_id:
            self._forget_oldest()
        return self._items < MOST_ITEMS

    def _forget_oldest(self) -> None:
        self._items -= len(self._jobs.pop(next(iter(self._jobs))))

    def _without(
        self, chunk: ChunkWork, known: npt.NDArray[np.bool_], scored: Sequence[Scored], partial: PartialChunk | None
    ) -> tuple[ChunkWork, PartialChunk]:
        """Return a chunk without rows that are known, and where the scores of all of its items come from."""
        assert self._provenance_id is not None
        columns = np.frombuffer(b"".join(row for row, _ in scored), np.float32).reshape(len(scored), -1)
        names = tuple(sorted({name for _, algorithms in scored for name in algorithms}))
        of_known = Known(scores_of(columns, chunk.columns), self._provenance_id, names)
        rows, continuations = computed_part(
            chunk.rows, chunk.continuations, Sources.all_computed(len(known)).with_known(known, of_known)
        )
        if partial is None:
            partial = PartialChunk(Sources.all_computed(len(known)), 0, 0)
        of_items = np.zeros(len(partial.sources), np.bool_)
        of_items[np.flatnonzero(partial.sources.computed)[known]] = True
        sources = partial.sources.with_known(of_items, of_known)
        tokens = sequence_tokens(chunk.rows, chunk.continuations) - sequence_tokens(rows, continuations)
        reused = sources.reused - partial.sources.reused
        return (
            replace(chunk, rows=rows, continuations=continuations),
            PartialChunk(sources, partial.not_computed + tokens, partial.recomputed - reused),
        )
