"""Read lines of a batch: for each, the job or the error that it would give if it were sent alone. Call it in a thread.

:func:`read_lines` may run in the process that reads long bodies, so it takes and returns plain data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from api.answers.batch_lines import most_bytes
from api.answers.reranking import Ranking
from api.callers.authentication import Principal
from api.callers.storage_quota import check_stored_bytes
from api.models.models import NotLoadedError
from api.reading import ReadingContext
from api.requests.bodies.json_body import check_containers, parse_json
from api.requests.calls import parsed_call
from api.requests.sender import Sender
from jobs.file_batches.tables import MAX_CUSTOM_ID
from jobs.store.records import Origin, Submission
from jobs.tenancy.quotas import check_size
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.options import Priority
from scoring.quoting import quote
from scoring.templates.relevance import Formula, Relevance
from scoring.work import work_of_group

INTERNAL = "internal error; please quote the id of this line"
"""The message for an unexpected exception, which the log tells more about."""

TOKENS_AT_ONCE = 2**20
"""When the rows of the lines that were read have this many tokens, no further line is read."""

log = structlog.stdlib.get_logger("api.batches")


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line as it is stored. number: counted from 0, blank lines included."""

    number: int
    start: int  # the place in the file where it begins
    stop: int  # the place behind it and its line end
    content: bytes | None  # None: it is longer than a line may be


@dataclass(frozen=True, slots=True, eq=False)
class ReadLine:
    """A line that was read: it has a submission or an error, or neither if only its ``custom_id`` was wanted."""

    custom_id: str | None
    submission: Submission | None = None
    ranking: Mapping[str, Any] | None = None
    answer_bytes: int = 0  # that are written of it, at most
    error: RequestErrorFields | None = None


RequestErrorFields = Mapping[str, Any]
"""The fields of a RequestError. As an exception it can't be pickled."""


def refused_line(custom_id: str | None, error: RequestError) -> ReadLine:
    return ReadLine(custom_id, error=vars(error))


def read_lines(
    reading: ReadingContext,
    body: bytes,
    principal: Principal,
    endpoint: str,
    lines: Sequence[InputLine],
) -> list[ReadLine]:
    """Return the first lines, or all of them, as they were read. They have no content: it is in ``body``.

    body: the contents of the lines, each with a line end. Raises NotLoadedError or RequestError MODEL_UNAVAILABLE for
    the model of the first line.
    """
    found: list[ReadLine] = []
    tokens = 0
    for line, content in zip(lines, body.split(b"\n"), strict=False):
        reading.stop_if_unwanted()
        try:
            one = _read(reading, content, principal, endpoint, line)
        except (NotLoadedError, RequestError):
            if found:  # What is read is stored, and this line is the first of the next.
                break
            raise
        found.append(one)
        if one.submission is not None:
            tokens += sum(chunk.tokens for chunk in one.submission.chunks) + len(one.submission.prefix)
        if tokens > TOKENS_AT_ONCE:
            break
    return found


def custom_id_of(content: bytes) -> str | None:
    """Return the ``custom_id`` of a line that is not to be read; None if it has none that is valid."""
    try:
        return _custom_id(json.loads(content))
    except (ValueError, RecursionError, RequestError):
        return None


def too_long(reading: ReadingContext, line: InputLine) -> RequestError:
    """Return the error of a line that is longer than lines may be."""
    most = reading.limits.max_line_bytes
    message = f"line {line.number + 1} has more than the {most} bytes that a line may have"
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, message)


def _read(
    reading: ReadingContext,
    content: bytes,
    principal: Principal,
    endpoint: str,
    line: InputLine,
) -> ReadLine:
    custom_id: str | None = None
    try:
        what = f"line {line.number + 1}"
        check_containers(content, what)
        value = parse_json(content, what)
        if not isinstance(value, dict):
            raise invalid(f"{what} must be a JSON object")
        custom_id = _custom_id(value)
        body = _body(value, endpoint)
        call = parsed_call(reading, body, Sender(principal), endpoint)
        # It has the time of its batch, so that its own timeout does not apply.
        submission = replace(
            call.submission, origin=Origin.LINE, priority=Priority.BULK, expires_in=None, notice_key=None
        )
        ranking = None if call.ranking is None else _packed(call.ranking, line)
        _check_quota(submission)
        answer_bytes = most_bytes(submission, ranking)
        check_stored_bytes(submission.stored_bytes + answer_bytes, reading.limits.max_stored_bytes_per_tenant)
    except RequestError as error:
        if error.code is ErrorCode.MODEL_UNAVAILABLE:  # The line is right, and can be read later.
            raise
        return refused_line(custom_id, error)
    except (MemoryError, KeyboardInterrupt, SystemExit, NotLoadedError):
        raise
    except BaseException:  # tokenizers raises such an exception for a bug in its Rust code
        log.exception("a line of a batch could not be read", number=line.number)
        return refused_line(custom_id, RequestError(ErrorCode.INTERNAL_ERROR, INTERNAL))
    return ReadLine(custom_id, submission, ranking, answer_bytes)


def _custom_id(value: object) -> str | None:
    if not isinstance(value, dict) or value.get("custom_id") is None:
        raise invalid("custom_id is required", "custom_id")
    custom_id = value["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
        raise invalid(f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters, none of them NUL", "custom_id")
    custom_id.encode()  # a lone surrogate can't be stored
    return custom_id


def _body(value: Mapping[str, object], endpoint: str) -> Mapping[str, object]:
    if value.get("method") != "POST":
        raise invalid('method must be "POST"', "method")
    url = value.get("url")
    if url != endpoint:
        given = quote(url) if isinstance(url, str) else "another value"
        raise invalid(f"url must be the endpoint of the batch, {endpoint}, not {given}", "url")
    body = value.get("body")
    if not isinstance(body, dict):
        raise invalid("body must be a JSON object", "body")
    return body


def _packed(ranking: Ranking, line: InputLine) -> dict[str, Any]:
    """Return what is stored of a ranking. Its documents are not, because they are in the file."""
    packed: dict[str, Any] = {"top_n": ranking.top_n}
    if ranking.documents is not None:
        packed |= {"start": line.start, "bytes": line.stop - line.start}
    return packed


def packed_formula(packed: Mapping[str, Any]) -> str | None:
    """Return the formula that an earlier version has packed, whose jobs do not have it."""
    if "formula" not in packed:
        return None
    return str(Relevance(Formula(packed["formula"]), tuple(packed["labels"]), packed["sigmoid"]))


def _check_quota(submission: Submission) -> None:
    """Refuse a line that is larger than the whole quota of its tenant: it would wait for ever."""
    if submission.quota is None:
        return
    check_size(submission.quota, work_of_group(len(submission.prefix), submission.chunks))
