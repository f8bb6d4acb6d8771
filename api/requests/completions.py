"""Read a completion, as evaluation harnesses ask for it: the scores of whole prompts, and the token that is next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from api.answers.schemas.completion import CompletionBody
from api.reading import ReadingContext
from api.requests import refused_fields
from api.requests.fields import check_fields, with_items_called
from api.requests.sender import Sender
from api.requests.submission import Call, Fields, call_limits, call_timeout, prepare_request, submission_of
from jobs.store.records import Idempotency, Origin, Submission
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.options import Priority, ScoreOptions, Scoring, Shape
from scoring.request import PromptsRead, parse_prompts
from scoring.values import parse_flag


def completion_of(
    reading: ReadingContext, body: Mapping[str, object], sender: Sender, idempotency: Idempotency | None
) -> Call:
    """Return the completion in a body that is parsed. Raises RequestError."""
    unknown = check_fields(body, CompletionBody.model_fields, refused_fields.COMPLETION, strict=sender.is_strict)
    timeout = call_timeout(reading, body)
    adapter = reading.adapter_of(body.get("model"))
    form = _form(body)
    _check_choice_of_token(body, form["max_tokens"])
    options = ScoreOptions(
        scoring=Scoring.LIKELIHOOD,
        shape=Shape.COMPLETION,
        top=bool(form["max_tokens"] or form["logprobs"]),
        return_provenance=parse_flag(body.get("return_provenance"), "return_provenance"),
        adapter=adapter,
    )
    try:
        request = parse_prompts(body.get("prompt"), PromptsRead(form["echo"], form["max_tokens"] > 0), options)
        prepared = prepare_request(reading, sender, request, call_limits(reading))
    except RequestError as error:
        raise with_items_called("prompt", error) from None
    # Nobody comes back for a completion, so a job that is out of time is given up.
    fields = Fields(Origin.CALL, Priority.INTERACTIVE, timeout, {}, warnings=unknown)
    submission = submission_of(reading, sender, request, prepared, fields, idempotency)
    return Call(replace(submission, form=form | _first_tokens(submission, form)), timeout, cancel_on_timeout=True)


def _form(body: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a body that its answer depends on."""
    most, why = body.get("max_tokens"), "at most the most probable next token is given"
    if most is None:
        message = f"max_tokens must be 0 or 1, and is 16 where it is left out: {why}"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="max_tokens")
    form = {
        "echo": parse_flag(body.get("echo"), "echo"),
        "max_tokens": _zero_or_one(most, "max_tokens", why),
        "logprobs": None
        if body.get("logprobs") is None
        else _zero_or_one(body["logprobs"], "logprobs", "of the other tokens, only the most probable one is given"),
    }
    if not form["echo"] and not form["max_tokens"]:
        raise invalid("with max_tokens 0 and without echo there is nothing to answer", "max_tokens")
    return form


def _zero_or_one(value: object, name: str, why: str) -> int:
    if type(value) is not int or value < 0:
        raise invalid(f"{name} must be 0 or 1", name)
    if value > 1:
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, f"{name} must be 0 or 1: {why}", param=name)
    return value


def _check_choice_of_token(body: Mapping[str, object], tokens: int) -> None:
    """Refuse a temperature at which the next token would be drawn at random. Scores have none."""
    temperature = body.get("temperature")
    if temperature is not None and (
        isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature <= 2
    ):
        raise invalid("temperature must be a number of 0 to 2", "temperature")
    if tokens and temperature != 0:
        message = "temperature must be 0 with max_tokens 1: the next token is the most probable one, and never drawn"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="temperature")


def _first_tokens(submission: Submission, form: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the first tokens of the prompts, which have no scores but are shown with the others."""
    if not form["echo"]:
        return {}
    firsts = [chunk.rows.tokens for chunk in submission.chunks]
    return {"first_tokens": np.concatenate([np.zeros(0, np.int32), *firsts]).tolist()}
