"""The bell: how processes tell each other that there is work, and that a job has ended."""

from pydantic import Field

from settings.slice import SettingsSlice


class BellSettings(SettingsSlice):
    """Redis in production, a local socket in embedded mode. Only one of the two is used."""

    redis_url: str = Field("redis://127.0.0.1:6379/0", description="the Redis that rings the bell")
    bell_socket: str | None = Field(
        None, description="path of a local socket; set by `scoreline up`, and then Redis is not used"
    )
    bell_prefix: str = Field("scoreline", description="prefix of every key, queue and channel in Redis")
