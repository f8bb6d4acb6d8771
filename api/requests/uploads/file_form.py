"""Read the form of ``POST /v1/files`` (``multipart/form-data``) piece by piece, without ever holding a whole file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from api.requests.headers.idempotency import body_hasher
from jobs.files.tables import MAX_FILENAME
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.quoting import quote_name
from settings.limits import LimitSettings

ROUTE = "POST /v1/files"

FORM_BYTES = 2**16
"""What a form may have beside its file."""

MAX_PARTS = 16
MAX_FIELD_BYTES = 1_024
MAX_HEADER_BYTES = 4_096
"""The parts of a form, the bytes of a field that is no file, and the bytes of the headers of a part."""

_CONTENT = re.compile(rb"[^ \t\r\n]")


class FileForm:
    """The form of a file. It blocks on the processor, so use it in a thread. Every method raises RequestError."""

    def __init__(self, boundary: bytes, limits: LimitSettings) -> None:
        self.fields: dict[str, str] = {}  # other than the file
        self.filename: str | None = None  # None until the file begins
        self.bytes = 0  # of the file so far
        self._form_bytes = 0  # of everything so far, also of what stands before and behind the parts
        self._limits = limits
        self._hasher = body_hasher(ROUTE)
        self._lines = _LineCount()
        self._parts = 0
        self._part = _Part()
        self._headers: dict[bytes, bytes] = {}
        self._header_name, self._header_value = bytearray(), bytearray()
        self._header_bytes = 0
        self._content: list[bytes] = []
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Return the bytes of the file among further bytes of the form, and how many lines end with them.

        Lines that are blank do not count.
        """
        self._content = []
        self._form_bytes += len(data)
        if self._form_bytes > self._limits.max_file_bytes + FORM_BYTES:
            raise too_large(self._limits)
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise invalid(f"the body is not a valid form: {error}") from None
        content = b"".join(self._content)
        self._hasher.update(content)
        self.bytes += len(content)
        if self.bytes > self._limits.max_file_bytes:
            raise too_large(self._limits)
        return content, self._counted(self._lines.feed(content))

    def finish(self) -> int:
        """Check that the form has ended and has a file. Return 1 if the last line has no line end, else 0."""
        if not self._ended:
            raise invalid("the form is cut off: its last boundary is missing")
        if self.filename is None:
            raise invalid("the form has no file", "file")
        return self._counted(self._lines.finish())

    def body_hash(self, *fields: object) -> str:
        """Return the hash of the file and of the fields that are given, for its Idempotency-Key."""
        hasher = self._hasher.copy()
        hasher.update(repr((self.bytes, self.filename, *fields)).encode())
        return hasher.hexdigest()

    def _counted(self, lines: int) -> int:
        if self._lines.count > self._limits.max_lines_per_file:
            message = f"a file may have {self._limits.max_lines_per_file} lines at most, blank ones left out"
            raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, param="file", limit="max_lines_per_file")
        return lines

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise invalid(f"a form may have {MAX_PARTS} parts at most")
        self._headers, self._header_bytes, self._part = {}, 0, _Part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += self._counted_header(data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += self._counted_header(data[start:end])

    def _counted_header(self, piece: bytes) -> bytes:
        self._header_bytes += len(piece)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise invalid(f"the headers of a part of the form may have {MAX_HEADER_BYTES} bytes at most")
        return piece

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header_name).lower()] = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or not name:
            raise invalid("a part of the form has no name")
        self._part = _Part(name, is_file=name == "file")
        if not self._part.is_file:
            return
        if self.filename is not None:
            raise invalid("the form has two files; send one at a time", "file")
        self.filename = _filename(options.get(b"filename", b""))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.is_file:
            self._content.append(data[start:end])
            return
        self._part.value += data[start:end]
        if len(self._part.value) > MAX_FIELD_BYTES:
            name = self._part.name
            raise invalid(f"{quote_name(name)} may have {MAX_FIELD_BYTES} bytes at most", name[:64])

    def _on_part_end(self) -> None:
        if not self._part.is_file:
            self.fields[self._part.name] = self._part.value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._ended = True


class _Part:
    """A part of the form."""

    def __init__(self, name: str = "", *, is_file: bool = False) -> None:
        self.name = name
        self.is_file = is_file
        self.value = bytearray()  # of a field that is no file


@dataclass
class _LineCount:
    """Counts the lines that are not blank."""

    count: int = 0
    _has_content: bool = False  # whether the line that has begun is not blank

    def feed(self, data: bytes) -> int:
        """Return how many such lines end with further bytes."""
        *ended, rest = data.split(b"\n")
        before = self.count
        for line in ended:
            self.count += self._has_content or _CONTENT.search(line) is not None
            self._has_content = False
        self._has_content = self._has_content or _CONTENT.search(rest) is not None
        return self.count - before

    def finish(self) -> int:
        """Return 1 if such a line has no line end."""
        self.count += self._has_content
        return int(self._has_content)


def too_large(limits: LimitSettings) -> RequestError:
    """Return the error of a file that is too large, or of a form around it."""
    message = f"a file may have {limits.max_file_bytes} bytes at most"
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, message, param="file", limit="max_file_bytes")


def _filename(given: bytes) -> str:
    name = given.decode("utf-8", "replace").rpartition("/")[2].rpartition("\\")[2]
    if len(name) > MAX_FILENAME or "\0" in name:
        raise invalid(f"the name of a file has at most {MAX_FILENAME} characters, none of them NUL", "file")
    return name or "file.jsonl"
