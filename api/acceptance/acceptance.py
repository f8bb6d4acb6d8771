"""What a submission goes through: whether it can be scored and stored, its commit, and the bell."""

from __future__ import annotations

from dataclasses import dataclass

from api.acceptance.accepting import Acceptor
from api.acceptance.ringing import Ringer
from api.callers.admission import Admission
from api.callers.compatibility import CompatibilityCheck
from api.callers.storage_quota import StorageQuota
from api.metrics import Metrics
from api.reading import ReadingContext
from api.store import Store


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Acceptance:
    """How a process accepts work."""

    compatibility: CompatibilityCheck
    storage_quota: StorageQuota
    admission: Admission
    acceptor: Acceptor
    ringer: Ringer

    @classmethod
    def make(cls, store: Store, reading: ReadingContext, ringer: Ringer, metrics: Metrics) -> Acceptance:
        """Make the parts inside the event loop that uses them."""
        db, threads, card = store.database, store.threads, reading.card
        compatibility = CompatibilityCheck(db, card, db.settings.worker_fresh_seconds)
        quota = StorageQuota(db, reading.limits.max_stored_bytes_per_tenant)
        return cls(
            compatibility=compatibility,
            storage_quota=quota,
            admission=Admission(db, threads, card, compatibility, reading.api, quota),
            acceptor=Acceptor(db, threads, ringer, metrics, card.name),
            ringer=ringer,
        )
