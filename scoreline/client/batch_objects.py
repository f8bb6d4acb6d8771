"""Files and batches, as the client returns them. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scoreline.client.reading import read_fields
from scoreline.client.tables import Asked

BATCH_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""The final statuses of a batch."""

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
Endpoint = Literal["/v1/score", "/v1/likelihood", "/v1/rerank", "/v1/completions", "/v1/systemone", "/v1/decisions"]


@dataclass(frozen=True, slots=True)
class File:
    """A file that was uploaded, or that a batch wrote."""

    id: str  # by which the file is named in requests
    filename: str  # its name, as the sender gave it
    bytes: int  # its size
    purpose: Literal["batch", "batch_output"]  # a file of requests, or one that a batch wrote
    created_at: int  # when it was stored
    expires_at: int | None  # when it will be deleted; None: it stays
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> File:
        """Read a file object."""
        return read_fields(cls, raw)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in its present state."""

    id: str  # by which the batch is named in requests
    model: str  # the name of the model that its lines ask for
    endpoint: Endpoint  # the route that its lines are requests to
    status: BatchStatus  # how far it has come
    total_items: int  # the lines of its file, as far as they are known
    completed_lines: int  # lines in the output file
    failed_lines: int  # lines in the error file
    input_file_id: str  # the file with its requests
    output_file_id: str | None  # once it has ended, if a line was answered
    error_file_id: str | None  # once it has ended, if a line failed
    completion_window: str  # the time that it was given, such as "24h"
    created_at: int  # when it was accepted
    expires_at: int  # what is not scored by then is given up
    errors: list[str]  # why the file could not be read as lines, if the batch failed
    metadata: Mapping[str, str]  # what the sender attached to it
    warnings: list[str]  # unknown fields that were ignored; only in the answer to its creation
    asked: Mapping[int, Asked] = field(repr=False, compare=False)  # what the client remembers of the lines that it sent
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @property
    def ended(self) -> bool:
        """Whether the batch has ended."""
        return self.status in BATCH_ENDED

    @property
    def scored_items(self) -> int:
        """The lines that are done, whether with an answer or with an error."""
        return self.completed_lines + self.failed_lines

    @classmethod
    def read(cls, raw: Mapping[str, Any], asked: Mapping[int, Asked] | None = None) -> Batch:
        """Read a batch object."""
        counts, errors = raw["request_counts"], raw["errors"]
        return read_fields(
            cls,
            raw,
            total_items=counts["total"],
            completed_lines=counts["completed"],
            failed_lines=counts["failed"],
            errors=[error["message"] for error in errors["data"]] if errors else [],
            warnings=raw.get("warnings") or [],
            asked=asked or {},
        )
