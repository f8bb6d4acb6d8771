"""Reading a request's body: how much, in what shape, and nothing of what it means."""

from __future__ import annotations

from email.message import Message

from starlette.requests import Request

from scoring.errors import ErrorCode, RequestError


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The bytes of a JSON body, at most ``max_bytes``.

    Raises RequestError: ``unsupported_media_type``, ``request_too_large``.
    """
    _check_media_type(request)
    too_large = RequestError(ErrorCode.REQUEST_TOO_LARGE, f"the body may have {max_bytes} bytes at most")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    # The declared length may be absent (chunked) or a lie, so what arrives is counted too.
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _check_media_type(request: Request) -> None:
    """JSON as UTF-8, uncompressed. An absent media type is refused too: browsers send that across origins unasked."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    media_type = header.get_content_type() if request.headers.get("content-type") else "none"
    charset = (header.get_content_charset() or "utf-8").lower()
    if media_type != "application/json" or charset not in ("utf-8", "utf8", "us-ascii"):
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`, in UTF-8"
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not supported; send plain JSON")
