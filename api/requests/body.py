"""Read the body of a request, and check its size, media type and encoding."""

from __future__ import annotations

from starlette.requests import Request

from scoring.error_codes import ErrorCode, RequestError


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return a JSON body of at most ``max_bytes``. Raises RequestError UNSUPPORTED_MEDIA_TYPE, REQUEST_TOO_LARGE."""
    _check_media_type(request)
    check_declared_length(request, max_bytes)
    # The declared length may be missing or wrong, so the received bytes are counted, too.
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def media_type(request: Request) -> str:
    """Return the declared media type; ``none`` without one, and if it declares another charset than UTF-8."""
    # Python's own parser of such headers takes quadratic time, on the event loop.
    header = request.headers.get("content-type", "")
    # A semicolon inside quotes separates no parameters, and an escaped quote ends no quotes.
    pieces = header.replace("\\\\", "").replace('\\"', "").split('"')
    pieces[1::2] = [quoted.replace(";", " ") for quoted in pieces[1::2]]
    found, *parameters = '"'.join(pieces).split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() in ("charset", "charset*") and charset not in ("", "utf-8", "utf8", "us-ascii"):
            return "none"
    return found.strip().lower() or "none"


def content_encoding(request: Request) -> str:
    """Return the declared content encoding; ``identity`` without one."""
    return request.headers.get("content-encoding", "").strip().lower() or "identity"


def check_declared_length(request: Request, max_bytes: int) -> None:
    """Raise RequestError ``request_too_large`` if the declared length is too large."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise too_large(max_bytes)


def too_large(max_bytes: int) -> RequestError:
    """Return the error for a body of more than ``max_bytes``."""
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, f"the body may have {max_bytes} bytes at most")


def _check_media_type(request: Request) -> None:
    """Require plain JSON in UTF-8, and a media type: browsers send requests without one across origins unasked."""
    if media_type(request) != "application/json":
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`, in UTF-8"
        )
    if content_encoding(request) != "identity":
        raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not supported; send plain JSON")
