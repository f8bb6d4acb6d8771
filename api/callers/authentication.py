"""Authenticate callers: from the ``Authorization`` header to a tenant and its scopes.

A stored key is looked up by its public id and cached for a few seconds, so most calls need no query, and a revoked key
stops working within that time. The hash of its secret is compared in constant time, even if there is no such key. All
invalid credentials get the same error message.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import random
import re
import time
from contextlib import nullcontext
from dataclasses import dataclass

import anyio
import structlog
from starlette.datastructures import Headers

from api.caching import CachedLookup
from api.threads import Threads
from jobs.outages import explain_outage
from jobs.store.database import Database, StorageUnavailable
from jobs.tenancy.keys import PREFIX, Scope, StoredKey, find_key, has_usable_key, hash_secret, parse_key, record_use
from jobs.tenancy.tenants import DEFAULT_TENANT, Tenant, find_tenant
from scoring.error_codes import ErrorCode, RequestError
from settings.keys import KeySettings
from settings.limits import LimitSettings

MESSAGE = "no valid API key; send one as  Authorization: Bearer KEY"
POLICY_SECONDS = 1.0
"""How long a request without a stored key waits for its tenant's limits if the database does not answer."""

KEYLESS_MESSAGE = (
    "without an API key, requests are taken that name this server as localhost or by a loopback address, "
    "and not from the pages of another site"
)
RETRY_SECONDS = (1.0, 5.0)
"""The least and the greatest ``Retry-After`` of a request whose key is not looked up."""
UNKNOWN_KEY_LOOKUPS = 3
"""How many keys that are not cached may be looked up at a time, so that callers with cached keys find a thread."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:[0-9]+)?", re.IGNORECASE)
_BEARER = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
_NO_KEY = hash_secret("the secret of no key at all")

log = structlog.stdlib.get_logger("api.keys")


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    policy: Tenant  # the tenant and its limits
    scopes: frozenset[Scope]
    key_id: str | None  # None without a stored key

    @property
    def tenant(self) -> str:
        return self.policy.name

    @property
    def author(self) -> str:
        """What the record of changes says of who has made one."""
        return "a request without a stored key" if self.key_id is None else f"key {self.key_id}"

    @property
    def noted(self) -> dict[str, str | None]:
        """What the access log says of the caller."""
        return {"tenant": self.tenant} if self.key_id is None else {"tenant": self.tenant, "key_id": self.key_id}


class NoKeysError(ValueError):
    """There is no key by which a request could be authenticated, and keys are required."""


def is_keyless(host: str, bell_socket: str | None) -> bool:
    """Return whether requests need no key: in embedded mode, on a loopback address. They are the default tenant's."""
    return bell_socket is not None and _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_same_origin(headers: Headers) -> bool:
    """Return whether a request can't come from the page of another site: browsers let any page send requests to here.

    The ``Host`` header reveals pages whose own name resolves to this machine (DNS rebinding); ``Origin`` and
    ``Sec-Fetch-Site`` reveal all others.
    """
    hosts = headers.getlist("host")
    found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None or not _is_loopback(found[1].strip("[]")):
        return False
    origins = {f"{scheme}://{hosts[0]}".lower() for scheme in ("http", "https")}
    return all(origin.lower() in origins for origin in headers.getlist("origin")) and all(
        site in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")
    )


def require_keys(database: Database) -> None:
    """Raise NoKeysError unless there is a usable key. Called if there is no bootstrap key.

    An unavailable database is no reason to refuse the start: without it, no request is authenticated either.
    """
    try:
        found = has_usable_key(database)
    except StorageUnavailable as error:
        log.warning("can't tell whether there are API keys", error=explain_outage(error, database.settings))
        return
    if not found:
        raise NoKeysError(
            "there is no API key: make one with `scoreline keys create`, or set SCORELINE_BOOTSTRAP_KEY "
            "(only `scoreline up` on a loopback address needs none)"
        )


class Authenticator:
    """Finds out who is calling. Create it inside the event loop that uses it.

    keyless: requests without a credential are the default tenant's, unless a page of another site may have sent them. A
    bearer that does not begin like a key of this service counts as none, because OpenAI's client sends one in any case.
    """

    def __init__(
        self, database: Database, threads: Threads, settings: KeySettings, limits: LimitSettings, *, keyless: bool
    ) -> None:
        self._database = database
        self._threads = threads
        self._keyless = keyless
        bootstrap = settings.bootstrap_key
        self._bootstrap_hash = None if bootstrap is None else hash_secret(bootstrap.get_secret_value())
        self._keys = CachedLookup(self._find_key, settings.key_cache_seconds)
        self._tenants = CachedLookup[str, Tenant | None](
            lambda name: threads.sql(find_tenant, database, name), settings.key_cache_seconds
        )
        self._used: set[str] = set()
        self._max_waiting_lookups = limits.max_waiting_key_lookups
        self._unknown_key_lookups = anyio.CapacityLimiter(UNKNOWN_KEY_LOOKUPS)

    async def authenticate(self, headers: Headers) -> Principal:
        """Return a request's caller. Raises RequestError INVALID_API_KEY, OVERLOADED, StorageUnavailable."""
        if self._keyless and "authorization" not in headers:
            return await self._keyless_principal(headers)
        credential = _credential(headers)
        if credential is None:
            raise invalid_api_key()
        bootstrap = self._bootstrap_hash
        if bootstrap is not None and hmac.compare_digest(bootstrap, hash_secret(credential)):
            return await self._default_principal()
        if self._keyless and not credential.startswith(PREFIX):
            return await self._keyless_principal(headers)
        return await self._stored_principal(credential)

    async def _keyless_principal(self, headers: Headers) -> Principal:
        if not _is_same_origin(headers):
            raise RequestError(ErrorCode.INVALID_API_KEY, KEYLESS_MESSAGE)
        return await self._default_principal()

    async def _stored_principal(self, credential: str) -> Principal:
        parsed = parse_key(credential)
        if parsed is None:
            raise invalid_api_key()
        key_id, secret = parsed
        known = await self._keys.get(key_id)
        expected = _NO_KEY if known is None else known.key.secret_sha256
        same = hmac.compare_digest(expected, hash_secret(secret))
        if known is None or not same or time.monotonic() >= known.usable_until:
            raise invalid_api_key()
        self._used.add(key_id)
        return Principal(known.key.tenant, known.key.scopes, key_id)

    async def _default_principal(self) -> Principal:
        try:
            async with asyncio.timeout(POLICY_SECONDS):
                policy = await self._tenants.get(DEFAULT_TENANT)
        except (StorageUnavailable, TimeoutError):
            # The caller is known all the same, and whatever needs the database will report that it is unavailable.
            policy = self._tenants.last(DEFAULT_TENANT)
        return Principal(policy or Tenant(DEFAULT_TENANT), frozenset(Scope), None)

    async def _find_key(self, key_id: str) -> _CachedKey | None:
        # Each unknown id is looked up, and anybody can invent ids.
        is_known = self._keys.last(key_id) is not None
        if not is_known and self._unknown_key_lookups.statistics().tasks_waiting >= self._max_waiting_lookups:
            raise too_many_lookups()
        async with nullcontext() if is_known else self._unknown_key_lookups:
            asked_at = time.monotonic()
            key = await self._threads.sql(find_key, self._database, key_id)
        if key is None:
            return None
        return _CachedKey(key, float("inf") if key.usable_seconds is None else asked_at + key.usable_seconds)

    async def record_use(self) -> None:
        """Store which keys were used since the last call. After a failure, the next call stores them."""
        used, self._used = self._used, set()
        if not used:
            return
        try:
            await self._threads.sql(record_use, self._database, used)
        except StorageUnavailable:
            self._used |= used


def claimed_key_id(headers: Headers) -> str | None:
    """Return the id of the key that a request names, whether or not there is such a key."""
    parsed = parse_key(_credential(headers) or "")
    return None if parsed is None else parsed[0]


def _credential(headers: Headers) -> str | None:
    sent = headers.getlist("authorization")
    found = _BEARER.fullmatch(sent[0].strip()) if len(sent) == 1 else None
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class _CachedKey:
    key: StoredKey
    usable_until: float  # on the clock of time.monotonic


def invalid_api_key() -> RequestError:
    """Return the error for any invalid credential."""
    return RequestError(ErrorCode.INVALID_API_KEY, MESSAGE)


def too_many_lookups() -> RequestError:
    """Return the error for an unknown key while too many others wait. Otherwise these would fill the open requests."""
    message = "too many API keys wait to be looked up; please try again"
    seconds = random.uniform(*RETRY_SECONDS)
    return RequestError(ErrorCode.OVERLOADED, message, retry_after=seconds, limit="max_waiting_key_lookups")


def require_scope(principal: Principal, scope: Scope) -> None:
    """Raise RequestError INSUFFICIENT_SCOPE unless the caller has the scope, and its tenant is not suspended."""
    if principal.policy.suspended_at is not None:
        message = "the tenant of this key is suspended: ask those who run this service"
        raise RequestError(ErrorCode.INSUFFICIENT_SCOPE, message)
    if scope not in principal.scopes:
        raise RequestError(ErrorCode.INSUFFICIENT_SCOPE, f"this takes a key with the scope `{scope}`")
