"""What all commands for operators share: they open the store, use it, and explain in one line why that fails."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

from jobs.outages import explain_outage
from jobs.store.database import Database, StorageUnavailable, StoreError
from jobs.store.revisions import UnknownSchemaError
from settings.errors.endings import Ending, in_one_line
from settings.errors.mistakes import SettingError
from settings.store import StoreSettings
from settings.unknown import name_unknown_variables

INTERRUPTED = 128 + signal.SIGINT  # as in the shell


def run_on_store(action: Callable[[Database], int], *, check_schema: bool = True) -> int:
    """Return the exit code of ``action``. If it can't be carried out, print why, and return the code for that."""
    for line in name_unknown_variables(os.environ):
        print(f"scoreline: warning: {line}", file=sys.stderr)
    try:
        settings = StoreSettings()
        with closing(Database.open(settings)) as database:
            database.outages.is_logged = False  # The line that this command prints says it.
            try:
                if check_schema:
                    database.check()
                code = action(database)
                sys.stdout.flush()
            except StorageUnavailable as error:
                return fail(explain_outage(error, settings), Ending.UNAVAILABLE)
            except StoreError as error:
                return fail(explain_outage(error, settings))
            except OSError as error:
                if error.filename is not None:
                    return fail(explain_outage(error, settings))
                _discard_output()
                return fail(f"standard output can't be written: {error.strerror}; what was to be printed is lost")
    except (SettingError, UnknownSchemaError, ValueError) as error:
        return fail(in_one_line(error), Ending.MISCONFIGURED)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    return code


def _discard_output() -> None:
    """Have what is left of the output go nowhere. Otherwise Python would try to write it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def fail(reason: str, code: int = Ending.FAILED) -> int:
    """Print the reason on one line to stderr. Returns the exit code."""
    print(f"scoreline: {reason}", file=sys.stderr)
    return code


class Arguments(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End the process."""
        sys.exit(fail(f"{message}; `{self.prog} --help` shows what can be given", Ending.MISCONFIGURED))
