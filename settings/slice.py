"""What all slices share: the environment prefix and refusal to guess."""

from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsSlice(BaseSettings):
    """A group of settings. Field ``x`` is read from the variable ``SCORELINE_X``."""

    model_config = SettingsConfigDict(env_prefix="SCORELINE_", frozen=True, extra="ignore")
