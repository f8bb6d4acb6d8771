"""``Cache-Control: no-cache`` (RFC 9111, section 5.2.1.4): a client wants its job computed, whatever is kept."""

from __future__ import annotations

from fastapi import Request

MAX_DIRECTIVES = 16
"""How many directives of the header are looked at."""


def wants_computed(request: Request) -> bool:
    """Return whether a request says ``no-cache``."""
    directives = ",".join(request.headers.getlist("cache-control")).split(",", MAX_DIRECTIVES)[:MAX_DIRECTIVES]
    return "no-cache" in (directive.strip().lower() for directive in directives)
