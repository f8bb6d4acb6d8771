"""The bell: how processes tell each other that there is work, and that a job has ended."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from settings.slice import SettingsSlice

_EXPECTED = "it must be redis://HOST:PORT/NUMBER, or rediss:// for TLS"


def _redis_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        number = parts.path.strip("/")
        is_valid = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or of an address in brackets
        raise ValueError(_EXPECTED) from None
    if not is_valid or not (number.isdigit() or not number):
        raise ValueError(_EXPECTED)
    return text


class BellSettings(SettingsSlice):
    """Redis in production, a local socket in embedded mode. Only one of the two is used."""

    redis_url: Annotated[str, AfterValidator(_redis_url)] = Field(
        "redis://127.0.0.1:6379/0", description="the Redis that rings the bell"
    )
    bell_socket: str | None = Field(
        None, description="path of a local socket; set by `scoreline up`, and then Redis is not used"
    )
    bell_prefix: str = Field("scoreline", description="prefix of every key, queue and channel in Redis")
