"""Rate limits: so many requests of a tenant in a second and in a minute, over all of its keys.

Counted in Redis, so that all API processes count together. Without Redis, or while it is away, each process counts for
itself: a limit is then one of each process, and nobody waits for Redis. Tenants without limits cost nothing.

What is left is told in the fields of the IETF's draft-ietf-httpapi-ratelimit-headers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import structlog
from anyio.to_thread import run_sync
from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs.tenancy.tenants import Tenant
from scoring.error_codes import ErrorCode, RequestError

REDIS_SECONDS = 0.25
"""How long Redis may take to be connected to, and to answer, before it counts as away. A request asks several times:
once so much has passed in all, it asks no further.
"""
AWAY_SECONDS = 5.0
"""For so long it is not asked again then."""
THREADS = 4

log = structlog.stdlib.get_logger("api.rate_limiting")


@dataclass(frozen=True, slots=True)
class _Taken:
    """One limit after a request. reset: seconds until more is there."""

    name: str
    quota: int
    window: int
    passed: bool
    remaining: int
    reset: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """headers: of the answer; retry_after: seconds, of a request that is one too many."""

    headers: Mapping[str, str] = field(default_factory=dict)
    retry_after: float | None = None

    def check(self) -> None:
        """Raise RequestError RATE_LIMIT_EXCEEDED if it is one too many."""
        if self.retry_after is not None:
            message = "too many requests of this tenant; try again later"
            raise RequestError(ErrorCode.RATE_LIMIT_EXCEEDED, message, retry_after=self.retry_after)


class RateLimits:
    """Counts requests. To be made in the event loop that uses it. redis_url: None where there is no Redis."""

    def __init__(self, redis_url: str | None, prefix: str) -> None:
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._shared = None
        if redis_url is not None:
            storage = RedisStorage(
                redis_url,
                key_prefix=f"{prefix}:rates",
                wrap_exceptions=True,
                socket_timeout=REDIS_SECONDS,
                socket_connect_timeout=REDIS_SECONDS,
                retry=Retry(NoBackoff(), 0),  # type: ignore[arg-type]
            )
            self._shared = SlidingWindowCounterRateLimiter(storage)
        self._away_until = -math.inf
        self._threads = anyio.CapacityLimiter(THREADS)

    async def take(self, tenant: Tenant) -> Verdict:
        """Count a request of a tenant."""
        items = _limits_of(tenant)
        if not items:
            return Verdict()
        if self._shared is None or self._is_away:
            taken = _take(self._own, items, tenant.name)
        else:
            taken = await run_sync(self._take_shared, self._shared, items, tenant.name, limiter=self._threads)
        refused = [one.reset for one in taken if not one.passed]
        return Verdict(_headers(taken), max(refused, default=None))

    @property
    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until

    def _take_shared(
        self, shared: SlidingWindowCounterRateLimiter, items: Mapping[str, RateLimitItem], tenant: str
    ) -> list[_Taken]:
        if self._is_away:  # as was found while this one waited for its thread
            return _take(self._own, items, tenant)
        try:
            return _take(shared, items, tenant, time.monotonic() + REDIS_SECONDS)
        except (StorageError, TimeoutError) as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            reason = error.storage_error if isinstance(error, StorageError) else error
            log.warning("Redis is away: each process counts requests for itself", error=str(reason))
            return _take(self._own, items, tenant)


def _limits_of(tenant: Tenant) -> dict[str, RateLimitItem]:
    """A tenant's limits by the name they are told under."""
    items: dict[str, RateLimitItem] = {}
    if tenant.requests_per_second is not None:
        items["second"] = RateLimitItemPerSecond(tenant.requests_per_second)
    if tenant.requests_per_minute is not None:
        items["minute"] = RateLimitItemPerMinute(tenant.requests_per_minute)
    return items


def _take(
    limiter: SlidingWindowCounterRateLimiter, items: Mapping[str, RateLimitItem], tenant: str, until: float = math.inf
) -> list[_Taken]:
    """until: on the monotonic clock; nothing more is asked after it. Raises TimeoutError."""

    def check_time() -> None:
        if time.monotonic() > until:
            raise TimeoutError("its answers take too long")

    taken = []
    for name, item in items.items():
        check_time()
        passed = limiter.hit(item, tenant)
        check_time()
        reset_at, remaining = limiter.get_window_stats(item, tenant)
        seconds = max(1, math.ceil(reset_at - time.time()))
        taken.append(_Taken(name, item.amount, item.get_expiry(), passed, remaining if passed else 0, seconds))
    return taken


def _headers(taken: Sequence[_Taken]) -> dict[str, str]:
    return {
        "RateLimit-Policy": ", ".join(f'"{one.name}";q={one.quota};w={one.window}' for one in taken),
        "RateLimit": ", ".join(f'"{one.name}";r={one.remaining};t={one.reset}' for one in taken),
    }
