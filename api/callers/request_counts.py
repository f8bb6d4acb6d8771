"""Count the requests of tenants against their limits. The parent of several processes does so for all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of one limit after a request was counted."""

    name: str
    quota: int  # requests in a window
    window: int  # seconds
    passed: bool
    remaining: int  # requests
    reset: int  # seconds until further requests are possible


CountElsewhere = Callable[[str, int | None, int | None], Awaitable[list[LimitState]]]
"""Counts a request of a tenant, given the requests per second and per minute that it may send. Raises TimeoutError if
there is no answer."""


class OwnCounts:
    """Counts requests in the memory of this process."""

    def __init__(self) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def count(self, tenant: str, per_second: int | None, per_minute: int | None) -> list[LimitState]:
        """Count a request of a tenant that may send so many requests."""
        return count_with(self._limiter, limit_items(per_second, per_minute), tenant)


def limit_items(per_second: int | None, per_minute: int | None) -> dict[str, RateLimitItem]:
    """Return a tenant's limits by their names in the header fields."""
    items: dict[str, RateLimitItem] = {}
    if per_second is not None:
        items["second"] = RateLimitItemPerSecond(per_second)
    if per_minute is not None:
        items["minute"] = RateLimitItemPerMinute(per_minute)
    return items


def count_with(
    limiter: SlidingWindowCounterRateLimiter, items: Mapping[str, RateLimitItem], tenant: str, until: float = math.inf
) -> list[LimitState]:
    """Count a request. Raises TimeoutError after the time ``until``, on the monotonic clock."""

    def check_time() -> None:
        if time.monotonic() > until:
            raise TimeoutError("its answers take too long")

    states = []
    for name, item in items.items():
        check_time()
        passed = limiter.hit(item, tenant)
        check_time()
        reset_at, remaining = limiter.get_window_stats(item, tenant)
        seconds = max(1, math.ceil(reset_at - time.time()))
        states.append(LimitState(name, item.amount, item.get_expiry(), passed, remaining if passed else 0, seconds))
    return states
