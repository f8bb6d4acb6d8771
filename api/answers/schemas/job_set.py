"""The schema of what submits a set of jobs in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from api.answers.decisions.schemas import DecisionJobBody
from api.answers.items.request_schemas import JobBody, LikelihoodJobBody


def _with_a_key(schema: dict[str, Any]) -> None:
    """Say that each job of a set may have an Idempotency-Key, and that one that is wrong does not refuse the set."""
    key = {
        "type": ["string", "null"],
        "pattern": r"^[\x21-\x7e]{1,255}$",
        "description": "as the header of `POST /v1/jobs`: the same key and the same job make one job",
    }
    job = {"allOf": [schema["items"], {"type": "object", "properties": {"idempotency_key": key}}]}
    schema["items"] = {"anyOf": [job, {"description": "anything else gets an error of its own"}]}


class JobSetBody(BaseModel):
    """The body of `POST /v1/jobs/sets`."""

    jobs: list[JobBody | LikelihoodJobBody | DecisionJobBody] = Field(
        min_length=1, description="at most 64; a set of more is answered with 413", json_schema_extra=_with_a_key
    )
