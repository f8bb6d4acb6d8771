"""Who is calling: from the ``Authorization`` header to a tenant and what it may do.

A stored key is found by its public id, and remembered for a few seconds: calls cost no query, and a key that is revoked
stops within that time. Its secret is compared hash against hash in constant time, also where there is no such key. All
that is wrong with a credential is answered in the same words.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from contextlib import nullcontext
from dataclasses import dataclass

import anyio
import structlog
from starlette.datastructures import Headers

from api.caching import Cached
from api.threads import Threads
from jobs.store.database import Database, StorageUnavailable
from jobs.tenancy.keys import Scope, StoredKey, find_key, has_usable_key, note_use, parse_key, secret_hash
from jobs.tenancy.tenants import DEFAULT_TENANT, Tenant, find_tenant
from scoring.error_codes import ErrorCode, RequestError
from settings.keys import KeySettings

MESSAGE = "no valid API key; send one as  Authorization: Bearer KEY"
POLICY_SECONDS = 1.0
"""How long a request without a stored key waits for its tenant's limits while the database does not answer."""

KEYLESS_MESSAGE = (
    "without an API key, requests are taken that name this server as localhost or by a loopback address, "
    "and not from the pages of another site"
)
STRANGERS = 3
"""So many look-ups of keys that are not remembered run at a time: the rest of the threads are for those who are."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:[0-9]+)?", re.IGNORECASE)
_BEARER = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
_NO_KEY = secret_hash("the secret of no key at all")

log = structlog.stdlib.get_logger("api.keys")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is from. policy: the tenant and its limits; key_id: None where no stored key was sent."""

    policy: Tenant
    scopes: frozenset[Scope]
    key_id: str | None

    @property
    def tenant(self) -> str:
        """The tenant's name."""
        return self.policy.name


class NoKeysError(ValueError):
    """Nobody could call this API, and it must not be open to everybody."""


def is_keyless(host: str, bell_socket: str | None) -> bool:
    """Whether requests without a key are taken for the default tenant's: in embedded mode, on a loopback address."""
    return bell_socket is not None and _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_own(headers: Headers) -> bool:
    """Whether a request is no other site's doing: browsers send those that any page makes, also to this machine.

    A page whose own name was made to lead here (DNS rebinding) is told by the ``Host``, all others by what browsers say
    of where a request comes from.
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
    """Raise NoKeysError unless there is a key that is good for something. For who has no bootstrap key.

    A database that can't be asked is not the reason: without it, nobody is let in either.
    """
    try:
        found = has_usable_key(database)
    except StorageUnavailable as error:
        log.warning("can't tell whether there are API keys", error=str(error))
        return
    if not found:
        raise NoKeysError(
            "there is no API key: make one with `scoreline keys create`, or set SCORELINE_BOOTSTRAP_KEY "
            "(only `scoreline up` on a loopback address needs none)"
        )


class Authenticator:
    """Tells who is calling. To be made in the event loop that uses it.

    keyless: a request without a credential is the default tenant's, unless it is the doing of another site's page.
    """

    def __init__(self, database: Database, threads: Threads, settings: KeySettings, *, keyless: bool) -> None:
        self._database = database
        self._threads = threads
        self._keyless = keyless
        bootstrap = settings.bootstrap_key
        self._bootstrap_hash = None if bootstrap is None else secret_hash(bootstrap.get_secret_value())
        self._keys: Cached[_Known] = Cached(self._find_key, settings.key_cache_seconds)
        self._tenants: Cached[Tenant] = Cached(self._find_tenant, settings.key_cache_seconds)
        self._used: set[str] = set()
        self._strangers = anyio.CapacityLimiter(STRANGERS)

    async def authenticate(self, headers: Headers) -> Principal:
        """headers: of a request; of ``Authorization`` there is to be one.

        Raises RequestError INVALID_API_KEY; StorageUnavailable where a key can't be looked up.
        """
        credentials = headers.getlist("authorization")
        if self._keyless and not credentials:
            if not _is_own(headers):
                raise RequestError(ErrorCode.INVALID_API_KEY, KEYLESS_MESSAGE)
            return await self._default_principal()
        found = _BEARER.fullmatch(credentials[0].strip()) if len(credentials) == 1 else None
        if found is None:
            raise invalid_api_key()
        credential = found[1]
        bootstrap = self._bootstrap_hash
        if bootstrap is not None and hmac.compare_digest(bootstrap, secret_hash(credential)):
            return await self._default_principal()
        return await self._stored_principal(credential)

    async def _stored_principal(self, credential: str) -> Principal:
        parsed = parse_key(credential)
        if parsed is None:
            raise invalid_api_key()
        key_id, secret = parsed
        known = await self._keys.get(key_id)
        expected = _NO_KEY if known is None else known.key.secret_sha256
        same = hmac.compare_digest(expected, secret_hash(secret))
        if known is None or not same or time.monotonic() >= known.usable_until:
            raise invalid_api_key()
        self._used.add(key_id)
        return Principal(known.key.tenant, known.key.scopes, key_id)

    async def _default_principal(self) -> Principal:
        try:
            async with asyncio.timeout(POLICY_SECONDS):
                policy = await self._tenants.get(DEFAULT_TENANT)
        except (StorageUnavailable, TimeoutError):
            # Who it is is known all the same, and what needs the database will say that it is away.
            policy = self._tenants.last(DEFAULT_TENANT)
        return Principal(policy or Tenant(DEFAULT_TENANT), frozenset(Scope), None)

    async def _find_key(self, key_id: str) -> _Known | None:
        # Anybody can make up ids, each of which is looked up.
        async with nullcontext() if self._keys.last(key_id) else self._strangers:
            asked_at = time.monotonic()
            key = await self._threads.sql(find_key, self._database, key_id)
        if key is None:
            return None
        return _Known(key, float("inf") if key.usable_seconds is None else asked_at + key.usable_seconds)

    async def _find_tenant(self, name: str) -> Tenant | None:
        return await self._threads.sql(find_tenant, self._database, name)

    async def write_use(self) -> None:
        """Write down which keys were used since the last time. What can't be written now is the next time."""
        used, self._used = self._used, set()
        if not used:
            return
        try:
            await self._threads.sql(note_use, self._database, used)
        except StorageUnavailable as error:
            self._used |= used
            log.warning("could not write down which keys were used", error=str(error))


@dataclass(frozen=True, slots=True)
class _Known:
    """A key as it was found. usable_until: as ``time.monotonic`` counts."""

    key: StoredKey
    usable_until: float


def invalid_api_key() -> RequestError:
    """The one answer to whatever is wrong with a credential."""
    return RequestError(ErrorCode.INVALID_API_KEY, MESSAGE)


def require_scope(principal: Principal, scope: Scope) -> None:
    """Raise RequestError INSUFFICIENT_SCOPE unless a principal may do this."""
    if scope not in principal.scopes:
        raise RequestError(ErrorCode.INSUFFICIENT_SCOPE, f"this takes a key with the scope `{scope}`")
