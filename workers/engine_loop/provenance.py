"""Records what computed the scores, once for each combination of algorithms, not with each finish."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from checkpoints.adapter_folder import name_of
from jobs.queue.provenance import record_provenance
from jobs.queue.reuse import NewScores
from jobs.store.database import Database
from jobs.store.provenance import Provenance
from scoring.layout import AdapterUsed, ChunkWork, GroupWork, ScoredChunk
from scoring.sources import columns_of, contents
from settings.api import usable_cores

_PROCESSOR = Path("/proc/cpuinfo")


class ProvenanceRecorder:
    """The provenances that this process has recorded. Safe to use from threads: recording one twice does no harm.

    provenance: of all scores of this process, without the algorithms; None if nothing is recorded. is_exact: whether
    they depend on nothing else, so that later jobs may use them.
    """

    def __init__(self, database: Database, provenance: Provenance | None, *, is_exact: bool = False) -> None:
        self._database = database
        self._provenance = provenance
        self._ids: dict[
            tuple[tuple[str, ...], AdapterUsed | None], int
        ] = {}  # by the algorithms of a chunk, and its adapter
        self._keeps = database.settings.reuse_scores_seconds > 0 and is_exact
        self._is_base_recorded = False

    def new_scores(self, group: GroupWork, chunk: ChunkWork, scored: ScoredChunk) -> NewScores | None:
        """Return what is kept of a scored chunk; None if nothing is. Raises StorageUnavailable."""
        if not self._keeps or self._provenance is None or chunk.keep_targets or group.adapter is not None:
            return None
        if not self._is_base_recorded:
            record_provenance(self._database, self._provenance)
            self._is_base_recorded = True
        labels = chunk.label_token_ids
        found = contents(group.prefix, chunk.rows, chunk.continuations, labels, chunk.head, top=chunk.top)
        return NewScores(found, columns_of(scored.scores), self._provenance.id, scored.algorithms)

    def ids_of(self, scored: Iterable[ScoredChunk]) -> dict[int, int]:
        """Return the ids of the provenances of chunks, by the ids of the chunks. Raises StorageUnavailable."""
        if self._provenance is None:
            return {}
        found: dict[int, int] = {}
        for chunk in scored:
            key = chunk.algorithms, chunk.adapter
            if key not in self._ids:
                provenance = replace(self._provenance, algorithms=chunk.algorithms)
                if chunk.adapter is not None:
                    name = name_of(provenance.model, chunk.adapter.name)
                    provenance = replace(provenance, model=name, weights_fingerprint=chunk.adapter.fingerprint)
                self._ids[key] = record_provenance(self._database, provenance)
            found[chunk.id] = self._ids[key]
        return found


def processor_name() -> str:
    """Return the name of this machine's processor, and the number of its cores that this process may use.

    Libraries choose their instructions by the former, and may divide a product by the latter.
    """
    name = platform.processor() or platform.machine()
    if _PROCESSOR.exists():
        fields = (line.partition(":") for line in _PROCESSOR.read_text(encoding="utf-8").splitlines())
        name = next((value.strip() for field, _, value in fields if field.strip() == "model name"), name)
    return f"{name}, {usable_cores()} cores"
