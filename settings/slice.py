"""What all slices share: the environment prefix, how lists are written, and how a wrong value is reported."""

from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from settings.errors.mistakes import PREFIX, SettingError, explain


def split_at_commas(entries: object) -> object:
    """Split a string into its entries, without blank ones. Other values are returned as they are, to be validated."""
    return [entry.strip() for entry in entries.split(",") if entry.strip()] if isinstance(entries, str) else entries


class SettingsSlice(BaseSettings):
    """A group of settings. Field ``x`` is read from the variable ``SCORELINE_X``.

    Making one raises SettingError, whose message names all variables of the group that have wrong values.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _name_variables(cls, values: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return make(values)
        except ValidationError as error:
            raise SettingError(explain(error, cls.model_json_schema()["properties"])) from None
