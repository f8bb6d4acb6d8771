"""Which models of the catalogue a worker serves: those that it was told to, in all versions that have work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from checkpoints.card import ModelCard
from checkpoints.files import CheckpointError
from jobs.catalogue import ListedModel, list_models
from jobs.queue.read import has_waiting
from jobs.store.database import Database
from model.executable_table import ProgramShelf
from model.platforms import Platform
from model.prefixes.pool import HOST_BUDGET, PROGRAM_BYTES
from settings.catalogue import settings_of_model
from settings.engine import EngineSettings
from settings.errors.endings import in_one_line
from settings.scoring import ScoringSettings
from workers.engine_loop.loading import Described, LoadedModel, describe, load


@dataclass(frozen=True, slots=True)
class Device:
    """Where models are loaded, and how."""

    platform: Platform
    numbers: Sequence[int]  # of the devices
    settings: EngineSettings
    claim_seconds: float
    shelf: ProgramShelf = field(default_factory=ProgramShelf)

    @property
    def prefix_bytes(self) -> int:
        """What a model may keep of queries. By default it is not all that the weights leave free: others need it."""
        return self.settings.prefix_cache_bytes or HOST_BUDGET

    def budget(self, wanted: int | None) -> int:
        """Return the bytes that all models may take together. wanted: by the settings; None if they leave it open."""
        if wanted is not None:
            return wanted
        memory = self.platform.memory
        if memory is not None:
            return memory - PROGRAM_BYTES
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, eq=False)
class CatalogueModel:
    """A version of a model of the catalogue, as a :class:`workers.engine_loop.rota.Wanted`."""

    listed: ListedModel
    environment: ScoringSettings
    device: Device

    @property
    def card(self) -> ModelCard:
        """What the catalogue says of it."""
        return self.listed.card

    @cached_property
    def described(self) -> Described:
        """What its files say. Raises CheckpointError, SettingError."""
        scoring = settings_of_model(self.environment, self.listed.name, self.listed.settings)
        found = describe(scoring, self.listed.version)
        if differences := self.listed.card.differences(found.card):
            raise CheckpointError(
                f"its files are not those that were added ({'; '.join(differences)}): add it to the catalogue again"
            )
        return found

    def expected_bytes(self) -> int:
        """Return about how much memory it takes. Raises CheckpointError, SettingError."""
        return self.described.stored_bytes + self.device.prefix_bytes

    def load(self, taken_bytes: int, check: Callable[[], None]) -> LoadedModel:
        """See Wanted. Raises KnownAnswerError, too."""
        device = self.device
        platform = device.platform
        if platform.memory is not None:
            room = self.expected_bytes() + PROGRAM_BYTES
            platform = replace(platform, memory=min(platform.memory - taken_bytes, room))
        settings = device.settings.model_copy(update={"prefix_cache_bytes": device.prefix_bytes})
        try:
            return load(self.described, settings, platform, device.claim_seconds, device.numbers, device.shelf, check)
        except Exception as error:
            if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise CheckpointError(f"there is too little memory: {in_one_line(error)}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Supply:
    """The models of one worker."""

    names: Sequence[str]
    database: Database
    environment: ScoringSettings
    device: Device
    known: dict[int, CatalogueModel]  # by version, so that the files of each are read once

    def read(self) -> list[CatalogueModel]:
        """Return the versions that requests may name, and those before them for which accepted work waits.

        Raises StorageUnavailable.
        """
        versions = [one for one in list_models(self.database, retired=True) if one.name in self.names]
        return [
            self.known.setdefault(one.version, CatalogueModel(one, self.environment, self.device))
            for one in versions
            if one.retired_at is None or has_waiting(self.database, one.card)
        ]
