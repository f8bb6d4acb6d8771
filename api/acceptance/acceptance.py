"""What a submission goes through: whether it can be scored and stored, its commit, and the bell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.acceptance.accepting import Acceptor
from api.acceptance.ringing import Ringer
from api.callers.admission import Admission, too_many_chunks
from api.callers.compatibility import CompatibilityCheck
from api.callers.storage_quota import StorageQuota
from api.metrics import Metrics
from api.reading import ReadingContext
from api.store import Store
from checkpoints.card import ModelCard
from jobs.store.records import Submission


@dataclass(frozen=True, slots=True, eq=False)
class Door:
    """How work for one model is admitted."""

    card: ModelCard  # of the model
    compatibility: CompatibilityCheck
    admission: Admission


class Doors:
    """The doors of all models, each made when it is first used. Safe to use from threads."""

    def __init__(self, make: Callable[[ModelCard], Door], reading: ReadingContext) -> None:
        self._make = make
        self._models = reading.models
        self._doors: dict[ModelCard, Door] = {}

    @property
    def default(self) -> Door:
        return self.of_card(self._models.catalogue.default.card)

    def of_card(self, card: ModelCard) -> Door:
        return self._doors.get(card) or self._doors.setdefault(card, self._make(card))

    def of(self, submission: Submission) -> Door:
        """Return the door for the model of a submission. Raises RequestError as :meth:`Models.entry_of` does."""
        return self.of_card(self._models.entry_of(submission).card)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Acceptance:
    """How a process accepts work."""

    doors: Doors
    storage_quota: StorageQuota
    acceptor: Acceptor
    ringer: Ringer

    @classmethod
    def make(cls, store: Store, reading: ReadingContext, ringer: Ringer, metrics: Metrics) -> Acceptance:
        """Make the parts inside the event loop that uses them."""
        db, threads = store.database, store.threads
        quota = StorageQuota(db, reading.limits.max_stored_bytes_per_tenant)
        too_many = too_many_chunks(db, reading.api)

        def make_door(card: ModelCard) -> Door:
            compatibility = CompatibilityCheck(db, card, db.settings.worker_fresh_seconds)
            admission = Admission(db, threads, card, compatibility, reading.api, quota, too_many)
            return Door(card, compatibility, admission)

        return cls(
            doors=Doors(make_door, reading),
            storage_quota=quota,
            acceptor=Acceptor(db, threads, ringer, metrics),
            ringer=ringer,
        )
