"""Which fields of the service's answers the client's objects leave out, and why."""

from __future__ import annotations

import dataclasses

import pytest

from api.answers.items import result_schemas
from api.answers.items.result_schemas import Shape
from api.answers.schemas import batch, file, jobs, reranking, server
from scoreline.client import batch_objects, job_objects, results

OBJECTS: dict[type, type[Shape]] = {
    job_objects.Job: jobs.Job,
    job_objects.DryRun: jobs.DryRun,
    job_objects.PlannedItems: jobs.PlannedItems,
    job_objects.Delivery: jobs.Delivery,
    batch_objects.Batch: batch.Batch,
    batch_objects.File: file.File,
    results.ScoreResult: result_schemas.ScoreResponse,
    results.LikelihoodResult: result_schemas.LikelihoodResponse,
    results.ItemScores: result_schemas.ScoreLine,
    results.ItemLikelihood: result_schemas.LikelihoodLine,
    results.Ranking: reranking.RerankResponse,
    results.Provenance: result_schemas.Provenance,
    results.Model: server.Model,
    results.Template: server.ServedTemplate,
}

RENAMED = {
    "usage": "prompt_tokens",
    "progress": "scored_items",
    "request_counts": "completed_lines",
}
"""Fields that the client has under the names of what is in them."""

CONSTANT = "it is always the same"
KNOWN = "who reads it has said it in the request, or has asked for what belongs to it"
STEPS = "when a batch passed through a status is for a person who looks for delays, and raw has it"

LEFT_OUT: dict[type, dict[str, str]] = {
    job_objects.Job: {
        "label_scoring": KNOWN,
        "webhook": KNOWN,
        "urls": "methods of the client take the job itself",
    },
    job_objects.DryRun: {"stored_bytes": "only who nears a quota of storage needs it, and raw has it"},
    job_objects.Delivery: {
        "job_id": KNOWN,
        "batch_id": KNOWN,
        "endpoint": "the state of an endpoint is the operator's business, and raw has it",
    },
    batch_objects.Batch: {
        **dict.fromkeys(("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at"), STEPS),
        **dict.fromkeys(("cancelling_at", "cancelled_at"), STEPS),
        "webhook": KNOWN,
        "prompt_tokens": "a batch counts under OpenAI's names, which raw has",
    },
    batch_objects.File: {"status": CONSTANT, "status_details": CONSTANT},
    results.ScoreResult: {"created": "its job has the time of its end, with milliseconds"},
    results.LikelihoodResult: {"created": "its job has the time of its end, with milliseconds"},
    results.Ranking: {"meta": CONSTANT},
    results.Model: {"created": "it is there for clients of OpenAI, as raw is for all", "owned_by": CONSTANT},
}


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: one.__name__)
def test_an_object_has_all_fields_of_its_answer_but_those_that_are_left_out_for_a_reason(one: type) -> None:
    fields = {field.name for field in dataclasses.fields(one)}
    shown = {RENAMED.get(name, name) for name in OBJECTS[one].model_fields if name != "object"}
    assert shown - fields == set(LEFT_OUT.get(one, {}))
