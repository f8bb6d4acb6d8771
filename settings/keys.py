"""API keys, and the keys that sign receipts."""

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveFloat, SecretStr
from pydantic_settings import SettingsConfigDict

from settings.slice import SettingsSlice

MIN_KEY_LENGTH = 32


def _long_enough(key: SecretStr) -> SecretStr:
    value = key.get_secret_value()
    if len(value) < MIN_KEY_LENGTH or not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError(f"it must have {MIN_KEY_LENGTH} characters or more, all of them printable ASCII, no spaces")
    return key


def _has_private_key(pem: SecretStr) -> SecretStr:
    if "-----BEGIN PRIVATE KEY-----" not in pem.get_secret_value():
        raise ValueError("it must hold a private key in PEM: make one with  openssl genpkey -algorithm ed25519")
    return pem


class KeySettings(SettingsSlice):
    """Keys. Messages about invalid values do not contain the values."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)

    bootstrap_key: Annotated[SecretStr, AfterValidator(_long_enough)] | None = Field(
        None,
        description="an API key of the tenant `default` with all scopes, 32 characters or more; not in the database",
    )
    receipt_keys: Annotated[SecretStr, AfterValidator(_has_private_key)] | None = Field(
        None,
        description="Ed25519 keys in PEM, private and public, one behind the other: the first private one signs "
        "receipts (docs/judgement.md#receipts), and the public part of all is published; unset: there are no receipts",
    )
    key_cache_seconds: PositiveFloat = Field(
        5.0, description="a revoked key, or a limit that was changed, may stay in effect for this long"
    )
