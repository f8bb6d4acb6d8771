"""The settings of one model among several: those of the environment, with what the catalogue says of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from settings.errors.mistakes import SettingError
from settings.scoring import ScoringSettings

OWN = (
    "model",
    "model_revision",
    "adapters",
    "adapter_folder",
    "template",
    "context_length",
    "multi_item_scoring_delimiter",
)
"""What describes one model, and so is never taken from the environment for another one."""

SETTABLE = tuple(name for name in ScoringSettings.model_fields if name != "model_name")
"""What the catalogue may say of a model: all fields of ScoringSettings but the name, which is the entry's own."""


def settings_of_model(environment: ScoringSettings, name: str, given: Mapping[str, Any]) -> ScoringSettings:
    """Return the settings of a model of the catalogue.

    given: fields by their names, without SCORELINE_ and in small letters. Raises SettingError.
    """
    unknown = sorted(set(given) - set(SETTABLE))
    if unknown:
        raise SettingError(f"{name}: {', '.join(unknown)} can't be set for a model; {', '.join(SETTABLE)} can")
    if not given.get("model"):
        raise SettingError(f"{name}: model is missing: the folder of a checkpoint, or the id of a model on the hub")
    inherited = {field: getattr(environment, field) for field in SETTABLE if field not in OWN}
    return ScoringSettings(**{**inherited, **dict.fromkeys(OWN), **given, "model_name": name})
