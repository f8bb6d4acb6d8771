"""Looking host names up with a time limit.

A call of the system's resolver can't be interrupted, so each runs in a thread that is abandoned when time is up.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

Lookup = Callable[[str], list[str]]
"""Returns the addresses of a name as text; raises OSError. It may take any time."""

MAX_LOOKUPS = 64
"""Lookups at once. An abandoned one counts until the system ends it, after about half a minute."""

MAX_WAIT_SECONDS = 1.0
"""How long to wait until a lookup may start. Short, because the waiting thread can't send other webhooks meanwhile."""

NO_ALLOWED_ADDRESS = "the host's name has no address that webhooks go to"
"""Said both of a name without addresses and of one with forbidden addresses, or private names could be probed."""


class ResolutionError(Exception):
    """A name has no address, or none that webhooks may be sent to."""


class BusyError(Exception):
    """No lookup could be started, so nothing is known about the name."""


def system_lookup(name: str) -> list[str]:
    """Return what the system's resolver answers, from its hosts file, DNS or whatever it is configured to use."""
    return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


class _Slots:
    """The places of the lookups under way, shared fairly among the owners of webhooks. Safe to use from threads.

    An owner may hold half of the places that the other owners leave, and one at least. So names that are answered
    slowly take no places from other owners, however many of them one owner has.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()  # by owner
        self._changed = threading.Condition()

    def take(self, owner: str, seconds: float) -> bool:
        """Take a place, and return whether there was one. An owner who has a full share is not kept waiting."""
        with self._changed:
            others = self._held.total() - self._held[owner]
            if self._held[owner] >= max(1, (MAX_LOOKUPS - others) // 2):
                return False
            if not self._changed.wait_for(lambda: self._held.total() < MAX_LOOKUPS, seconds):
                return False
            self._held[owner] += 1
            return True

    def free(self, owner: str) -> None:
        """Give a place back."""
        with self._changed:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
            self._changed.notify()


class Resolver:
    """Looks names up, each in its own thread, with a time limit for the caller."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._slots = _Slots()

    def resolve(self, name: str, seconds: float, owner: str = "") -> list[str]:
        """Return the addresses of a name in the resolver's order. Raises ResolutionError, TimeoutError, BusyError.

        owner: whose webhook it is looked up for; owners share the lookups that can run at a time.
        """
        deadline = time.monotonic() + seconds
        if not self._slots.take(owner, min(seconds, MAX_WAIT_SECONDS)):
            raise BusyError("too many names are being looked up")
        answer: Future[list[str]] = Future()
        # A daemon thread, so that a stopping process does not wait for it.
        thread = threading.Thread(target=self._answer, args=(name, owner, answer), name="webhook-look-up", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._slots.free(owner)
            raise BusyError("no thread could be started to look a name up") from error
        try:
            addresses = answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise TimeoutError("the look-up of the host's name took too long") from None
        if not addresses:
            raise ResolutionError(NO_ALLOWED_ADDRESS)
        return addresses

    def _answer(self, name: str, owner: str, answer: Future[list[str]]) -> None:
        try:
            addresses = self._lookup(name)
        except (OSError, UnicodeError):
            # How it failed is not told: it would say whether a private name exists.
            answer.set_exception(ResolutionError(NO_ALLOWED_ADDRESS))
        else:
            answer.set_result(addresses)
        finally:
            self._slots.free(owner)
