"""Whether an answer is one that the OpenAPI document allows, and that the service may give to anybody at any time."""

from __future__ import annotations

import json
import re

from tests.hostile.attacks.attack import Attack
from tests.hostile.document import Document
from tests.hostile.sending import Answer

ALLOWED_SERVER_ERRORS = {"overloaded", "timeout"}
"""The only server errors that an attack may cause: too much work waits; a call's own time is over."""

MAX_ERROR_BYTES = 8_192
"""The longest body of an error: errors quote little of what was sent."""

REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")


def complaints(document: Document, attack: Attack, answer: Answer) -> list[str]:
    """Return what is wrong with an answer."""
    if answer.status < 400:
        return _about_success(attack, answer)
    found = [] if REQUEST_ID.fullmatch(answer.headers.get("x-request-id", "")) else ["no x-request-id"]
    if answer.size > MAX_ERROR_BYTES:
        found.append(f"an error of {answer.size} bytes")
    if attack.operation and answer.status not in attack.operation.answers:
        found.append(f"undocumented status {answer.status}")
    if not answer.complete or not answer.body:  # such as the answer to HEAD, and one that was not read to its end
        return found if answer.status < 500 else [*found, f"{answer.status} without a code"]
    code = error_code(answer)
    if code is None:
        return [*found, f"{answer.status} without the error envelope"]
    if code == "method_not_allowed":
        return found if answer.status == 405 else [*found, f"{code} as {answer.status}"]
    if document.codes.get(code) != answer.status:
        found.append(f"undocumented error {answer.status} {code}")
    if answer.status >= 500 and code not in ALLOWED_SERVER_ERRORS:
        found.append(f"server error {answer.status} {code}")
    return found


def _about_success(attack: Attack, answer: Answer) -> list[str]:
    if attack.operation is None:
        return []
    if answer.status not in attack.operation.answers:
        return [f"undocumented status {answer.status}"]
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    if media_type not in attack.operation.answers[answer.status]:
        return [f"undocumented media type {media_type!r}"]
    return []


def error_code(answer: Answer) -> str | None:
    """Return the code in an error's envelope, or None if it is not one."""
    try:
        envelope = json.loads(answer.body)
    except ValueError:
        return None
    error = envelope.get("error") if isinstance(envelope, dict) and envelope.keys() == {"error"} else None
    if not isinstance(error, dict) or error.keys() - {"job_id"} != {"message", "type", "param", "code"}:
        return None
    return error["code"] if isinstance(error["code"], str) else None
