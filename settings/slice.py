"""What all slices share: the environment prefix, refusal to guess, and how lists are written."""

from pydantic_settings import BaseSettings, SettingsConfigDict


def split_at_commas(entries: object) -> object:
    """A list that is written as one string; what is none is left to be checked as it is. Blank entries are left out."""
    return [entry.strip() for entry in entries.split(",") if entry.strip()] if isinstance(entries, str) else entries


class SettingsSlice(BaseSettings):
    """A group of settings. Field ``x`` is read from the variable ``SCORELINE_X``."""

    model_config = SettingsConfigDict(env_prefix="SCORELINE_", frozen=True, extra="ignore")
