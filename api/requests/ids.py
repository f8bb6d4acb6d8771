"""The ids of jobs, batches and files, as clients send them. An invalid one is never sent to the database."""

from __future__ import annotations

import re

from jobs.file_batches.reading import batch_not_found
from jobs.files.reading import file_not_found
from jobs.tenancy.ownership import job_not_found

JOB_ID = r"^job_[0-9A-Za-z-]{1,64}$"
BATCH_ID = r"^batch_[0-9A-Za-z-]{1,64}$"
FILE_ID = r"^file_[0-9A-Za-z-]{1,64}$"


def checked_job_id(job_id: str) -> str:
    """Return a valid job id. An invalid one raises the error of a missing job."""
    if not re.fullmatch(JOB_ID, job_id):
        raise job_not_found()
    return job_id


def checked_batch_id(batch_id: str) -> str:
    """Return a valid batch id. An invalid one raises the error of a missing batch."""
    if not re.fullmatch(BATCH_ID, batch_id):
        raise batch_not_found()
    return batch_id


def checked_file_id(file_id: str, param: str | None = None) -> str:
    """Return a valid file id. An invalid one raises the error of a missing file. param: the field of a body for it."""
    if not re.fullmatch(FILE_ID, file_id):
        raise file_not_found(param)
    return file_id
