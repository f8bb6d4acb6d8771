"""The models whose tokenizers this process has in memory, and the models that there are."""

from __future__ import annotations

import time
from typing import NamedTuple

from api.models.catalogue import Catalogue, Entry, Key
from jobs.store.records import Submission
from scoring.error_codes import ErrorCode, RequestError
from scoring.quoting import quote
from scoring.served_model import ServedModel
from scoring.templates.known import KnownTemplates
from scoring.templates.wording import TemplateError

REFUSED_SECONDS = 5.0
"""For how long requests for a model that can't be loaded are refused before its loading is tried again."""

CHANGED_SECONDS = 1.0


class NotLoadedError(Exception):
    """A request names a model whose tokenizer is not in memory. It can be read once the model is loaded."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.entry = entry


class DroppedError(RequestError):
    """The models that a body names are dropped again and again before it is read with them."""

    def __init__(self) -> None:
        message = "models are loaded and dropped too fast for the memory that they have; please try again"
        super().__init__(ErrorCode.OVERLOADED, message, retry_after=CHANGED_SECONDS)


class _Refused(NamedTuple):
    until: float  # on the monotonic clock
    reason: str


class _Loaded:
    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.on_loop = model.in_one_thread()
        self.used_at = time.monotonic()


class Models:
    """What requests may name, and what is loaded of it. Safe to use from threads."""

    def __init__(self, catalogue: Catalogue, budget_bytes: int) -> None:
        """budget_bytes: what the tokenizers in memory may take."""
        self.catalogue = catalogue
        self._budget_bytes = budget_bytes
        self._staying: set[Key] = set()
        self._loaded: dict[Key, _Loaded] = {}
        self._refused: dict[Key, _Refused] = {}

    def of(self, entry: Entry, *, on_loop: bool) -> ServedModel:
        """Return a model. on_loop: with a tokenizer for the event loop.

        Raises NotLoadedError, and RequestError MODEL_UNAVAILABLE if it could not be loaded a moment ago.
        """
        loaded = self._loaded.get(entry.key)
        if loaded is not None:
            loaded.used_at = time.monotonic()
            return loaded.on_loop if on_loop else loaded.model
        refused = self._refused.get(entry.key)
        if refused is not None and time.monotonic() < refused.until:
            message = f"the model {quote(entry.card.name)} can't be loaded: {refused.reason}"
            raise RequestError(ErrorCode.MODEL_UNAVAILABLE, message, retry_after=REFUSED_SECONDS)
        raise NotLoadedError(entry)

    def templates_of(self, entry: Entry) -> KnownTemplates:
        """Return the templates of a model, whether or not it is in memory. Blocks on files."""
        loaded = self._loaded.get(entry.key)
        if loaded is not None:
            return loaded.model.templates
        try:
            return KnownTemplates.read(entry.scoring.template, entry.card.name, entry.card.classes)
        except TemplateError:  # its requests are told
            return KnownTemplates({}, None)

    def put(self, entry: Entry, model: ServedModel, *, stays: bool = False) -> None:
        """Have a model in memory, in place of those that were used least lately if there is no room for it.

        stays: for good, as requests are read with it that name no model.
        """
        if stays:
            self._staying.add(entry.key)
        self._refused.pop(entry.key, None)
        free = self._budget_bytes - model.tokenizer.nbytes
        for key, loaded in sorted(self._loaded.items(), key=lambda item: item[1].used_at, reverse=True):
            free -= loaded.model.tokenizer.nbytes
            if free < 0 and key not in self._staying:
                self._loaded.pop(key, None)
        self._loaded[entry.key] = _Loaded(model)

    def refuse(self, entry: Entry, reason: str) -> None:
        """Refuse requests for a model that can't be loaded, for a while."""
        self._refused[entry.key] = _Refused(time.monotonic() + REFUSED_SECONDS, reason)

    def follow(self, catalogue: Catalogue) -> None:
        """Take a new catalogue, and drop from memory what it has no more."""
        self.catalogue = catalogue
        there = {entry.key for entry in catalogue.entries} | self._staying
        for key in set(self._loaded) - there:
            self._loaded.pop(key, None)

    def entry_of(self, submission: Submission) -> Entry:
        """Return the model of a submission.

        Raises RequestError MODEL_UNAVAILABLE if it has got another version since the submission was read.
        """
        entry = self.catalogue.by_name.get(submission.model)
        if entry is None or entry.card.work_key != submission.work_key:
            message = f"the model {quote(submission.model)} has just been changed; please try again"
            raise RequestError(ErrorCode.MODEL_UNAVAILABLE, message, retry_after=CHANGED_SECONDS)
        return entry
