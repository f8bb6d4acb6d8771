"""What all slices share: the environment prefix, how lists are written, and how a wrong value is reported."""

import os
from pathlib import Path
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from settings.errors.mistakes import PREFIX, SettingError, explain, variable_of

SECRETS = frozenset({"database_url", "redis_url", "bootstrap_key", "receipt_keys"})
"""Settings that may hold a secret. ``SCORELINE_X_FILE`` names a file that holds the value of such a setting instead."""


def split_at_commas(entries: object) -> object:
    """Split a string into its entries, without blank ones. Other values are returned as they are, to be validated."""
    return [entry.strip() for entry in entries.split(",") if entry.strip()] if isinstance(entries, str) else entries


class _SecretFiles(PydanticBaseSettingsSource):
    """Reads secrets from the files that ``SCORELINE_X_FILE`` names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the value of a setting, None if no file is named."""
        if field_name not in SECRETS:
            return None, field_name, False
        variable = variable_of(field_name)
        environment = {name.upper(): value for name, value in os.environ.items()}  # pydantic-settings ignores case
        path = environment.get(f"{variable}_FILE")
        if not path:
            return None, field_name, False
        if environment.get(variable):
            raise SettingError(f"{variable} and {variable}_FILE are both set: unset one of them")
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n"), field_name, False
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise SettingError(f"{variable}_FILE names {path!r}, which can't be read: {why}") from None

    def __call__(self) -> dict[str, Any]:
        """Return all values that files hold."""
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}


class SettingsSlice(BaseSettings):
    """A group of settings. Field ``x`` is read from the variable ``SCORELINE_X``.

    Making one raises SettingError, whose message names all variables of the group that have wrong values.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where values come from, the first source first."""
        return (init_settings, env_settings, _SecretFiles(settings_cls))

    @model_validator(mode="wrap")
    @classmethod
    def _name_variables(cls, values: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        # Files of variables and compositions pass variables on that nobody has set. A secret that is lost is no such.
        unset = [name for name, value in values.items() if value == "" and _may_be_unset(cls, name)]
        try:
            return make({name: value for name, value in values.items() if name not in unset})
        except ValidationError as error:
            raise SettingError(explain(error, cls.model_json_schema()["properties"])) from None


def _may_be_unset(settings: type[BaseSettings], name: str) -> bool:
    field = settings.model_fields.get(name)
    return field is not None and field.default is None and name not in SECRETS
