"""What monitoring asks of a process, which anybody may do as often as they like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync

from api.acceptance.acceptance import Acceptance, Door
from api.answers.presentation import show_readiness
from api.callers.compatibility import RETRY_SECONDS
from api.metrics import Metrics
from api.rounds import SharedCall
from api.siblings import Siblings
from api.store import Store
from jobs.store.database import Database
from scoring.error_codes import ErrorCode, RequestError

READINESS_SECONDS = 1.0
"""For how long an answer of ``/readyz`` is the answer to everybody: anybody may ask, as often as it likes."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Probes:
    """What the answers to monitoring are made of."""

    metrics_text: SharedCall[bytes]  # what /metrics answers
    readiness: SharedCall[dict[str, Any]]  # what /readyz answers
    siblings: Siblings | None  # None: this process serves alone

    @classmethod
    def make(cls, store: Store, acceptance: Acceptance, metrics: Metrics, siblings: Siblings | None) -> Probes:
        """Make what is asked for, inside the event loop that uses it."""
        return cls(
            # Not in the threads for SQL, because metrics are needed most when all of those wait for the database. One
            # thread at a time, because making the text takes the interpreter's lock from everybody.
            metrics_text=SharedCall(lambda: run_sync(metrics.text)),
            readiness=SharedCall(
                lambda: store.threads.sql(find_readiness, store.database, acceptance.doors.default), READINESS_SECONDS
            ),
            siblings=siblings,
        )


def find_readiness(database: Database, default: Door) -> dict[str, Any]:
    """Return what the readiness of this process is. Blocks on SQL. Raises RequestError, StorageUnavailable.

    default: of the default model. Whether others have workers is of no concern to whoever sends requests to processes.
    """
    database.check_use()
    card, compatibility = default.card, default.compatibility.current()
    if compatibility.mismatched:
        raise RequestError(
            ErrorCode.MODEL_UNAVAILABLE,
            f"the workers of {card.name} serve something else than this server: "
            + "; ".join(compatibility.differences),
            retry_after=RETRY_SECONDS,
        )
    return show_readiness(card, compatibility)
