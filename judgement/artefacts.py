"""What a calibration or a threshold is kept as: a file that says what it was made from, and that nobody has edited."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from judgement.sample import JudgementError

FORMAT = 1


class Kind(StrEnum):
    """What an artefact is for."""

    CALIBRATION = "calibration"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Artefact:
    """A calibration or a threshold, for one model, one prompt and one list of labels."""

    kind: Kind
    name: str
    created: str  # the day, such as 2026-11-28
    model: Mapping[str, Any]  # its fingerprints, as the provenance of scores has them; empty: scores came from a file
    prompt: Mapping[str, Any]  # the templates, options and questions by which the rows were scored
    labels: tuple[str, ...]
    data: Mapping[str, Any]  # the digest of the labelled file, and how many rows and clusters it has
    counts: Mapping[str, int]  # how many rows have each label as the true one
    method: str
    parameters: Mapping[str, Any]  # of the method
    figures: Mapping[str, Any]  # what was measured, with intervals
    calibration: Artefact | None = None  # of a threshold: what calibrates the probabilities first

    @property
    def id(self) -> str:
        """A hash of all the rest."""
        return hashlib.sha256(_canonical(_content(self))).hexdigest()


def write(artefact: Artefact, path: Path) -> None:
    """Write an artefact as JSON. Raises OSError."""
    path.write_text(json.dumps(_with_id(artefact), indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def read(path: Path) -> Artefact:
    """Read an artefact. Raises OSError, and JudgementError for a file that is none or that was edited."""
    try:
        found = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise JudgementError(f"{path} is no artefact: {error}") from None
    return _read(found, str(path))


def _read(found: Any, where: str) -> Artefact:
    if not isinstance(found, dict) or "format" not in found:
        raise JudgementError(f"{where} is no artefact of `scoreline calibrate` or `scoreline threshold`")
    if found["format"] != FORMAT:
        raise JudgementError(
            f"{where} has format {found['format']!r}, and this version reads format {FORMAT}: make it again"
        )
    names = {field.name for field in fields(Artefact)}
    if different := names ^ (found.keys() - {"format", "id"}):
        raise JudgementError(f"{where} was edited: it lacks or adds {', '.join(sorted(different))}; make it again")
    content = {name: found[name] for name in names}
    try:
        inner = content["calibration"]
        content["calibration"] = None if inner is None else _read(inner, f"the calibration in {where}")
        artefact = Artefact(**content | {"kind": Kind(content["kind"]), "labels": tuple(content["labels"])})
        is_as_written = artefact.id == found.get("id")
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, JudgementError):
            raise
        raise JudgementError(f"{where} was edited, and can't be read any more: make it again") from None
    if not is_as_written:
        raise JudgementError(f"{where} was edited: its id is not that of its content; make it again")
    return artefact


def _content(artefact: Artefact) -> dict[str, Any]:
    found: dict[str, Any] = {"format": FORMAT, **asdict(artefact)}
    if artefact.calibration is not None:
        found["calibration"] = _with_id(artefact.calibration)
    return found


def _with_id(artefact: Artefact) -> dict[str, Any]:
    return {"id": artefact.id, **_content(artefact)}


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no number")
