"""What goes wrong with a table, said to a caller of Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scoreline.exit_codes import CommandError
from scoreline.failures import in_python

try:  # All modules of tables import this one first.
    import pyarrow as _  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError('tables need pyarrow: pip install "scoreline[frames]"', name="pyarrow") from None


class TableError(ValueError):
    """A table, or what is asked about it, is wrong."""


class CostError(TableError):
    """Scoring would cost more than the caller allows. Nothing of what was counted has been scored."""


@contextmanager
def as_table_errors() -> Iterator[None]:
    """Have the errors of runs name the arguments of Python instead of the options of the command."""
    try:
        yield
    except CommandError as error:
        raise TableError(in_python(str(error))) from None
