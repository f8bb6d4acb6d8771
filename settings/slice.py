"""What all slices share: the environment prefix, and how lists are written."""

from pydantic_settings import BaseSettings, SettingsConfigDict


def split_at_commas(entries: object) -> object:
    """Split a string into its entries, without blank ones. Other values are returned as they are, to be validated."""
    return [entry.strip() for entry in entries.split(",") if entry.strip()] if isinstance(entries, str) else entries


class SettingsSlice(BaseSettings):
    """A group of settings. Field ``x`` is read from the variable ``SCORELINE_X``."""

    model_config = SettingsConfigDict(env_prefix="SCORELINE_", frozen=True, extra="ignore")
