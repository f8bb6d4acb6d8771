"""Finds environment variables that look like settings but are not: a misspelt one would be ignored silently."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import structlog

from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.delivery import DeliverySettings
from settings.engine import EngineSettings
from settings.jobs import StoreSettings
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.scoring import ScoringSettings
from settings.slice import SettingsSlice
from settings.webhooks import WebhookSettings
from settings.worker import WorkerSettings

SLICES: tuple[type[SettingsSlice], ...] = (
    ScoringSettings,
    ApiSettings,
    LimitSettings,
    KeySettings,
    StoreSettings,
    BellSettings,
    EngineSettings,
    WorkerSettings,
    WebhookSettings,
    DeliverySettings,
)
PREFIX = "SCORELINE_"
CLIENT_VARIABLES = frozenset({"URL", "API_KEY"})  # read by the command line and the Python client, not by the server

log = structlog.stdlib.get_logger("settings")


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that nothing reads, each with the known name that is most like it, or None."""
    known = CLIENT_VARIABLES | {name.upper() for one in SLICES for name in one.model_fields}
    unknown: dict[str, str | None] = {}
    for variable in sorted(environment):
        # pydantic-settings ignores case.
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper().startswith(PREFIX) and name not in known:
            similar = difflib.get_close_matches(name, known, 1)
            unknown[variable] = PREFIX + similar[0] if similar else None
    return unknown


def warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    """Log the variables that nothing reads, in one line. To be called by entry points only."""
    if unknown := unknown_variables(environment):
        named = [f"{name} (is it {similar}?)" if similar else name for name, similar in unknown.items()]
        log.warning("variables that no setting has the name of are ignored", variables=named)
