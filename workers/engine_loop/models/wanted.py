"""The models of a rota: one that is wanted, and the same one in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from checkpoints.card import ModelCard
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from workers.engine_loop.loop import ScoringEngine


class Loaded(Protocol):
    """A model in memory, as :class:`workers.engine_loop.models.loading.LoadedModel` is."""

    @property
    def engine(self) -> ScoringEngine:
        """What scores."""

    @property
    def worker(self) -> WorkerRecord:
        """As which the worker registers for the model."""

    @property
    def provenance(self) -> Provenance | None:
        """What computes its scores."""

    @property
    def nbytes(self) -> int:
        """What it takes of the memory."""

    @property
    def prefix_counts(self) -> Mapping[str, int]:
        """The events of its prefix cache so far."""

    @property
    def measured_ratio(self) -> float | None:
        """Measured over estimated seconds of its work; None before enough was measured."""


class Wanted(Protocol):
    """A model that the worker is to serve."""

    @property
    def card(self) -> ModelCard:
        """What is known of it without loading it."""

    def load(self, taken_bytes: int, check: Callable[[], None]) -> Loaded:
        """Load it.

        taken_bytes: of the memory, by models that are loaded. check: called now and then; an error that it raises ends
        the loading. Raises CheckpointError, SettingError.
        """

    def expected_bytes(self) -> int:
        """Return about how much memory it will take. Raises CheckpointError, SettingError."""
