"""Which models of the catalogue a worker serves: those that it was told to, in all versions that have work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import jax.numpy as jnp
import structlog

from checkpoints.card import ModelCard
from checkpoints.files import CheckpointError
from jobs.catalogue import ListedModel, list_models
from jobs.queue.read import waiting_work_keys
from jobs.store.database import Database
from model.checks.known_answer import KnownAnswerError
from model.chips.shares import Shares
from model.executable_table import ProgramShelf
from model.platforms import Platform
from model.prefixes.pool import HOST_BUDGET, PROGRAM_BYTES, bytes_of_block
from settings.catalogue import settings_of_model
from settings.engine import EngineSettings
from settings.errors.endings import in_one_line
from settings.scoring import ScoringSettings
from workers.engine_loop.models.loading import Described, LoadedModel, describe, load

WEIGHTS_MARGIN = 1.02
"""What is read of a checkpoint may be a little more than the parameters that its configuration tells."""

MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says what a container may use, in its second and first version of control groups."""

log = structlog.stdlib.get_logger("worker")


def memory_of_process() -> int:
    """Return the bytes that the machine has, or those that a container leaves this process."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # It is not there, or it says "max".
            found = min(found, int(path.read_text()))
    return found


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
        return self.largest(None) if self.platform.memory is not None else self.largest(None) // 2

    def largest(self, wanted: int | None) -> int:
        """Return the bytes that one model may take, which is then alone in memory. wanted: as in :meth:`budget`."""
        if wanted is not None:
            return wanted
        memory = self.platform.memory
        return memory_of_process() if memory is None else memory - PROGRAM_BYTES


@dataclass(frozen=True, eq=False)
class CatalogueModel:
    """A version of a model of the catalogue, as a :class:`workers.engine_loop.models.wanted.Wanted`."""

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
        """Return about how much memory it takes. Raises CheckpointError, SettingError.

        On a device, the pool of prefixes has to hold a sequence of full length.
        """
        described, platform, settings = self.described, self.device.platform, self.device.settings
        chips, dtype = platform.chips, jnp.dtype(platform.serving_dtype(settings.dtype))
        config = described.config if chips is None else Shares.of(described.config, chips.count).own
        weights = dtype.itemsize * described.config.parameters // (1 if chips is None else chips.count)
        if platform.memory is None:
            return weights + self.device.prefix_bytes
        block_tokens = platform.block_tokens(platform.step_tokens(settings.step_tokens))
        head_dim = platform.pool_head_dim(dtype, config.head_dim, plain=config.has_plain_attention)
        of_block = bytes_of_block(config, dtype.itemsize, block_tokens, head_dim)
        longest = -(-self.card.context_length // block_tokens) * of_block
        return int(WEIGHTS_MARGIN * weights) + max(self.device.prefix_bytes, longest)

    def load(self, taken_bytes: int, check: Callable[[], None]) -> LoadedModel:
        """See Wanted. A model that is computed wrongly is refused, like one that does not fit."""
        device = self.device
        platform = device.platform
        if platform.memory is not None:
            room = self.expected_bytes() + PROGRAM_BYTES
            platform = replace(platform, memory=min(platform.memory - taken_bytes, room))
        settings = device.settings.model_copy(update={"prefix_cache_bytes": device.prefix_bytes})
        try:
            return load(self.described, settings, platform, device.claim_seconds, device.numbers, device.shelf, check)
        except KnownAnswerError as error:
            raise CheckpointError(in_one_line(error)) from error
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
    unknown: set[str] = field(default_factory=set)  # names that no model has, as far as the log says

    def read(self) -> list[CatalogueModel]:
        """Return the versions that requests may name, and those before them for which accepted work waits.

        Raises StorageUnavailable.
        """
        versions = [one for one in list_models(self.database) if one.name in self.names]
        for name in set(self.names) - {one.name for one in versions} - self.unknown:
            self.unknown.add(name)
            log.warning("the catalogue lists no model of this name; an alias is none", model=name)
        waiting = {(name, key) for name in self.names for key in waiting_work_keys(self.database, name)}
        if not waiting <= {(one.name, one.card.work_key) for one in versions}:
            # There may be hundreds of versions that are retired, so they are read only if one of them may have work.
            every = list_models(self.database, retired=True)
            versions = [
                one
                for one in every
                if one.name in self.names and (one.retired_at is None or (one.name, one.card.work_key) in waiting)
            ]
        return [
            self.known.setdefault(one.version, CatalogueModel(one, self.environment, self.device)) for one in versions
        ]
