"""Reading a request's body: how much, in what shape, and nothing of what it means."""

from __future__ import annotations

from email.message import Message

from starlette.requests import Request

from scoring.error_codes import ErrorCode, RequestError


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The bytes of a JSON body, at most ``max_bytes``.

    Raises RequestError: ``unsupported_media_type``, ``request_too_large``.
    """
    _check_media_type(request)
    check_declared_length(request, max_bytes)
    # The declared length may be absent (chunked) or a lie, so what arrives is counted too.
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def media_type(request: Request) -> str:
    """The declared type of the body, in UTF-8; ``none`` if there is none or it declares another charset."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    charset = (header.get_content_charset() or "utf-8").lower()
    if not request.headers.get("content-type") or charset not in ("utf-8", "utf8", "us-ascii"):
        return "none"
    return header.get_content_type()


def content_encoding(request: Request) -> str:
    """How the body is packed; ``identity`` if it is not."""
    return request.headers.get("content-encoding", "").strip().lower() or "identity"


def check_declared_length(request: Request, max_bytes: int) -> None:
    """Raise RequestError ``request_too_large`` where a body says beforehand that it is."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise too_large(max_bytes)


def too_large(max_bytes: int) -> RequestError:
    """The error for a body of more than so many bytes."""
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, f"the body may have {max_bytes} bytes at most")


def _check_media_type(request: Request) -> None:
    """JSON as UTF-8, uncompressed. An absent media type is refused too: browsers send that across origins unasked."""
    if media_type(request) != "application/json":
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`, in UTF-8"
        )
    if content_encoding(request) != "identity":
        raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not supported; send plain JSON")
