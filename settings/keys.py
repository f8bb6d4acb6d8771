"""Who may call the API."""

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveFloat, SecretStr
from pydantic_settings import SettingsConfigDict

from settings.slice import SettingsSlice

LEAST_LENGTH = 32


def _long_enough(key: SecretStr) -> SecretStr:
    value = key.get_secret_value()
    if len(value) < LEAST_LENGTH or not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError(f"it must have {LEAST_LENGTH} characters or more, all of them printable ASCII, no spaces")
    return key


class KeySettings(SettingsSlice):
    """API keys. What is wrong with a value is said without the value."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)

    bootstrap_key: Annotated[SecretStr, AfterValidator(_long_enough)] | None = Field(
        None,
        description="an API key of the tenant `default` with all scopes, 32 characters or more; kept in no database",
    )
    key_cache_seconds: PositiveFloat = Field(
        5.0, description="so long a key that was revoked, or a limit that was changed, may still hold"
    )
