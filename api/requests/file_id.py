"""The ids of files, as clients send them."""

from __future__ import annotations

import re

from jobs.files.reading import file_not_found

FILE_ID = r"^file_[0-9A-Za-z-]{1,64}$"


def checked_file_id(file_id: str, param: str | None = None) -> str:
    """Return a valid file id. An invalid one raises the error of a missing file and is not sent to the database.

    param: the field of a body that holds it, if one does.
    """
    if not re.fullmatch(FILE_ID, file_id):
        raise file_not_found(param)
    return file_id
