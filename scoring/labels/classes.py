"""What requests to a model with classes may ask for, and the numbers of the classes that they name."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoints.classification import Activation, Classes
from scoring.error_codes import ErrorCode, RequestError
from scoring.labels.fields import LABEL_FIELDS
from scoring.quoting import quote

_OF_TOKENS = tuple(name for name in LABEL_FIELDS if name != "labels")
_NAMED = 20
"""Classes that an error names at most."""


def refuse_other_work(classes: Classes, *, is_decision: bool = False, is_of_tokens: bool = False) -> None:
    """Raise RequestError for a request that such outputs do not answer.

    is_decision: whether it asks questions; is_of_tokens: whether it needs probabilities of next tokens.
    """
    decides = classes.activation is Activation.DECISIONS
    if is_of_tokens or is_decision != decides:
        has = "classes and gives no probabilities of tokens: it serves /v1/score and /v1/rerank"
        if decides:
            has = "a head for decisions and gives no other scores: it serves /v1/systemone and /v1/decisions"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, f"the served model has {has}")


def refuse_labels_of_tokens(body: Mapping[str, object]) -> None:
    """Raise RequestError for a field that is about labels made of tokens."""
    for name in _OF_TOKENS:
        if body.get(name) is not None:
            message = f"{name} is about tokens, and the served model has classes: name classes in labels, or nothing"
            raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param=name)


def check_options(activation: Activation, *, apply_softmax: bool, return_logprobs: bool, **_: bool) -> None:
    """Raise RequestError for an option that the scores of such classes can't have."""
    if apply_softmax and not activation.is_softmax:
        message = "apply_softmax needs classes of which one holds, and the outputs of the served model are independent"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="apply_softmax")
    if return_logprobs and activation is Activation.IDENTITY:
        message = "return_logprobs needs probabilities, and the scores of the served model are none"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="return_logprobs")


def class_number(label: str, where: str, classes: Classes) -> int:
    """Return the number of a class. where: its place in the request. Raises RequestError."""
    if label in classes.names:
        return classes.names.index(label)
    more = f" and {len(classes.names) - _NAMED} more" if len(classes.names) > _NAMED else ""
    known = ", ".join(map(quote, classes.names[:_NAMED])) + more
    message = f"{where}: the served model has no class {quote(label)}; it has {known}"
    raise RequestError(ErrorCode.INVALID_LABEL_TOKEN_IDS, message, param=where)
