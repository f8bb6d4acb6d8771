"""Read decisions, in the words of System One and of OpenAI. Both become the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from api.reading import ReadingContext
from checkpoints.classification import Activation
from scoring.decisions.decision import decide
from scoring.decisions.orders import parse_permute
from scoring.decisions.questions import (
    FaultyError,
    Kind,
    Option,
    Question,
    check_count,
    check_names,
    kind_of,
    levels,
    path_of,
    read_each,
    read_systemone,
)
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.options import ScoreOptions, Shape
from scoring.request import ScoreRequest
from scoring.values import parse_flag

_KINDS = {"predicate": Kind.NOUL, "choice": Kind.CHOICE, "score": Kind.SCORE}
"""OpenAI's names of the kinds."""

_IMAGES = frozenset({"input_image", "image", "image_url", "input_audio", "input_file"})


def parse_systemone(reading: ReadingContext, body: Mapping[str, object]) -> ScoreRequest:
    """Return what a body of System One asks. Raises RequestError."""
    if body.get("assets"):
        message = "the model sees no images: assets can't be sent"
        raise RequestError(ErrorCode.IMAGES_NOT_SUPPORTED, message, param="assets")
    if body.get("state") is None:
        raise invalid("state is required", "state")
    questions = read_systemone(body.get("questions"))
    paths = [path_of(question.name or "") for question in questions]
    return _request(reading, body, body["state"], questions, paths, Shape.SYSTEMONE)


def parse_decisions(reading: ReadingContext, body: Mapping[str, object]) -> ScoreRequest:
    """Return what a body of OpenAI's interface asks. Raises RequestError."""
    state = state_of(body.get("input"))
    questions = body.get("questions")
    if questions is not None and not isinstance(questions, list):
        raise RequestError(ErrorCode.INVALID_QUESTION, "questions must be a list of questions", param="questions")
    paths = [f"questions[{n}]" for n in range(len(questions or []))]
    found = read_each(list(zip(paths, questions or [], strict=True)), _read)
    return _request(reading, body, state, found, paths, Shape.DECISIONS)


def _request(
    reading: ReadingContext,
    body: Mapping[str, object],
    state: object,
    questions: Sequence[Question],
    paths: Sequence[str],
    shape: Shape,
) -> ScoreRequest:
    if reading.card.delimiter is not None:
        message = "this deployment serves its model in delimiter mode, in which no decision can be asked"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="model")
    classes = reading.card.classes
    provenance = parse_flag(body.get("return_provenance"), "return_provenance")
    permute = parse_permute(body.get("permute"))
    decision = decide(reading.model.prompts, state, questions, paths, reading.stop_if_unwanted, permute)
    options = ScoreOptions(
        apply_softmax=True,
        # All outputs are computed, so that the bits of some do not depend on which others are asked for.
        label_mass=True,
        top=classes is None,
        return_provenance=provenance,
        shape=shape,
        activation=Activation.VOCABULARY if classes is None else classes.activation,
    )
    return ScoreRequest(
        query=decision.prompts.shared,
        items=list(decision.prompts.behind),
        label_token_ids=None,
        labels=None,
        options=options,
        item_labels=decision.labels,
        decision=decision,
    )


def _read(path: str, value: object) -> Question:
    if not isinstance(value, Mapping):
        raise FaultyError(path, "must be an object with a type")
    kind = kind_of(path, value, _KINDS)
    of_kind = {Kind.CHOICE: {"choices"}, Kind.SCORE: {"levels"}}.get(kind, set[str]())
    check_names(path, value, {"type", "name", "instructions", *of_kind})
    name = value.get("name")
    if not isinstance(name, str | None):
        raise FaultyError(f"{path}.name", "must be a text")
    instructions = _content(f"{path}.instructions", value.get("instructions"))
    if kind is Kind.NOUL:
        return Question(name, kind, instructions, (Option("true", None), Option("false", None)))
    if kind is Kind.SCORE:
        return _scale(path, name, instructions, value.get("levels"))
    options = []
    for n, choice in enumerate(_list(f"{path}.choices", value.get("choices"), at_least=2)):
        where = f"{path}.choices[{n}]"
        given = _object(where, choice, {"value", "description"})
        option = given.get("value")
        if not isinstance(option, str | bool):
            raise FaultyError(f"{where}.value", "must be a text, true or false")
        options.append(Option(option, _text(f"{where}.description", given.get("description"))))
    if len({option.value for option in options}) < len(options):
        raise FaultyError(f"{path}.choices", "has a value twice")
    return Question(name, kind, instructions, tuple(options))


def _scale(path: str, name: str | None, instructions: object, value: object) -> Question:
    labels, descriptions = [], []
    for n, level in enumerate(_list(f"{path}.levels", value, at_least=1)):
        where = f"{path}.levels[{n}]"
        given = _object(where, level, {"label", "description"})
        label, description = given.get("label"), _text(f"{where}.description", given.get("description"))
        if not isinstance(label, str):
            raise FaultyError(f"{where}.label", "must be a text")
        labels.append(label)
        descriptions.append(label if description is None else f"{label}: {description}")
    return Question(name, Kind.SCORE, instructions, levels(descriptions), tuple(labels))


def _list(path: str, value: object, *, at_least: int) -> list[object]:
    if not isinstance(value, list) or len(value) < at_least:
        raise FaultyError(path, f"must be a list of at least {at_least}")
    check_count(path, len(value))
    return value


def _object(path: str, value: object, known: set[str]) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise FaultyError(path, "must be an object")
    check_names(path, value, known)
    return value


def _text(path: str, value: object) -> str | None:
    if not isinstance(value, str | None):
        raise FaultyError(path, "must be a text")
    return value


def state_of(value: object) -> object:
    """Return the state that an input is: the text of a lone user's message, else all messages as they are."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise invalid("input must be a text or a list of messages", "input")
    try:
        messages = [_message(f"input[{n}]", message) for n, message in enumerate(value)]
    except FaultyError as error:
        code = ErrorCode.INVALID_REQUEST if error.fault.code is ErrorCode.INVALID_QUESTION else error.fault.code
        raise RequestError(code, error.fault.message, param=error.fault.param) from None
    if len(messages) == 1 and messages[0].get("role") == "user":
        return messages[0]["content"]
    return messages


_MESSAGES: Mapping[str, set[str]] = {
    "message": {"type", "role", "content", "phase"},
    "function_call": {"type", "name", "arguments", "call_id", "id", "namespace", "status"},
    "function_call_output": {"type", "output", "call_id", "id", "status"},
    "custom_tool_call": {"type", "name", "input", "call_id", "id", "namespace", "status"},
    "custom_tool_call_output": {"type", "output", "call_id", "id", "status"},
}
"""The fields of what an input consists of, by its type."""

_UNSEEN = {"id", "status", "phase"}
"""The fields that tell the model nothing."""


def _message(path: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise FaultyError(path, "must be an object")
    kind = value.get("type", "message")
    if not isinstance(kind, str) or kind not in _MESSAGES:
        raise FaultyError(f"{path}.type", f"must be one of {', '.join(_MESSAGES)}")
    check_names(path, value, _MESSAGES[kind])
    if kind == "message" and value.get("role") not in ("user", "developer", "system", "assistant"):
        raise FaultyError(f"{path}.role", "must be user, developer, system or assistant")
    seen = {name: one for name, one in value.items() if name not in _UNSEEN and one is not None}
    for name in ("content", "output"):
        if name in _MESSAGES[kind]:
            seen[name] = _content(f"{path}.{name}", value.get(name))
    if kind == "message":
        seen.pop("type", None)
    return seen


def _content(path: str, value: object) -> object:
    """Return the text of a message or of instructions. Parts that are texts stand below one another."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise FaultyError(path, "must be a text or a list of parts")
    parts = [_part(f"{path}[{n}]", part) for n, part in enumerate(value)]
    if all(isinstance(part, str) for part in parts):
        return "\n".join(map(str, parts))
    return parts[0] if len(parts) == 1 else parts


def _part(path: str, value: object) -> object:
    if not isinstance(value, Mapping):
        raise FaultyError(path, "must be an object")
    match value.get("type"):
        case "input_text" | "output_text":
            check_names(path, value, {"type", "text", "prompt_cache_breakpoint", "annotations"})
            name = "text"
        case "refusal":
            check_names(path, value, {"type", "refusal"})
            name = "refusal"
        case "input_json":
            check_names(path, value, {"type", "data"})
            if not isinstance(value.get("data"), dict | list):
                raise FaultyError(f"{path}.data", "must be an object or a list")
            return value["data"]
        case str(kind) if kind in _IMAGES:
            raise FaultyError(path, "is no text, and the model sees nothing else", ErrorCode.IMAGES_NOT_SUPPORTED)
        case _:
            raise FaultyError(f"{path}.type", "must be input_text, output_text, refusal or input_json")
    if not isinstance(value.get(name), str):
        raise FaultyError(f"{path}.{name}", "must be a text")
    return value[name]
