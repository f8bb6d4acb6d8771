"""Rate limits: the number of requests per second and per minute that a tenant may send, over all of its keys.

The requests are counted in Redis, so that all API processes count together. Without Redis, or while it is unavailable,
each process applies the limits to its own requests. Requests of tenants without limits are not counted.

Responses show the remaining requests in the header fields of the IETF's draft-ietf-httpapi-ratelimit-headers.
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
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from jobs.tenancy.tenants import Tenant
from scoring.error_codes import ErrorCode, RequestError

REDIS_SECONDS = 0.25
"""The time limit for connecting to Redis, for each of its answers, and for all of its answers for one request."""
AWAY_SECONDS = 5.0
"""How long Redis is not used after it was found to be unavailable."""
THREADS = 4

log = structlog.stdlib.get_logger("api.rate_limiting")


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of one limit after a request was counted."""

    name: str
    quota: int  # requests in a window
    window: int  # seconds
    passed: bool
    remaining: int  # requests
    reset: int  # seconds until further requests are possible


@dataclass(frozen=True, slots=True)
class RateLimitResult:
    """The result of counting a request."""

    headers: Mapping[str, str] = field(default_factory=dict)  # for the response
    retry_after: float | None = None  # seconds, if the request exceeds a limit

    def check(self) -> None:
        """Raise RequestError RATE_LIMIT_EXCEEDED if the request exceeds a limit."""
        if self.retry_after is not None:
            message = "too many requests of this tenant; try again later"
            raise RequestError(ErrorCode.RATE_LIMIT_EXCEEDED, message, retry_after=self.retry_after)


class RateLimits:
    """Counts requests. Create it inside the event loop that uses it. redis_url: None in embedded mode."""

    def __init__(self, redis_url: str | None, prefix: str) -> None:
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._shared = None
        if redis_url is not None:
            from limits.storage import RedisStorage
            from redis import ReadOnlyError
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            storage = RedisStorage(
                redis_url,
                key_prefix=f"{prefix}:rates",
                wrap_exceptions=True,
                socket_timeout=REDIS_SECONDS,
                socket_connect_timeout=REDIS_SECONDS,
                retry=Retry(NoBackoff(), 0),  # type: ignore[arg-type]
                # A connection to what has become a replica is closed. The next one may lead to the new primary.
                retry_on_error=[ReadOnlyError],  # type: ignore[arg-type]
            )
            self._shared = SlidingWindowCounterRateLimiter(storage)
        self._away_until = -math.inf
        self._threads = anyio.CapacityLimiter(THREADS)

    async def count(self, tenant: Tenant) -> RateLimitResult:
        """Count a request of a tenant, and return whether it is within the tenant's limits."""
        items = _limit_items(tenant)
        if not items:
            return RateLimitResult()
        states = None
        if self._shared is not None and not self._is_away:
            states = await run_sync(self._count_shared, self._shared, items, tenant.name, limiter=self._threads)
        if states is None:
            states = _count_with(self._own, items, tenant.name)
        refused = [state.reset for state in states if not state.passed]
        return RateLimitResult(_headers(states), max(refused, default=None))

    @property
    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until

    def _count_shared(
        self, shared: SlidingWindowCounterRateLimiter, items: Mapping[str, RateLimitItem], tenant: str
    ) -> list[LimitState] | None:
        """Count in Redis. Returns None if it is away."""
        if self._is_away:  # another thread found that while this request waited for its thread
            return None
        try:
            return _count_with(shared, items, tenant, time.monotonic() + REDIS_SECONDS)
        except (StorageError, TimeoutError) as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            reason = error.storage_error if isinstance(error, StorageError) else error
            log.warning("Redis is away: each API process counts requests for itself", error=str(reason))
            return None


def _limit_items(tenant: Tenant) -> dict[str, RateLimitItem]:
    """Return a tenant's limits by their names in the header fields."""
    items: dict[str, RateLimitItem] = {}
    if tenant.requests_per_second is not None:
        items["second"] = RateLimitItemPerSecond(tenant.requests_per_second)
    if tenant.requests_per_minute is not None:
        items["minute"] = RateLimitItemPerMinute(tenant.requests_per_minute)
    return items


def _count_with(
    limiter: SlidingWindowCounterRateLimiter, items: Mapping[str, RateLimitItem], tenant: str, until: float = math.inf
) -> list[LimitState]:
    """Count a request. Raises TimeoutError after the time ``until``, on the monotonic clock."""

    def check_time() -> None:
        if time.monotonic() > until:
            raise TimeoutError("its answers take too long")

    states: list[LimitState] = []
    for name, item in items.items():
        check_time()
        # A request that the limit per second refuses must not use up the limit per minute.
        count = limiter.hit if all(state.passed for state in states) else limiter.test
        passed = count(item, tenant)
        check_time()
        reset_at, remaining = limiter.get_window_stats(item, tenant)
        seconds = max(1, math.ceil(reset_at - time.time()))
        states.append(LimitState(name, item.amount, item.get_expiry(), passed, remaining if passed else 0, seconds))
    return states


def _headers(states: Sequence[LimitState]) -> dict[str, str]:
    return {
        "RateLimit-Policy": ", ".join(f'"{state.name}";q={state.quota};w={state.window}' for state in states),
        "RateLimit": ", ".join(f'"{state.name}";r={state.remaining};t={state.reset}' for state in states),
    }
