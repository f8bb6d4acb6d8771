"""The bell on Redis: a ring is a Celery task, an announcement is a published message."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bell.interfaces import split_into_messages
from bell.redis_celery import RING_TASK, create_celery, ended_channel, key_prefix, queue_name

SILENCE_SECONDS = 0.4
"""Time limit for connecting to Redis and for its answers: a ring is not worth waiting longer for."""

MUTE_SECONDS = 1.0
"""After a failure nothing is sent for this long: otherwise every caller would wait for a Redis that is away."""

MUTE_FACTOR = 10
"""After a failure that took long, nothing is sent for this many times as long, if that is more."""

ENOUGH_RINGS = 32
"""No ring is added to a queue that holds this many, which bounds the queue while no worker listens."""

logger = logging.getLogger(__name__)


class RedisBell:
    """A :class:`bell.interfaces.Bell` on Redis. It connects when it is first used."""

    def __init__(self, redis_url: str, prefix: str) -> None:
        self._prefix = prefix
        self._celery = create_celery(redis_url, prefix, silence_seconds=SILENCE_SECONDS)
        self._redis = redis.Redis.from_url(
            redis_url,
            socket_connect_timeout=SILENCE_SECONDS,
            socket_timeout=SILENCE_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._lock = threading.Lock()
        self._muted_until = 0.0
        self.failures = 0  # rings and announcements lost to outages since the start

    def ring(self, model: str) -> None:
        """Queue a ring for the workers of ``model``, unless :data:`ENOUGH_RINGS` are waiting already."""
        self._try(lambda: self._publish_ring(queue_name(model)))

    def announce(self, job_ids: Sequence[str]) -> None:
        """Publish the ids of ended jobs."""
        self._try(lambda: self._publish_ended(job_ids))

    def close(self) -> None:
        """Close all connections."""
        self._celery.close()
        self._redis.close()

    def _publish_ring(self, queue: str) -> None:
        # This question fails quickly if Redis is away; Celery's own publishing, which follows, is slow to give up.
        if self._redis.llen(key_prefix(self._prefix) + queue) >= ENOUGH_RINGS:
            return
        # Nothing is declared: the ring goes straight into the queue's list, whatever else is stored in Redis.
        self._celery.send_task(RING_TASK, queue=queue, declare=[], retry=False, ignore_result=True)

    def _publish_ended(self, job_ids: Sequence[str]) -> None:
        for ids in split_into_messages(job_ids):
            self._redis.publish(ended_channel(self._prefix), json.dumps(ids))

    def _try(self, publish: Callable[[], object]) -> None:
        """Call ``publish``. Count a failure instead of raising it, and send nothing more for a while."""
        if time.monotonic() < self._muted_until:
            with self._lock:
                self.failures += 1
            return
        started = time.monotonic()
        try:
            publish()
        except Exception as error:  # Celery, kombu and redis-py raise errors of their own; none may reach the caller
            with self._lock:
                self.failures += 1
                first = not self._muted_until
                failed = time.monotonic()
                self._muted_until = failed + max(MUTE_SECONDS, MUTE_FACTOR * (failed - started))
            if first:
                logger.warning("Redis can't be reached, so workers find work by looking for it: %s", error)
            return
        if self._muted_until:
            self._muted_until = 0.0
            logger.info("Redis is back")
