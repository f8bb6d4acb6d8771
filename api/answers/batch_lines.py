"""The lines of a batch's output file and error file, in the envelope of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.answers.error_responses import STATUS, encode_error
from api.answers.presentation import encode, encode_object
from jobs.store.records import Submission
from judgement.applying import ABSTAIN, Rule, read_rules
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Scoring, Shape

LINE_BYTES, RESULT_BYTES, NUMBER_BYTES = 1_500, 160, 25
"""What a line takes at most beside its numbers: once, for each item, and for each number of a list. A number has up to
24 characters.
"""

JUDGED_BYTES = 50
"""What the names of the fields of what comes of an artefact take."""

TOKEN_BYTES = 200
"""What a token of a completion takes, nearly always at most: three numbers, and its text three times."""


def line_id(batch_id: str, number: int) -> str:
    """Return the id of a line. number: counted from 0."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def encode_answer(batch_id: str, number: int, custom_id: str | None, job_id: str, body: bytes) -> bytes:
    """Return the line of a request that was answered. body: the encoded answer."""
    return _line(batch_id, number, custom_id, _response(200, job_id, body), b"null")


def most_bytes(submission: Submission, ranking: Mapping[str, Any] | None) -> int:
    """Return how many bytes the line of a request that is answered takes, at most or nearly so.

    ranking: what its answer needs beside the scores, if it ranks.
    """
    options, items = submission.options, submission.total_items
    judged = sum(map(_judged_bytes, read_rules(options.artefact).values()))  # of an item, or of all questions
    if ranking is not None:
        return LINE_BYTES + (RESULT_BYTES + judged) * items + int(ranking.get("bytes", 0))
    if options.shape is Shape.COMPLETION:
        return LINE_BYTES + RESULT_BYTES * items + TOKEN_BYTES * (submission.prompt_tokens + items)
    of_items = submission.item_labels
    if submission.form is not None and of_items is not None:
        # The names of questions and options stand in the form, too. An answer has a number for each option, and a few.
        fixed = LINE_BYTES + 2 * submission.bytes_beside_tokens + 2 * RESULT_BYTES * items + judged
        return fixed + NUMBER_BYTES * len(of_items.columns)
    if options.scoring is Scoring.LIKELIHOOD:
        targets = [chunk.continuations for chunk in submission.chunks if chunk.continuations is not None]
        lists = options.return_token_logprobs + options.return_tokens
        numbers = lists * sum(len(one.tokens) for one in targets)
    else:
        shown = items * len(submission.label_token_ids) if of_items is None else len(of_items.columns)
        numbers = (options.numbers_shown - (options.artefact is not None)) * shown
    return LINE_BYTES + (RESULT_BYTES + judged) * items + NUMBER_BYTES * numbers


def _judged_bytes(rule: Rule) -> int:
    """Return what comes of an artefact for one item or question, at most: a number and a name in a set for each label,
    and an action.
    """
    names = [0 if rule.threshold is None else len(encode(label)) + 1 for label in (*rule.labels, ABSTAIN)]
    return JUDGED_BYTES + NUMBER_BYTES * len(rule.labels) + sum(names) + max(names)


def encode_refusal(batch_id: str, number: int, custom_id: str | None, error: RequestError) -> bytes:
    """Return the line of a request that failed, with the error that it would have got if it had been sent alone."""
    response = _response(STATUS[error.code], line_id(batch_id, number), encode_error(error))
    return _line(batch_id, number, custom_id, response, b"null")


def encode_unscored(batch_id: str, number: int, custom_id: str | None, code: ErrorCode) -> bytes:
    """Return the line of a request that was not scored before its batch expired or was cancelled."""
    how = "expired" if code is ErrorCode.BATCH_EXPIRED else "was cancelled"
    error = encode({"code": str(code), "message": f"this request was not scored before its batch {how}"})
    return _line(batch_id, number, custom_id, b"null", error)


def _response(status: int, request_id: str, body: bytes) -> bytes:
    return encode_object({"status_code": status, "request_id": request_id, "body": body})


def _line(batch_id: str, number: int, custom_id: str | None, response: bytes, error: bytes) -> bytes:
    fields = {"id": line_id(batch_id, number), "custom_id": custom_id, "response": response, "error": error}
    return encode_object(fields) + b"\n"
