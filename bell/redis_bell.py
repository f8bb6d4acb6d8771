"""Ringing through Redis: a ring is a Celery task, an announcement a published message."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bell.interfaces import in_notices
from bell.redis_celery import RING_TASK, create_celery, ended_channel, key_prefix, queue_name

SILENCE_SECONDS = 0.4
"""How long Redis may take to connect or answer: a ring is not worth waiting for."""

MUTE_SECONDS = 1.0
"""After a failure nothing is tried for so long, or every request would wait for a Redis that does not answer."""

ENOUGH_RINGS = 32
"""Rings waiting in a queue beyond which no more are added.

It bounds what piles up while no worker listens. More rings than workers do no harm: each only sets an event.
"""

logger = logging.getLogger(__name__)


class RedisBell:
    """A :class:`bell.interfaces.Bell` on Redis. Connects at first use.

    failures: rings and announcements that were lost to an outage, since the start.
    """

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
        self.failures = 0

    def ring(self, model: str) -> None:
        """Publish a ring for the workers of ``model``, unless enough of them wait already."""
        self._try(lambda: self._publish_ring(queue_name(model)))

    def announce(self, job_ids: Sequence[str]) -> None:
        """Publish the ids of jobs that have ended."""
        self._try(lambda: self._publish_ended(job_ids))

    def close(self) -> None:
        """Let go of all connections."""
        self._celery.close()
        self._redis.close()

    def _publish_ring(self, queue: str) -> None:
        # This asks Redis first, so what Celery does next finds it there: Celery's own publishing is slow to give up.
        if self._redis.llen(key_prefix(self._prefix) + queue) >= ENOUGH_RINGS:
            return
        # Nothing is declared: a ring goes straight to the queue's list, whatever else of ours is in Redis.
        self._celery.send_task(RING_TASK, queue=queue, declare=[], retry=False, ignore_result=True)

    def _publish_ended(self, job_ids: Sequence[str]) -> None:
        for ids in in_notices(job_ids):
            self._redis.publish(ended_channel(self._prefix), json.dumps(ids))

    def _try(self, publish: Callable[[], object]) -> None:
        if time.monotonic() < self._muted_until:
            with self._lock:
                self.failures += 1
            return
        try:
            publish()
        except Exception as error:  # Celery, kombu and redis-py each raise their own, and a ring may fail nobody
            with self._lock:
                self.failures += 1
                first = not self._muted_until
                self._muted_until = time.monotonic() + MUTE_SECONDS
            if first:
                logger.warning("Redis can't be reached, so workers find work by looking for it: %s", error)
            return
        if self._muted_until:
            self._muted_until = 0.0
            logger.info("Redis is back")
