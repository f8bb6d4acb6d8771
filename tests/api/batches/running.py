"""Files and batches by OpenAI's own client, unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from openai import OpenAI
from openai.types import Batch, FileObject

from tests.api.serving import KEY, Json, RunningApi, eventually

ENDED = ("completed", "failed", "expired", "cancelled")

BODY: Json = {"query": "The capital of", "items": [" France is", ""], "label_token_ids": [70, 71]}


def openai_of(api: RunningApi, key: str = KEY, **given: Any) -> OpenAI:
    """Return OpenAI's client for a server."""
    return OpenAI(api_key=key, base_url=f"{api.url}/v1", **given)


def line(custom_id: object, body: object = BODY, **given: object) -> Json:
    """Return a line of a file."""
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/score", "body": body} | given


def encoded(lines: Iterable[object]) -> bytes:
    """Return the bytes of a file. A line of bytes is taken as it is."""
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def upload(client: OpenAI, lines: Iterable[object], **given: Any) -> FileObject:
    """Upload lines."""
    return client.files.create(file=("lines.jsonl", encoded(lines)), purpose="batch", **given)


def create(client: OpenAI, file_id: str, endpoint: str = "/v1/score", window: str = "24h", **given: Any) -> Batch:
    """Create a batch."""
    # The client's types know no other endpoints than OpenAI's.
    endpoint_of_ours: Any = endpoint
    window_of_ours: Any = window
    return client.batches.create(
        input_file_id=file_id, endpoint=endpoint_of_ours, completion_window=window_of_ours, **given
    )


def ended(client: OpenAI, batch_id: str) -> Batch:
    """Return a batch once it has ended."""
    found: list[Batch] = []

    def has_ended() -> bool:
        found[:] = [client.batches.retrieve(batch_id)]
        return found[0].status in ENDED

    eventually(has_ended, "the batch ends")
    return found[0]


def run(client: OpenAI, lines: Iterable[object], endpoint: str = "/v1/score", **given: Any) -> Batch:
    """Upload lines, have them answered, and return the batch once it has ended."""
    return ended(client, create(client, upload(client, lines).id, endpoint, **given).id)


def read(client: OpenAI, file_id: str | None) -> list[Json]:
    """Return the lines of an output or error file; none if there is no file."""
    if file_id is None:
        return []
    return [json.loads(one) for one in client.files.content(file_id).text.splitlines()]


def errors_of(lines: Iterable[Json]) -> list[tuple[Any, int, str, str | None]]:
    """Return the ``custom_id``, the status, the code and the param of lines of an error file."""
    found = []
    for one in lines:
        error = one["response"]["body"]["error"]
        assert one["error"] is None
        found.append((one["custom_id"], one["response"]["status_code"], error["code"], error["param"]))
    return found
