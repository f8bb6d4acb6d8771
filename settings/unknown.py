"""Finds environment variables that no slice takes: misspelt ones, which would be ignored silently, and wrong values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import structlog

from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.delivery import DeliverySettings
from settings.engine import EngineSettings
from settings.errors.mistakes import PREFIX, SettingError
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.logs import LogSettings
from settings.scoring import ScoringSettings
from settings.slice import SECRETS, SettingsSlice
from settings.store import StoreSettings
from settings.telemetry import TelemetrySettings
from settings.webhooks import WebhookSettings
from settings.worker import WorkerSettings

SLICES: tuple[type[SettingsSlice], ...] = (
    ScoringSettings,
    ApiSettings,
    LimitSettings,
    KeySettings,
    TelemetrySettings,
    LogSettings,
    StoreSettings,
    BellSettings,
    EngineSettings,
    WorkerSettings,
    WebhookSettings,
    DeliverySettings,
)
CLIENT_VARIABLES = frozenset({"URL", "API_KEY"})  # read by the command line and the Python client, not by the server

log = structlog.stdlib.get_logger("settings")


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that nothing reads, each with the known name that is most like it, or None."""
    known = CLIENT_VARIABLES | {name.upper() for one in SLICES for name in one.model_fields}
    known |= {f"{name.upper()}_FILE" for name in SECRETS}
    unknown: dict[str, str | None] = {}
    for variable in sorted(environment):
        # pydantic-settings ignores case.
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper().startswith(PREFIX) and name not in known:
            similar = difflib.get_close_matches(name, known, 1)
            unknown[variable] = PREFIX + similar[0] if similar else None
    return unknown


def name_unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable that nothing reads."""
    return [
        f"{name} is no setting and is ignored" + (f"; is it {similar}?" if similar else "")
        for name, similar in unknown_variables(environment).items()
    ]


def wrong_settings() -> list[str]:
    """Return what is wrong with the settings of this process's environment: one text for each slice."""
    wrong = []
    for one in SLICES:
        try:
            one()
        except SettingError as error:
            wrong.append(str(error))
    return wrong


def warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    """Log the variables that nothing reads, in one line. To be called by entry points only."""
    if unknown := unknown_variables(environment):
        named = [f"{name} (is it {similar}?)" if similar else name for name, similar in unknown.items()]
        log.warning("variables that no setting has the name of are ignored", variables=named)
