"""The names of a body's fields: which of them are refused, and which are ignored with a warning."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from api.requests.refused_fields import Refused, refuse
from api.requests.webhook import unknown_webhook_fields
from scoring.error_codes import ErrorCode, RequestError
from scoring.quoting import QUOTED_CHARACTERS, QUOTED_PIECES, quote_name


def check_fields(
    body: Mapping[str, object], known: Collection[str], refused: Mapping[str, Refused], *, strict: bool
) -> tuple[str, ...]:
    """Return warnings about a body's unknown fields.

    known: the names of the fields that the body may have. refused: the fields of other systems that it may not have.
    strict: whether unknown fields are refused. Raises RequestError UNSUPPORTED_PARAMETER, UNKNOWN_PARAMETER.
    """
    refuse(body, refused)
    names = [name for name in body if name not in known and name not in refused]
    if "webhook" in known:
        names += unknown_webhook_fields(body)
    if names and strict:
        message = f"there is no field {quote_name(names[0])}"
        raise RequestError(ErrorCode.UNKNOWN_PARAMETER, message, param=names[0][:QUOTED_CHARACTERS])
    warnings = [f"unknown field {quote_name(name)} was ignored" for name in names[:QUOTED_PIECES]]
    if len(names) > QUOTED_PIECES:
        warnings.append(f"{len(names) - QUOTED_PIECES} more unknown fields were ignored")
    return tuple(warnings)


def with_items_called(name: str, error: RequestError, items: str = "items") -> RequestError:
    """Return an error in the words of a client to whom items are something else. name: its field for them.

    items: what the error calls them.
    """
    if error.param is None or not error.param.startswith(items):
        return error
    param = error.param.replace(items, name, 1)
    is_named = "[" in param or error.message.startswith(error.param)
    message = error.message.replace(error.param, param, 1) if is_named else error.message
    return RequestError(error.code, message, param=param, retry_after=error.retry_after, limit=error.limit)
