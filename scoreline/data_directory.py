"""The data directory of ``scoreline up``: one process uses it at a time, and it has what is the same at every start."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scoreline.exit_codes import CommandError

CALIBRATIONS_VARIABLE, CALIBRATIONS_FOLDER = "SCORELINE_CALIBRATIONS", "calibrations"
"""The variable that names the folder of calibrations and thresholds, and what it is in the data directory otherwise."""

RECEIPT_KEYS_VARIABLE, RECEIPT_KEYS_FILE_VARIABLE = "SCORELINE_RECEIPT_KEYS", "SCORELINE_RECEIPT_KEYS_FILE"
RECEIPT_KEYS_FILE = "receipt-keys.pem"
"""The variables with the keys that sign receipts, and the file in the data directory that has them otherwise."""


class DataDirectory:
    """A data directory, which this process has for itself from :meth:`lock` to :meth:`release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._is_new = False

    def lock(self) -> None:
        """Make the directory if there is none, and lock it for this process. Raises CommandError."""
        self._is_new = not self.path.exists()
        with self._usable():
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(lock, 20).decode()
                raise CommandError(
                    f"the data directory {self.path} is in use by another `scoreline up` (process {owner}); "
                    "stop that one, or name another directory with --data"
                ) from None
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())

    def add_to(self, variables: dict[str, str]) -> None:
        """Name the folder of artefacts and the key for receipts of this directory where no others are named.

        Both are made the first time. The key stays: old receipts are verified by it. Raises CommandError.
        """
        with self._usable():
            if not variables.get(CALIBRATIONS_VARIABLE):
                folder = self.path.resolve() / CALIBRATIONS_FOLDER
                folder.mkdir(exist_ok=True)
                variables[CALIBRATIONS_VARIABLE] = str(folder)
            if not (variables.get(RECEIPT_KEYS_VARIABLE) or variables.get(RECEIPT_KEYS_FILE_VARIABLE)):
                variables.pop(RECEIPT_KEYS_VARIABLE, None)  # It may be empty.
                variables[RECEIPT_KEYS_FILE_VARIABLE] = str(_receipt_key(self.path.resolve() / RECEIPT_KEYS_FILE))

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = "" if error.filename in (None, str(self.path)) else f"{error.filename}: "
            raise CommandError(f"the data directory {self.path} can't be used: {what}{error.strerror}") from error

    def remove_if_new(self) -> None:
        """Remove a directory that :meth:`lock` has made and in which there is nothing else."""
        if self._is_new:
            (self.path / "lock").unlink()
            with suppress(OSError):
                self.path.rmdir()

    def release(self) -> None:
        """Let another process have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _receipt_key(file: Path) -> Path:
    if not file.exists():
        from judgement.receipts import new_key

        unfinished = file.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(new_key())
        unfinished.replace(file)
    return file
