"""Scores refer to what computed them, without a copy for each and without a further statement."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import func, select

from jobs.queue.finish import finish
from jobs.queue.provenance import provenance_ids_of, read_provenances, record_provenance
from jobs.queue.read import read_scores, results_of
from jobs.store.database import Database
from jobs.store.identifiers import new_notice_key
from jobs.store.provenance import Provenance, merged
from jobs.store.records import Finished
from jobs.store.signed_result import verified_result
from jobs.store.tables import provenances
from scoring.layout import Head
from tests.jobs.queue.test_statement_counts import statements_of
from tests.jobs.work import LABELS, scored, submit, take
from tests.provenances import OTHER, SOME


def finish_next(store: Database, provenance: Provenance | None, chunks: int = 1) -> Finished:
    """Score the next chunks of the queue, and say what computed them."""
    claimed = take(store, max_chunks=chunks)
    ids = {} if provenance is None else dict.fromkeys(claimed.chunk_ids, provenance.id)
    return finish(store, claimed.batch_id, scored(claimed), provenances=ids)


def test_a_provenance_is_stored_once_and_read_as_it_was(store: Database) -> None:
    for one in (SOME, SOME, OTHER):
        assert record_provenance(store, one) == one.id
    assert read_provenances(store, [SOME.id, OTHER.id, 5]) == {SOME.id: SOME, OTHER.id: OTHER}
    with store.read() as tx:
        assert tx.scalar(select(func.count()).select_from(provenances)) == 2


def test_any_difference_makes_another_provenance() -> None:
    changed = [
        replace(SOME, revision=None),
        replace(SOME, dtype="bfloat16"),
        replace(SOME, versions={**SOME.versions, "jax": "2.1"}),
        replace(SOME, algorithms=("serial",)),
        replace(SOME, step_tokens=512),
    ]
    assert len({one.id for one in (SOME, OTHER, *changed)}) == 2 + len(changed)
    assert replace(SOME, versions=dict(reversed(list(SOME.versions.items())))).id == SOME.id


def test_the_chunks_of_a_job_name_all_that_computed_them_in_the_order_of_the_items(store: Database) -> None:
    job_id = submit(store, chunks=4)
    for provenance in (OTHER, SOME, None, OTHER):
        finish_next(store, provenance)
    assert provenance_ids_of(store, job_id) == (OTHER.id, SOME.id, None)
    assert read_scores(store, "default", job_id, 0, 10).provenances == (OTHER.id, SOME.id, None)
    _, page = results_of(store, [job_id])[job_id]
    assert page is not None
    assert page.provenances == (OTHER.id, SOME.id, None)
    assert read_scores(store, "default", job_id, 1, 1).provenances == (SOME.id,)


def test_the_result_in_a_notice_names_what_computed_it(store: Database) -> None:
    key = new_notice_key()
    job_id = submit(store, chunks=2, notice_key=key)
    text = finish_next(store, SOME, chunks=2).results[job_id]
    found = verified_result(text, key, items=2, labels=len(LABELS), head=Head.LOGPROBS)
    assert found is not None
    assert found.provenance == SOME.id


def test_a_finish_that_names_provenances_sends_no_further_statement(store: Database) -> None:
    counts = []
    for provenance in (None, SOME):
        submit(store)
        claimed = take(store)
        ids = {} if provenance is None else dict.fromkeys(claimed.chunk_ids, provenance.id)
        with statements_of(store) as sent:
            finish(store, claimed.batch_id, scored(claimed), provenances=ids)
        counts.append(len(sent))
    assert counts[0] == counts[1]


def test_provenances_that_differ_in_their_algorithms_are_shown_as_one() -> None:
    serial, extend = (replace(SOME, algorithms=(name,)) for name in ("serial", "prefill_extend"))
    assert merged((serial, None, OTHER, extend)) == (
        replace(SOME, algorithms=("prefill_extend", "serial")),
        None,
        OTHER,
    )
