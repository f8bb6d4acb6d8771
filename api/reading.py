"""What the code that reads a body must know. It is plain data, so that another process can read bodies as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from api.models.models import Models
from checkpoints.adapter_folder import SEPARATOR, AdapterFolder
from checkpoints.card import ModelCard
from jobs.catalogue import DEFAULT_MODEL
from jobs.tenancy.tenants import Tenant
from judgement.folder import ArtefactFolder
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.quoting import quote
from scoring.request import ScoreRequest
from scoring.served_model import ServedModel
from scoring.templates.known import KnownTemplates
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted
from settings.api import ApiSettings
from settings.limits import LimitSettings
from settings.scoring import ScoringSettings
from webhooks.addresses import AddressRules


class TakesLongError(Exception):
    """What is to be read takes too long where it is to be read."""


class ManyPairsError(TakesLongError):
    """This is known before the work: there are too many pairs of an item and a token of a label."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReadingContext:
    """The settings and the model by which bodies are read. It holds no connection and no thread."""

    api: ApiSettings
    limits: LimitSettings
    scoring: ScoringSettings  # of the model
    model: ServedModel  # the default, until it is known which one a request names
    models: Models  # all that requests may name
    webhook_rules: AddressRules  # where webhooks may be sent
    signs_receipts: bool = False  # whether there is a key to sign them with
    stop_if_unwanted: Callable[[], None] = always_wanted  # called between short steps: what it raises ends the work
    most_pairs: int | None = None  # of an item and a token of a label behind it; None: as many as a request may have
    is_on_loop: bool = False  # whether bodies are read on the event loop

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.model.tokenizer

    @property
    def card(self) -> ModelCard:
        return self.model.card

    @property
    def templates(self) -> KnownTemplates:
        return self.model.templates

    def on_loop(self, most_pairs: int) -> ReadingContext:
        """Return what reads bodies on the event loop, which waits for no tokenizer's threads."""
        return replace(self, model=self.model.in_one_thread(), is_on_loop=True, most_pairs=most_pairs)

    def of_model(self, name: object, tenant: Tenant) -> ReadingContext:
        """Return what reads a body that names a model: with that model, if it is another one than the default.

        A name that no model has may be that of an adapter of the default, which :meth:`adapter_of` decides. Raises
        RequestError MODEL_NOT_FOUND if the tenant may not use the model, or MODEL_UNAVAILABLE; and NotLoadedError.
        """
        entry = self.models.catalogue.find(name) or self.models.catalogue.default
        if not tenant.may_use(entry.card.name):
            raise model_not_found(name if isinstance(name, str) else DEFAULT_MODEL)
        if entry.card == self.model.card:
            return self
        return replace(self, scoring=entry.scoring, model=self.models.of(entry, on_loop=self.is_on_loop))

    def adapter_of(self, name: object) -> str | None:
        """Return the adapter of a served model by the model's name; None for the model alone. Raises RequestError.

        None and :data:`DEFAULT_MODEL` stand for the model alone, too, and the name of an adapter for model and adapter.
        """
        if name is None:
            return None
        if not isinstance(name, str):
            raise invalid("model must be a string", "model")
        if name == DEFAULT_MODEL or self.models.catalogue.by_name.get(name) is not None:
            return None
        entry = self.models.catalogue.find(name)
        adapter = name if entry is None else name.partition(SEPARATOR)[2]
        if self.adapters is None or self.adapters.version(adapter) is None:
            raise model_not_found(name)
        return adapter

    def check_pairs(self, request: ScoreRequest) -> None:
        """Raise ManyPairsError for a request of few bytes that stands for more work than is to be done here."""
        if self.most_pairs is not None and request.pairs > self.most_pairs:
            raise ManyPairsError

    def for_one_of(self, requests: int) -> ReadingContext:
        """Return what reads each of so many requests that come together: each may have its share of the pairs."""
        return self if self.most_pairs is None else replace(self, most_pairs=self.most_pairs // requests)

    @property
    def adapters(self) -> AdapterFolder | None:
        """The adapters that requests may name."""
        folder = self.scoring.adapter_folder
        return None if folder is None else AdapterFolder(folder)

    @property
    def artefacts(self) -> ArtefactFolder | None:
        """The calibrations and thresholds that requests may name."""
        folder = self.scoring.calibrations
        return None if folder is None else ArtefactFolder(folder)


def model_not_found(name: str) -> RequestError:
    """Return the error for a model that is not served."""
    return RequestError(ErrorCode.MODEL_NOT_FOUND, f"there is no model {quote(name)}; see /v1/models", param="model")
