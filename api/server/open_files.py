"""How many connections fit into the number of files that the process may open."""

from __future__ import annotations

import resource

RESERVED_FILES = 256
"""The files that are kept for the database, Redis, logs and checkpoints."""


def connections_that_fit(wanted: int) -> int:
    """Raise the process's soft limit of open files as far as needed and allowed, and return how many connections fit.

    Without room for further files, no connection could be accepted and no query sent, and nothing would say why.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + RESERVED_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft - min(RESERVED_FILES, soft // 2))
