"""Read the next lines of a batch's file, in blocks of bounded size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from api.batches.reading import InputLine
from jobs.file_batches.reading import BatchRecord
from jobs.files.reading import read_bytes
from jobs.store.database import Database

BLOCK_BYTES = 2**19
BLOCK_LINES = 1_000
"""The bytes and the lines that are read at a time."""

_CONTENT = re.compile(rb"[^ \t\r\n]")


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of a file that follow one another, blank ones left out."""

    lines: list[InputLine]
    stop_bytes: int  # the place behind them
    stop_lines: int  # the number of the line there


class MissingFileError(Exception):
    """The file of a batch has fewer bytes than it had."""


def next_block(db: Database, batch: BatchRecord, max_line_bytes: int) -> Block:
    """Return the next lines of a batch that is not read completely. Blocks on SQL. Raises MissingFileError."""
    start, size = batch.read_bytes, batch.input_bytes
    data = read_bytes(db, batch.input_file_id, start, min(BLOCK_BYTES, size - start))
    if not data:
        raise MissingFileError
    if b"\n" not in data and start + len(data) < size:
        data = read_bytes(db, batch.input_file_id, start, min(max_line_bytes + 1, size - start))
        if b"\n" not in data and start + len(data) < size:
            stop = _end_of_line(db, batch, start + len(data))
            return Block([InputLine(batch.read_lines, start, stop, None)], stop, batch.read_lines + 1)
    is_last = start + len(data) >= size
    return _cut(data, start, batch.read_lines, max_line_bytes, is_last=is_last)


def _cut(data: bytes, start: int, number: int, max_line_bytes: int, *, is_last: bool) -> Block:
    lines: list[InputLine] = []
    place = 0
    while place < len(data) and len(lines) < BLOCK_LINES:
        # Nothing is done for each blank line: a block may hold half a million of them.
        content = _CONTENT.search(data, place)
        begin = data.rfind(b"\n", place, len(data) if content is None else content.start()) + 1 or place
        number += data.count(b"\n", place, begin)
        place = begin
        end = data.find(b"\n", place)
        if end < 0:
            if not is_last:
                break
            end = len(data)
        if content is not None:
            line = data[place:end] if end - place <= max_line_bytes else None
            lines.append(InputLine(number, start + place, start + min(end + 1, len(data)), line))
        number += 1
        place = min(end + 1, len(data))
    return Block(lines, start + place, number)


def _end_of_line(db: Database, batch: BatchRecord, place: int) -> int:
    """Return the place behind the line that goes on at a place."""
    while place < batch.input_bytes:
        data = read_bytes(db, batch.input_file_id, place, BLOCK_BYTES)
        if not data:
            raise MissingFileError
        end = data.find(b"\n")
        if end >= 0:
            return place + end + 1
        place += len(data)
    return place
