"""What keeps a process from using Redis, in one line, with what to do about it."""

from __future__ import annotations

import re

from settings.errors.endings import in_one_line
from settings.errors.mistakes import setting_error

_SILENT = "check the network, and whether Redis listens there"
_SILENT_TLS = (
    "check the network, and whether the Redis there speaks TLS; for one that does not, which waits in silence, write "
    "redis:// instead of rediss://"
)
_ADVICE = {
    "WRONG_VERSION_NUMBER|RECORD_LAYER|UNEXPECTED_EOF": "this Redis does not speak TLS: write redis:// instead of "
    "rediss://, or correct the port",
    "certificate": "let the server have a certificate that this machine trusts, or name the file of its authority with "
    "?ssl_ca_certs=FILE",
    "Connection refused": "start Redis there, or correct the host and the port",
    "not known|name resolution|No address": "correct the name of the host",
    "auth|password|WRONGPASS": "correct the user and the password, as in redis://USER:PASSWORD@HOST:PORT/NUMBER",
    "DB index": "correct the number of the database at the end",
    "read only replica": "name the primary, or an address that leads to it after a fail-over",
    "timeout|timed out|does not answer|unreachable|No route": _SILENT,
    "closed|reset|protocol": "check that Redis listens there, and write rediss:// if it speaks TLS",
}
"""What to do, by a pattern of the message. The first one that is found counts."""


def explain_outage(error: Exception, redis_url: str) -> str:
    """Return why the Redis at a URL can't be used, without the URL's password, and what to do about it."""
    said = in_one_line(error).rstrip(".")
    advice = next((do for found, do in _ADVICE.items() if re.search(found, said, re.IGNORECASE)), "see what Redis logs")
    if advice == _SILENT and redis_url.startswith("rediss"):
        advice = _SILENT_TLS
    return str(setting_error("redis_url", redis_url, f"{said}; {advice}"))
