"""The budget of an API: how many requests and bytes of them it holds at the same time, in all and of each tenant.

Each request has a :class:`Place` from its arrival to its end. Everything that a request holds is counted through its
place, and the middleware gives all of it back when the request ends, in whichever way it ends. All of this happens on
the event loop, so there are no locks. Of several processes that serve a port together, each has a part of the limits
(:meth:`settings.limits.LimitSettings.divided_among`).

Connections are bounded before this, by the server itself. A connection has one request at a time, so that bound also
holds for the requests that have no place: health checks and metrics, which must be answered when the budget is used up.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answers.error_responses import error_response
from api.waiting.departure import Departure
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings

RETRY_SECONDS = (1.0, 5.0)
"""The least and the greatest ``Retry-After``. It is random, so that refused clients do not all return together."""

MONITORING = frozenset({"/livez", "/readyz", "/health", "/metrics"})
"""The paths that monitoring asks for every few seconds. They are served when no place is free, and not traced."""

SLICE_BYTES = 2**16
"""The bytes of an answer that are given to its connection at a time."""

_PLACE = "scoreline.place"
"""The key of a request's scope under which its place is kept."""


class Kind(StrEnum):
    """What a request is while it is open. Each kind has places of its own."""

    REQUEST = "request"  # every request until more is known of it, and most of them until they end
    STREAM = "stream"  # it waits with `Prefer: wait`, receives JSON lines or the content of a file, or follows events
    UPLOAD = "upload"  # it sends a job as JSON lines, or a file


class Use:
    """How much of something the requests of this process use, in all and by tenant."""

    def __init__(self) -> None:
        self.total = 0  # of all tenants, and of requests whose tenant is not known yet
        self._by_tenant: Counter[str] = Counter()  # only tenants that use something

    def of(self, tenant: str) -> int:
        return self._by_tenant[tenant]

    def add(self, tenant: str | None, amount: int) -> None:
        """Count this much more; a negative amount is given back. tenant: None counts in all only."""
        self.total += amount
        if tenant is not None:
            self._by_tenant[tenant] += amount
            if self._by_tenant[tenant] == 0:
                del self._by_tenant[tenant]


class _Share:
    """Something that is limited in all and for each tenant. The limits are settings with these names."""

    def __init__(self, limits: LimitSettings, what: str, setting: str) -> None:
        self.used = Use()
        self._what = what
        self._setting = setting
        self._limit: int = getattr(limits, setting)
        self.limit_per_tenant: int = getattr(limits, f"{setting}_per_tenant")

    def check(self, amount: int) -> None:
        """Raise RequestError OVERLOADED if all tenants together can't use this much more."""
        if self.used.total + amount > self._limit:
            message = f"this server takes {self._limit} {self._what} at the same time; please try again"
            raise _refused(ErrorCode.OVERLOADED, message, self._setting)

    def check_tenant(self, tenant: str, amount: int) -> None:
        """Raise RequestError TOO_MANY_OPEN_REQUESTS if a tenant can't use this much more."""
        if self.used.of(tenant) + amount > self.limit_per_tenant:
            message = f"a tenant may have {self.limit_per_tenant} {self._what} at the same time; please try again"
            raise _refused(ErrorCode.TOO_MANY_OPEN_REQUESTS, message, f"{self._setting}_per_tenant")


def _refused(code: ErrorCode, message: str, setting: str) -> RequestError:
    return RequestError(code, message, retry_after=random.uniform(*RETRY_SECONDS), limit=setting)


class Budget:
    """What all open requests hold together. For use on the event loop."""

    def __init__(self, limits: LimitSettings) -> None:
        waiting = "requests that wait for a job, follow events, or receive scores or files as streams"
        self.open = {
            Kind.REQUEST: _Share(limits, "requests", "max_open_requests"),
            Kind.STREAM: _Share(limits, waiting, "max_open_streams"),
            Kind.UPLOAD: _Share(limits, "uploads", "max_open_uploads"),
        }
        self.held_bytes = _Share(limits, "bytes of bodies and answers", "max_buffered_body_bytes")

    def in_use(self) -> list[int]:
        """Return the number of open requests of each kind, and the bytes that are held of bodies and answers."""
        return [share.used.total for share in (*self.open.values(), self.held_bytes)]

    def place(self, departure: Departure | None = None) -> Place:
        """Return a place for a request that has just arrived. Raises RequestError OVERLOADED."""
        self.open[Kind.REQUEST].check(1)
        return Place(self, departure)


class Place:
    """What one request holds of a budget."""

    def __init__(self, budget: Budget, departure: Departure | None = None) -> None:
        """departure: that of the request's client, which knows how much of the body the connection still counts."""
        self.kind = Kind.REQUEST  # as which it is counted once its tenant is known; until then it counts as a request
        self._budget = budget
        self._departure = departure
        self._tenant: str | None = None
        self._bytes = 0
        self._answer_bytes = 0
        budget.open[Kind.REQUEST].used.add(None, 1)

    @property
    def tenant(self) -> str:
        """The tenant whose the request is, once that is known."""
        assert self._tenant is not None
        return self._tenant

    def belongs_to(self, tenant: str) -> None:
        """Count the request as this tenant's from now on. Raises RequestError OVERLOADED, TOO_MANY_OPEN_REQUESTS."""
        before, share = self._budget.open[Kind.REQUEST], self._budget.open[self.kind]
        share.check_tenant(tenant, 1)
        if share is not before:
            share.check(1)
        before.used.add(None, -1)
        share.used.add(tenant, 1)
        self._tenant = tenant

    def check_body(self, size: int) -> None:
        """Refuse a body of this size if there is no room for it now. Raises RequestError as :meth:`hold_body` does."""
        assert self._tenant is not None
        self._budget.held_bytes.check_tenant(self._tenant, size)
        counted = 0 if self._departure is None else self._departure.unread_bytes
        self._budget.held_bytes.check(max(0, size - counted))

    def hold_body(self, size: int) -> None:
        """Count further bytes of the body. Raises RequestError OVERLOADED, TOO_MANY_OPEN_REQUESTS."""
        self.check_body(size)
        self._budget.held_bytes.used.add(self._tenant, size)
        self._bytes += size

    def release_body(self) -> None:
        """Give the bytes of the body back."""
        self._budget.held_bytes.used.add(self._tenant, -self._bytes)
        self._bytes = 0

    def check_answer(self, size: int) -> None:
        """Refuse an answer of about this size if there is no room for it now, as :meth:`check_body` does.

        One that is larger than all answers of a tenant may be needs all of the tenant's room.
        """
        self.check_body(min(size, self._budget.held_bytes.limit_per_tenant))

    def reserve_answer(self, size: int) -> None:
        """Count an answer that is about to be encoded. Raises RequestError OVERLOADED, TOO_MANY_OPEN_REQUESTS."""
        self.check_answer(size)
        self.keep_answer(size)

    def keep_answer(self, size: int) -> None:
        """Count so many bytes of the answer from now on."""
        self._budget.held_bytes.used.add(self._tenant, size - self._answer_bytes)
        self._answer_bytes = size

    def close(self) -> None:
        """Give everything back."""
        self.release_body()
        self.keep_answer(0)
        counted_as = Kind.REQUEST if self._tenant is None else self.kind
        self._budget.open[counted_as].used.add(self._tenant, -1)


class PlaceForEachRequest:
    """ASGI middleware: a request holds a place of the budget from its arrival to its end, or is refused.

    count_refused: called with the name of the limit that refuses a request.
    """

    def __init__(self, app: ASGIApp, budget: Budget, count_refused: Callable[[str], None]) -> None:
        self.app = app
        self.budget = budget
        self.count_refused = count_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in MONITORING:
            await self.app(scope, receive, send)
            return
        departure: Departure | None = scope.get("state", {}).get("departure")
        try:
            place = self.budget.place(departure)
        except RequestError as error:
            if error.limit is not None:
                self.count_refused(error.limit)
            await error_response(error)(scope, receive, send)
            return
        scope[_PLACE] = place

        async def take() -> Message:
            message = await receive()
            if departure is not None:
                departure.take_body()
            return message

        async def send_in_slices(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= SLICE_BYTES:
                await send(message)
                return
            # The next slice is given to the connection when the client has read most of those before.
            for start in range(0, len(body), SLICE_BYTES):
                place.keep_answer(len(body) - start)
                more = start + SLICE_BYTES < len(body) or message.get("more_body", False)
                await send({**message, "body": body[start : start + SLICE_BYTES], "more_body": more})
            place.keep_answer(0)

        try:
            await self.app(scope, take, send_in_slices)
        finally:
            place.close()


def place_of(request: Request) -> Place:
    place: Place = request.scope[_PLACE]
    return place


def counts_as(kind: Kind) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency of a route whose requests take places of this kind, before the caller is known."""

    async def count(request: Request) -> None:
        place_of(request).kind = kind

    return count
