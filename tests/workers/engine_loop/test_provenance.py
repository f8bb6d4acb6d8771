"""A worker says what computed its scores."""

from __future__ import annotations

from dataclasses import replace

from jobs.queue.provenance import provenance_ids_of, read_provenances
from jobs.store.database import Database
from scoring.layout import LabelScores, ScoredChunk
from tests.databases import quick_on
from tests.jobs.queue.test_statement_counts import statements_of
from tests.provenances import SOME
from tests.workers.conftest import Store, Worker
from workers.engine_loop.provenance import ProvenanceRecorder, processor_name

NOTHING = LabelScores(logits=None, logprobs=None)  # type: ignore[arg-type]


def chunks(*algorithms: tuple[str, ...]) -> list[ScoredChunk]:
    return [ScoredChunk(n, NOTHING, 0, names) for n, names in enumerate(algorithms)]


@quick_on("sqlite")
def test_what_is_the_same_for_many_chunks_is_recorded_once(store: Store) -> None:
    database: Database = store.database
    recorder = ProvenanceRecorder(database, SOME)
    mixed = ("prefill_extend", "serial")
    ids = recorder.ids_of(chunks(("serial",), mixed, ("serial",)))
    assert ids[0] == ids[2] != ids[1]
    assert read_provenances(database, ids.values()) == {
        ids[0]: replace(SOME, algorithms=("serial",)),
        ids[1]: replace(SOME, algorithms=mixed),
    }
    with statements_of(database) as sent:
        assert recorder.ids_of(chunks(mixed)) == {0: ids[1]}
    assert sent == []


@quick_on("postgres")
def test_the_scores_of_a_worker_refer_to_its_provenance(store: Store) -> None:
    job_id = store.submit(chunks=2)
    worker = Worker(store, provenance=SOME)
    try:
        store.wait_for(job_id)
    finally:
        worker.stop()
    assert provenance_ids_of(store.database, job_id) == (SOME.id,)


def test_the_name_of_a_processor_says_how_many_cores_are_used() -> None:
    assert processor_name().endswith(" cores")
