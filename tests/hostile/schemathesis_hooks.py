"""What schemathesis must be told: how JSON lines are sent, and which server errors are right answers."""

from __future__ import annotations

import json
from typing import Any

import schemathesis

from tests.hostile.contract import ALLOWED_SERVER_ERRORS


def send_lines(_: object, value: object) -> bytes:
    """Return a body of JSON lines as bytes. Values by chance, such as numbers, are sent as JSON."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()


def no_server_error(_: object, response: Any, __: object) -> None:
    """Fail for a server error, unless the service says that too much work waits, or that a call's time is over."""
    if response.status_code >= 500:
        code = response.json().get("error", {}).get("code")
        assert code in ALLOWED_SERVER_ERRORS, f"{response.status_code} {code}"


schemathesis.serializer("application/x-ndjson")(send_lines)
schemathesis.check(no_server_error)
