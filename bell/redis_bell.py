"""The bell on Redis: a ring is the message of a Celery task, an announcement is a published message."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bell.notices import write_notices
from bell.outages import explain_outage
from bell.redis_celery import ended_channel, key_prefix, queue_name, ring_message

SILENCE_SECONDS = 0.4
"""Time limit for connecting to Redis and for its answers: a ring is not worth waiting longer for."""

MUTE_SECONDS = 1.0
"""After a failure nothing is sent for this long: otherwise every caller would wait for a Redis that is away."""

MUTE_FACTOR = 10
"""After a failure that took long, nothing is sent for this many times as long, if that is more."""

ENOUGH_RINGS = 32
"""A queue holds at most this many rings, also while no worker listens."""

logger = logging.getLogger(__name__)


class RedisBell:
    """A :class:`bell.interfaces.Bell` on Redis. It connects when it is first used."""

    def __init__(self, redis_url: str, prefix: str) -> None:
        self._redis_url = redis_url
        self._prefix = prefix
        self._redis = redis.Redis.from_url(
            redis_url,
            socket_connect_timeout=SILENCE_SECONDS,
            socket_timeout=SILENCE_SECONDS,
            retry=Retry(NoBackoff(), 0),
            # A connection to what has become a replica is closed. The next one may lead to the new primary.
            retry_on_error=[redis.ReadOnlyError],
        )
        self._messages: dict[str, bytes] = {}  # by model: its ring
        self._lock = threading.Lock()
        self._muted_until = 0.0
        self.failures = 0  # rings and announcements lost to outages since the start
        self.on_lost: Callable[[], None] = lambda: None  # called for each of them

    def ring(self, model: str) -> None:
        """Queue a ring for the workers of ``model``. Of more than :data:`ENOUGH_RINGS`, the oldest are removed."""
        self._try(lambda: self._publish_ring(model))

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        """Publish the ids of ended jobs, some of them with their results. Redis does not store them."""
        self._try(lambda: self._publish_ended(job_ids, results))

    def close(self) -> None:
        self._redis.close()

    def _publish_ring(self, model: str) -> None:
        message = self._messages.get(model)
        if message is None:
            message = self._messages[model] = ring_message(model)
        queue = key_prefix(self._prefix) + queue_name(model)
        if self._redis.lpush(queue, message) > ENOUGH_RINGS:
            self._redis.ltrim(queue, 0, ENOUGH_RINGS - 1)

    def _publish_ended(self, job_ids: Sequence[str], results: Mapping[str, str] | None) -> None:
        for message in write_notices(job_ids, results):
            self._redis.publish(ended_channel(self._prefix), message)

    def _try(self, publish: Callable[[], object]) -> None:
        """Call ``publish``. Count a failure instead of raising it, and send nothing more for a while."""
        if time.monotonic() < self._muted_until:
            self._count_failure()
            return
        started = time.monotonic()
        try:
            publish()
        except Exception as error:  # redis-py and kombu raise errors of their own; none may reach the caller
            self._count_failure()
            with self._lock:
                first = not self._muted_until
                failed = time.monotonic()
                self._muted_until = failed + max(MUTE_SECONDS, MUTE_FACTOR * (failed - started))
            if first:
                reason = explain_outage(error, self._redis_url)
                logger.warning("Redis can't be used, so workers find work by looking for it: %s", reason)
            return
        if self._muted_until:
            self._muted_until = 0.0
            logger.info("Redis is back")

    def _count_failure(self) -> None:
        with self._lock:
            self.failures += 1
        self.on_lost()
