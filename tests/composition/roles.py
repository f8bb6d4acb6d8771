"""Which settings each role of a deployment reads, whatever starts it."""

from __future__ import annotations

from collections.abc import Mapping

from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.delivery import DeliverySettings
from settings.engine import EngineSettings
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.scoring import ScoringSettings
from settings.slice import SettingsSlice
from settings.store import StoreSettings
from settings.telemetry import TelemetrySettings
from settings.webhooks import WebhookSettings
from settings.worker import WorkerSettings

Slices = set[type[SettingsSlice]]

READS: Mapping[str, Slices] = {
    "migrate": {StoreSettings},
    "api": {
        StoreSettings,
        ScoringSettings,
        BellSettings,
        ApiSettings,
        LimitSettings,
        WebhookSettings,
        KeySettings,
        TelemetrySettings,
    },
    "deliver": {StoreSettings, WebhookSettings, DeliverySettings},
    "worker": {StoreSettings, ScoringSettings, BellSettings, EngineSettings, WorkerSettings},
}
"""By the name of the role's command."""

NOT_DEPLOYED = {"SCORELINE_BELL_SOCKET"}
"""The setting for the local bell of `scoreline up`."""


def variables(slices: Slices) -> set[str]:
    """Return the names of the variables of some slices, those that a deployment never sets left out."""
    return {f"SCORELINE_{name.upper()}" for one in slices for name in one.model_fields} - NOT_DEPLOYED
