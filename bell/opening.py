"""Open the bell that the settings choose: a local socket if one is set, otherwise Redis.

The libraries for Redis are imported only where it is used: they take a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bell.interfaces import BellConnection, EndedJobsListener, RingListener
from bell.local import LocalBell, LocalHub
from bell.local_member import LocalMember
from settings.bell import BellSettings


def open_api_bell(settings: BellSettings, *, parent_serves: bool = False) -> tuple[BellConnection, EndedJobsListener]:
    """Return what an API process uses: a bell to ring the workers with, and a listener for ended jobs.

    parent_serves: whether the parent of several processes serves the local socket.
    """
    if settings.bell_socket is not None and parent_serves:
        member = LocalMember(settings.bell_socket)
        return member, member
    if settings.bell_socket is not None:
        hub = LocalHub(settings.bell_socket)
        return hub, hub
    from bell.redis_bell import RedisBell
    from bell.redis_ended_jobs import RedisEndedJobsListener

    url, prefix = settings.redis_url, settings.bell_prefix
    return RedisBell(url, prefix), RedisEndedJobsListener(url, prefix)


def open_worker_bell(
    settings: BellSettings, models: Sequence[str], on_ring: Callable[[], None]
) -> tuple[BellConnection, RingListener]:
    """Return what a worker of these models uses: a bell to announce ended jobs with, and a listener for rings.

    ``on_ring`` is called in the listening thread and must return at once.
    """
    if settings.bell_socket is not None:
        bell = LocalBell(settings.bell_socket, models, on_ring)
        return bell, bell
    from bell.redis_bell import RedisBell
    from bell.redis_listener import RedisRingListener

    redis_bell = RedisBell(settings.redis_url, settings.bell_prefix)
    return redis_bell, RedisRingListener(settings.redis_url, settings.bell_prefix, models, on_ring)
