"""Load models when requests name them, as many as there is memory for, and follow the catalogue."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import structlog
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from api.models.catalogue import Catalogue, Entry, Found, Key
from api.models.models import DroppedError, Models, NotLoadedError
from checkpoints.files import CheckpointError
from checkpoints.source import Contents, find_checkpoint, name_of_adapter
from jobs.store.database import StorageUnavailable
from scoring.served_model import ServedModel
from scoring.templates.wording import TemplateError
from settings.errors.endings import in_one_line
from settings.scoring import ScoringSettings

LOADED_AT_MOST = 3
"""How often each model is loaded for one body. It may be dropped again before the body is read."""

FOLLOWING_SECONDS = 1.0
"""How often a process asks the database which models there are."""

T = TypeVar("T")

log = structlog.stdlib.get_logger("api.models")


def open_models(scoring: ScoringSettings, read: Callable[[], Found], budget_bytes: int) -> tuple[Entry | None, Models]:
    """Return the model that the environment describes, if it is served, and all models, with the default in memory.

    The environment's counts if it is named there, or as long as the catalogue is empty. read: finds the catalogue;
    without a database, the environment's model is served. Raises CheckpointError, TemplateError.
    """
    own = load_own(scoring) if "model" in scoring.model_fields_set else None
    try:
        found = read()
    except StorageUnavailable:
        found = Found()
    if own is None and not found.listed:
        own = load_own(scoring)
    environment = None if own is None else Entry(own.card, scoring)
    catalogue = Catalogue.of(environment, scoring, found)
    default = catalogue.default
    models = Models(catalogue, budget_bytes)
    if own is not None and environment is not None:
        models.put(environment, own, stays=True)
    if default is not environment:
        models.put(default, load_listed(default), stays=True)
    return environment, models


def load_own(scoring: ScoringSettings) -> ServedModel:
    """Return the model that the environment describes. Raises as :func:`load` does."""
    return load(scoring, scoring.model_name or name_of_adapter(scoring.adapters), None)


def load(scoring: ScoringSettings, name: str | None, version: int | None) -> ServedModel:
    """Return a model, loaded from its checkpoint's files. It takes seconds. Raises CheckpointError, TemplateError."""
    return ServedModel.load(
        find_checkpoint(scoring.model, scoring.model_revision, Contents.DESCRIPTION),
        name=name,
        delimiter=scoring.multi_item_scoring_delimiter,
        context_length=scoring.context_length,
        template=scoring.template,
        version=version,
    )


def load_listed(entry: Entry) -> ServedModel:
    """Return a model of the catalogue. Raises CheckpointError, also if its files have changed; TemplateError."""
    if entry.fault is not None:
        raise CheckpointError(entry.fault)
    loaded = load(entry.scoring, entry.card.name, entry.card.version)
    if differences := entry.card.differences(loaded.card):
        raise CheckpointError(
            f"its files are not those that were added ({'; '.join(differences)}): add it to the catalogue again"
        )
    return loaded


def load_into(models: Models, entry: Entry) -> None:
    """Have a model in memory, or have requests for it refused for a while."""
    try:
        models.put(entry, load_listed(entry))
    except (CheckpointError, TemplateError) as error:
        log.error("a model can't be loaded", model=entry.card.name, reason=in_one_line(error))
        models.refuse(entry, in_one_line(error))


async def read_when_loaded(read: Callable[[], Awaitable[T]], load: Callable[[Entry], Awaitable[None]]) -> T:
    """Return what ``read`` returns, once the models are in memory that it needs. load: loads one of them.

    Raises DroppedError if a model is dropped again and again before it is read with.
    """
    times = Counter[Key]()
    while True:
        try:
            return await read()
        except NotLoadedError as error:
            entry = error.entry
        times[entry.key] += 1
        if times[entry.key] > LOADED_AT_MOST:
            raise DroppedError
        await load(entry)


class ModelLoader:
    """Loads models for one API process, one at a time, and follows the catalogue. For use within one event loop."""

    def __init__(
        self,
        models: Models,
        environment: Entry | None,
        scoring: ScoringSettings,
        read: Callable[[], Found],
    ) -> None:
        """environment: the model that is served without a catalogue; read: finds the catalogue, in a thread."""
        self._models = models
        self._environment = environment
        self._scoring = scoring
        self._read = read
        self._in_turn = CapacityLimiter(1)
        self._loading: dict[tuple[str, int | None], asyncio.Future[None]] = {}

    async def reading(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return what ``read`` returns, once the models are in memory that it needs. Raises DroppedError."""
        return await read_when_loaded(read, self._load)

    async def loaded(self, entry: Entry) -> ServedModel:
        """Return a model, once it is in memory. Raises DroppedError, and RequestError MODEL_UNAVAILABLE."""

        async def find() -> ServedModel:
            return self._models.of(entry, on_loop=False)

        return await self.reading(find)

    async def _load(self, entry: Entry) -> None:
        """Return when a model is in memory, or is refused. All requests for a model share one loading."""
        loading = self._loading.get(entry.key)
        if loading is None:
            # Not a thread of those that read texts: others need them meanwhile.
            work = run_sync(load_into, self._models, entry, limiter=self._in_turn)
            loading = self._loading[entry.key] = asyncio.ensure_future(work)
            loading.add_done_callback(lambda _: self._loading.pop(entry.key, None))
        await asyncio.shield(loading)

    async def follow(self) -> None:
        """Follow the catalogue until cancelled."""
        before: Found | None = None
        while True:
            with suppress(StorageUnavailable):
                found = await run_sync(self._read)
                if found != before:
                    self._take(found)
                before = found
            await asyncio.sleep(FOLLOWING_SECONDS * random.uniform(0.75, 1.25))

    def _take(self, found: Found) -> None:
        if self._environment is None and not found.listed:
            log.warning("the catalogue has no model any more; the last one is served until there is another")
            return
        # The model that the environment does not name serves as long as there is no other.
        is_named = "model" in self._scoring.model_fields_set
        environment = self._environment if is_named or not found.listed else None
        self._models.follow(Catalogue.of(environment, self._scoring, found))
