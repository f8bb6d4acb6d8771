"""Looking names up, in bounded time: the system's resolver can't be interrupted, only left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

LookUp = Callable[[str], list[str]]
"""A name to its addresses as text; raises OSError. It may take as long as it likes."""

PLACES = 64
"""Look-ups at once. Those that were given up count until the system gives them up, too: half a minute or so."""

PLACE_SECONDS = 1.0
"""How long a place is waited for. No longer: whoever waits keeps a thread from those whose names are known at once."""

NO_ADDRESS = "the host's name has no address that webhooks go to"
"""Of one that has none and of one that leads inside: names of an inner network are nobody's to ask for."""


class ResolutionError(Exception):
    """A name that has no address, as far as could be found, or none that is open."""


class BusyError(Exception):
    """There is no place to look a name up: nothing was found out about it."""


def system_look_up(name: str) -> list[str]:
    """What the system's resolver says: its hosts file, DNS, or whatever it is set to."""
    return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


class Resolver:
    """Looks names up, each in a thread of its own, for as long as one is willing to wait."""

    def __init__(self, look_up: LookUp = system_look_up) -> None:
        self._look_up = look_up
        self._places = threading.BoundedSemaphore(PLACES)

    def resolve(self, name: str, seconds: float) -> list[str]:
        """The addresses of a name, in the resolver's order. Raises ResolutionError, TimeoutError, BusyError."""
        deadline = time.monotonic() + seconds
        if not self._places.acquire(timeout=min(seconds, PLACE_SECONDS)):
            raise BusyError("too many names are being looked up")
        answer: Future[list[str]] = Future()
        # A daemon: a process that stops does not wait for it.
        thread = threading.Thread(target=self._answer, args=(name, answer), name="webhook-look-up", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._places.release()
            raise BusyError("no thread could be started to look a name up") from error
        try:
            addresses = answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise TimeoutError("the look-up of the host's name took too long") from None
        if not addresses:
            raise ResolutionError(NO_ADDRESS)
        return addresses

    def _answer(self, name: str, answer: Future[list[str]]) -> None:
        try:
            addresses = self._look_up(name)
        except (OSError, UnicodeError):
            # Nothing of how it failed.
            answer.set_exception(ResolutionError(NO_ADDRESS))
        else:
            answer.set_result(addresses)
        finally:
            self._places.release()
