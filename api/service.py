"""What the routes work with: the parts of one API process, made once when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.callers.admission import Admission
from api.callers.authentication import Authenticator
from api.callers.compatibility import Handshake
from api.callers.rate_limiting import RateLimits
from api.metrics import Metrics
from api.ringing import Ringer
from api.threads import Threads
from api.waiting import Waiters
from checkpoints.card import ModelCard
from jobs.store.database import Database
from scoring.error_codes import ErrorCode, RequestError
from scoring.tokenization import TextTokenizer
from settings.api import ApiSettings
from settings.scoring import ScoringSettings
from webhooks.addresses import AddressRules


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """One API process: its settings, the store, the served model and who else serves it, who is calling and how often,
    what may be accepted, what is counted, and how it waits and rings.

    webhook_rules: where webhooks may go; secret_overlap_seconds: for how long the secret before signs them, too.
    """

    api: ApiSettings
    scoring: ScoringSettings
    database: Database
    tokenizer: TextTokenizer
    card: ModelCard
    handshake: Handshake
    authenticator: Authenticator
    rates: RateLimits
    admission: Admission
    metrics: Metrics
    threads: Threads
    waiters: Waiters
    ringer: Ringer
    webhook_rules: AddressRules
    secret_overlap_seconds: float

    def check_model(self, name: object) -> None:
        """Raise RequestError unless ``name`` (None: the default) is the model served here."""
        if name is None:
            return
        if not isinstance(name, str):
            raise RequestError(ErrorCode.INVALID_REQUEST, "model must be a string", param="model")
        if name != self.card.name:
            raise RequestError(
                ErrorCode.MODEL_NOT_FOUND, f"there is no model {name[:200]!r}; see /v1/models", param="model"
            )


def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service_of)]
"""A route's parameter of this type is the process's service."""
