"""The formats of files of rows, and how a file's format is found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode

Row = dict[str, Any]
"""The values of a row by the names of their columns."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that can't be read."""

    reason: str
    content: str  # what stands there, or so much of it that a change can be told


class Kind(StrEnum):
    """What the cells of a new column have."""

    NUMBER = "number"
    NUMBERS = "numbers"
    TEXT = "text"
    SHARES = "shares"  # numbers by names


STANDARD = "-"
"""The name of standard input, or of standard output."""


class Format(StrEnum):
    """How rows are written."""

    CSV = "csv"
    TSV = "tsv"
    JSON_LINES = "jsonl"
    PARQUET = "parquet"


_BY_ENDING = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".tab": Format.TSV,
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
}

DELIMITERS = {Format.CSV: ",", Format.TSV: "\t"}


PACKED = ".gz"
"""What the name of a file ends with that is packed with gzip."""


def lost(path: Path) -> CommandError:
    """Return the error for an output that has less than its journal says."""
    return CommandError(f"{path} has lost rows that were written: --restart begins again", ExitCode.FAILED)


def unfinished(path: Path, file_format: Format) -> Path:
    """Return where the rows of an output are until it is complete."""
    return path.with_name(path.name + (".parts" if file_format is Format.PARQUET else ".part"))


def foreign(path: Path) -> CommandError:
    """Return the error for something that is where rows are to be written, and that is not this run's own."""
    return CommandError(f"{path} is there, and no journal of a run names it: move it away or remove it", ExitCode.USAGE)


def is_packed(name: str) -> bool:
    """Return whether a file is packed with gzip, or is to be."""
    return name.lower().endswith(PACKED)


def format_of(name: str, given: Format | None, option: str) -> Format:
    """Return the format of a file: the given one, or else what the ending of its name says.

    option: the option by which the user can name the format. Raises CommandError.
    """
    if "://" in name:
        advice = "fetch it first, as by `aws s3 cp` or `curl -O`, or pipe it in or out and name -"
        raise CommandError(f"{name} is an address and no file: {advice}", ExitCode.USAGE)
    if given is not None:
        return given
    found = _BY_ENDING.get(Path(name[: -len(PACKED)] if is_packed(name) else name).suffix.lower())
    if found is Format.PARQUET and is_packed(name):
        raise CommandError(f"{name}: Parquet is packed already; name it without {PACKED}", ExitCode.USAGE)
    if found is None:
        what = "a standard stream has no ending" if name == STANDARD else f"the ending of {name} is not known"
        choices = ", ".join(Format)
        raise CommandError(f"{what}: say with {option} which format it has ({choices})", ExitCode.USAGE)
    return found
