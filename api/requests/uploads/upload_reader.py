"""Read the job and the chunks from the lines of an upload, a batch of items at a time.

The first line is the body of ``POST /v1/jobs`` without ``items``. Each further line is an item: a text or a list of
token ids. Blank lines are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from api.reading import ReadingContext
from api.requests.bodies.json_body import check_containers, parse_json
from api.requests.sender import Sender
from api.requests.submission import JOBS, parse_object, read_upload
from api.requests.uploads.lines import LineReader
from jobs.store.records import Submission
from scoring.chunk import Chunk
from scoring.error_codes import ErrorCode, RequestError
from scoring.prepare import Preparation
from scoring.request import check_items

BATCH_ITEMS = 1_024
BATCH_BYTES = 2**20
"""The items, and the bytes of their lines, that are prepared at a time."""

LINES_PER_ITEM, FURTHER_LINES = 2, 1_000
"""The lines that an upload may have: two for each item that it may have, so that a blank one may follow each."""

_ITEM = re.compile(r"items\[(\d+)\]")


class UploadReader:
    """Reads an upload. It blocks on the processor, so use it in a thread. Every method raises RequestError."""

    def __init__(self, reading: ReadingContext, sender: Sender, *, encoding: str) -> None:
        self.submission: Submission | None = None  # the job without its items, after the first line
        self.hash_only = False  # set it to compute only the hash of the further body
        self.first_line: tuple[int, bytes] | None = None  # with its number; it is to be read by :meth:`open`
        self._reading = reading
        self._sender = sender
        self._preparation: Preparation | None = None
        self._items: list[object] = []
        self._numbers: list[int] = []
        self._bytes = 0  # of the current batch of items, including the overhead
        self._overhead = 0  # bytes that each item adds to its line
        self._lines = LineReader(
            JOBS,
            reading.limits,
            encoding=encoding,
            max_lines=LINES_PER_ITEM * reading.scoring.max_items_per_upload + FURTHER_LINES,
        )

    @property
    def body_hash(self) -> str:
        """The hash of the uncompressed bytes so far."""
        return self._lines.body_hash

    def feed(self, data: bytes) -> Iterator[list[Chunk]]:
        """Yield the chunks that are complete with further bytes, possibly none, after each bounded step.

        After a step that has come to the first line, it is opened before the next step.
        """
        for lines in self._lines.feed(data):
            yield from self._take(lines)

    def finish(self) -> Iterator[list[Chunk]]:
        """Yield the last chunks, as :meth:`feed` does."""
        yield from self._take(self._lines.finish())
        if self.hash_only:
            return
        if self._preparation is None:
            raise RequestError(ErrorCode.INVALID_JSON, "the body is empty: its first line is the job without `items`")
        yield [*self._prepare(self._preparation), *self._preparation.finish()]

    def open(self) -> None:
        """Read the first line. Raises NotLoadedError, too: then call it again when the model is loaded."""
        assert self.first_line is not None
        number, line = self.first_line
        try:
            check_containers(line, "the body")
            self.submission, self._preparation = read_upload(self._reading, parse_object(line), self._sender)
        except RequestError as error:
            raise _in_line(error, number) from None
        self.first_line = None
        self._overhead = self._preparation.repeated_characters
        if self.submission.options.item_first:
            # Without a shared prefix, the row of each item also contains the query.
            self._overhead = len(line)

    def _take(self, lines: list[tuple[int, bytes]]) -> Iterator[list[Chunk]]:
        """Yield the chunks that are complete, possibly none, after each batch of items and at the end of the lines."""
        for number, line in lines:
            if self.hash_only:
                break
            if self._preparation is None:
                self.first_line = number, line
                yield []
                continue
            place = f"items[{self._preparation.total_items + len(self._items)}]"
            check_containers(line, f"line {number}", place)
            self._items.append(parse_json(line, f"line {number}", place))
            self._numbers.append(number)
            self._bytes += len(line) + self._overhead
            if len(self._items) == BATCH_ITEMS or self._bytes >= BATCH_BYTES:
                yield self._prepare(self._preparation)
        yield []

    def _prepare(self, preparation: Preparation) -> list[Chunk]:
        """Prepare the current batch of items, and begin a new one."""
        items, numbers, first = self._items, self._numbers, preparation.total_items
        self._items, self._numbers, self._bytes = [], [], 0
        assert self.submission is not None
        try:
            return preparation.add(check_items(items, text=preparation.is_text, first=first))
        except RequestError as error:
            named = _ITEM.match(error.param or "")
            raise _in_line(error, numbers[int(named[1]) - first]) if named else error from None


def _in_line(error: RequestError, number: int) -> RequestError:
    message = f"line {number}: {error.message}"
    return RequestError(error.code, message, param=error.param, retry_after=error.retry_after, limit=error.limit)
