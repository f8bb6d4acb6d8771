"""Convert files to the JSON of responses, whose shapes are documented in ``api.answers.schemas.file``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.answers.schemas.file import File
from api.answers.shown import shown
from jobs.files.reading import FileRecord


def show_file(file: FileRecord) -> dict[str, Any]:
    """Return the file object."""
    return shown(File, file, status_details=None)


def show_list(objects: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a page of a list with the cursors of OpenAI's interface. objects: one more than the limit if there is."""
    shown = list(objects[:limit])
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit,
    }
