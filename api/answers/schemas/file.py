"""The schemas of ``/v1/files`` in the OpenAPI document, which are those of OpenAI's interface."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from api.answers.items.result_schemas import Shape


class FileBody(BaseModel):
    """The form of `POST /v1/files`."""

    file: bytes = Field(description="JSON lines: the requests of a batch", json_schema_extra={"format": "binary"})
    purpose: Literal["batch"]
    expires_after_anchor: Literal["created_at"] | None = Field(None, alias="expires_after[anchor]")
    expires_after_seconds: Annotated[int, Field(ge=1)] | None = Field(
        None, alias="expires_after[seconds]", description="after which it is deleted, if no open batch reads it"
    )


class File(Shape):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix seconds, as all times here")
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(Shape):
    object: Literal["list"] = "list"
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Shape):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
