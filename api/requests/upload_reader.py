"""From the lines of an upload to its job and its chunks, a batch of items at a time.

The first line is the body of ``POST /v1/jobs`` without ``items``; each further line is an item, a text or a list of
token ids. Blank lines are nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from api.callers.authentication import Principal
from api.requests.json_body import parse_json
from api.requests.lines import Lines
from api.requests.submission import parse_object, read_upload
from api.service import Service
from jobs.store.records import Submission
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Rows
from scoring.prepare import Chunk, Preparation
from scoring.request import check_items

ROUTE = "POST /v1/jobs"

BATCH_ITEMS = 1_024
BATCH_BYTES = 2**20
"""Items, and bytes of their lines, that are prepared at a time."""

_ITEM = re.compile(r"items\[(\d+)\]")

Part = tuple[int, Rows]
"""A chunk as of :class:`jobs.store.records.Submission`."""


class UploadReader:
    """Reads an upload. Blocks on the processor: to be used in a thread. Every method raises RequestError.

    submission: the job without its items, once the first line has come. skims: only the hash of the body is of
    interest from now on.
    """

    def __init__(self, service: Service, principal: Principal, *, packed: bool) -> None:
        self.submission: Submission | None = None
        self.skims = False
        self._service = service
        self._principal = principal
        self._preparation: Preparation | None = None
        self._items: list[object] = []
        self._numbers: list[int] = []
        self._bytes = self._overhead = 0
        limits = service.api
        self._lines = Lines(
            ROUTE, packed=packed, max_bytes=limits.max_upload_bytes, max_line_bytes=limits.max_line_bytes
        )

    @property
    def body_hash(self) -> str:
        """Of the unpacked bytes so far."""
        return self._lines.body_hash

    def feed(self, data: bytes) -> Iterator[list[Part]]:
        """The chunks that are complete with further bytes; after every bounded step, also where there are none."""
        for lines in self._lines.feed(data):
            yield [] if self.skims else _parts(self._take(lines))

    def finish(self) -> list[Part]:
        """The last chunks."""
        lines = self._lines.finish()
        if self.skims:
            return []
        chunks = self._take(lines)
        if self._preparation is None:
            raise RequestError(ErrorCode.INVALID_JSON, "the body is empty: its first line is the job without `items`")
        return _parts([*chunks, *self._prepare(self._preparation), *self._preparation.finish()])

    def _take(self, lines: list[tuple[int, bytes]]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for number, line in lines:
            if not line.strip(b" \t\r"):
                continue
            if self._preparation is None:
                self._open(number, line)
                continue
            place = f"items[{self._preparation.total_items + len(self._items)}]"
            self._items.append(parse_json(line, f"line {number}", place))
            self._numbers.append(number)
            self._bytes += len(line) + self._overhead
            if len(self._items) == BATCH_ITEMS or self._bytes >= BATCH_BYTES:
                chunks += self._prepare(self._preparation)
        return chunks

    def _open(self, number: int, line: bytes) -> None:
        try:
            self.submission, self._preparation = read_upload(self._service, self._principal, parse_object(line))
        except RequestError as error:
            raise _in_line(error, number) from None
        if self.submission.options.item_first:
            # There is no shared prefix then: each item's row holds the query, too.
            self._overhead = len(line)

    def _prepare(self, preparation: Preparation) -> list[Chunk]:
        """Prepare the items that have come since the last time."""
        items, numbers, first = self._items, self._numbers, preparation.total_items
        self._items, self._numbers, self._bytes = [], [], 0
        assert self.submission is not None
        try:
            return preparation.add(check_items(items, text=preparation.is_text, first=first))
        except RequestError as error:
            named = _ITEM.match(error.param or "")
            raise _in_line(error, numbers[int(named[1]) - first]) if named else error from None


def _in_line(error: RequestError, number: int) -> RequestError:
    return RequestError(error.code, f"line {number}: {error.message}", param=error.param, retry_after=error.retry_after)


def _parts(chunks: list[Chunk]) -> list[Part]:
    return [(chunk.first_item, chunk.rows) for chunk in chunks]
