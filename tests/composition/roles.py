"""Which settings each role of a deployment reads, whatever starts it."""

from __future__ import annotations

from collections.abc import Mapping

from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.delivery import DeliverySettings
from settings.engine import EngineSettings
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.logs import LogSettings
from settings.scoring import ScoringSettings
from settings.slice import SettingsSlice
from settings.store import StoreSettings
from settings.telemetry import TelemetrySettings
from settings.webhooks import WebhookSettings
from settings.worker import WorkerSettings

Slices = set[type[SettingsSlice]]

READS: Mapping[str, Slices] = {
    "migrate": {StoreSettings, LogSettings},
    "api": {
        StoreSettings,
        ScoringSettings,
        BellSettings,
        ApiSettings,
        LimitSettings,
        WebhookSettings,
        KeySettings,
        TelemetrySettings,
        LogSettings,
    },
    "deliver": {StoreSettings, WebhookSettings, DeliverySettings, LogSettings},
    "worker": {StoreSettings, ScoringSettings, BellSettings, EngineSettings, WorkerSettings, LogSettings},
}
"""By the name of the role's command."""

NOT_DEPLOYED = {"SCORELINE_BELL_SOCKET"}
"""The setting for the local bell of `scoreline up`."""


def variables(slices: Slices) -> set[str]:
    """Return the names of the variables of some slices, those that a deployment never sets left out."""
    return {f"SCORELINE_{name.upper()}" for one in slices for name in one.model_fields} - NOT_DEPLOYED
