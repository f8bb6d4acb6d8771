"""Variables that look like settings and are none: a name that is spelt wrong would leave its setting at the default."""

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
from settings.scoring import ScoringSettings
from settings.slice import SettingsSlice
from settings.webhooks import WebhookSettings

SLICES: tuple[type[SettingsSlice], ...] = (
    ScoringSettings,
    ApiSettings,
    KeySettings,
    StoreSettings,
    BellSettings,
    EngineSettings,
    WebhookSettings,
    DeliverySettings,
)
PREFIX = "SCORELINE_"
OTHERS = frozenset({"URL", "API_KEY"})
"""Names that are no settings of a server: where the command and the client find one, and what they call it with."""

log = structlog.stdlib.get_logger("settings")


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """The variables that nothing reads, each with the nearest name that something does, if one is near."""
    known = OTHERS | {name.upper() for one in SLICES for name in one.model_fields}
    unknown: dict[str, str | None] = {}
    for variable in sorted(environment):
        # Upper or lower case is one to pydantic.
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper().startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            unknown[variable] = PREFIX + near[0] if near else None
    return unknown


def warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    """Say in one line of the log what of the environment is not read. For entry points."""
    if unknown := unknown_variables(environment):
        named = [f"{name} (is it {near}?)" if near else name for name, near in unknown.items()]
        log.warning("variables that no setting has the name of are ignored", variables=named)
