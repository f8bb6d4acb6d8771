"""Who is calling, and how often they may."""

from __future__ import annotations

from dataclasses import dataclass

from api.callers.authentication import Authenticator
from api.callers.rate_limiting import RateLimits


@dataclass(frozen=True, slots=True, eq=False)
class Callers:
    """What a process knows of its callers."""

    authenticator: Authenticator
    rate_limits: RateLimits
