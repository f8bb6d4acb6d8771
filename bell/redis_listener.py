"""Hear rings from Redis: a Celery worker whose only task calls a function of ours."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis
from celery import bootsteps
from celery.worker import state
from redis.backoff import NoBackoff
from redis.retry import Retry

from bell.outages import explain_outage
from bell.redis_celery import BROKER_SILENCE_SECONDS, RING_TASK, create_celery, key_prefix, queue_name, ring_queue

RESTART_SECONDS = 1.0
"""Pause before a consumer that ended is started again."""

logger = logging.getLogger(__name__)


class RedisRingListener:
    """A :class:`bell.interfaces.RingListener` on Celery's solo pool.

    A process can have only one, since Celery keeps its state in globals.

    ``on_start`` is called before the worker connects to anything, so it is called even if Redis is away. ``on_ring`` is
    called in the listening thread and must return at once.
    """

    def __init__(self, redis_url: str, prefix: str, models: Sequence[str], on_ring: Callable[[], None]) -> None:
        self._celery = create_celery(redis_url, prefix)
        self._redis_url = redis_url
        self._prefix = prefix
        self._queues = [queue_name(model) for model in models]
        self._on_ring = on_ring

        def ring() -> None:
            on_ring()

        self._celery.conf.task_queues = [ring_queue(model) for model in models]
        self._celery.task(
            ring, name=RING_TASK, ignore_result=True, Strategy=staticmethod(_run_at_once), shared=False, lazy=False
        )
        self._stopped = threading.Event()

    def run(self, on_start: Callable[[], None]) -> None:
        """Consume rings until :meth:`stop`, however often Redis goes away."""
        self._celery.set_current()  # for this thread: Celery looks its tasks up there

        def start() -> None:
            on_start()
            self._say_if_away()

        self._celery.steps["worker"].add(_before_consuming(start))
        state.should_stop = None
        while not self._stopped.is_set():
            worker = self._celery.WorkController(
                pool_cls="solo",
                concurrency=1,
                queues=self._queues,
                without_gossip=True,
                without_mingle=True,
                without_heartbeat=True,
            )
            worker.start()  # returns when told to stop, and when Celery meets an error that it does not handle
            if not self._stopped.is_set():
                logger.error("the consumer of rings ended; it is started again, and the waiting rings are dropped")
                self._drop_rings()
                self._stopped.wait(RESTART_SECONDS)

    def _say_if_away(self) -> None:
        """Log why Redis can't be used. Celery says it, too, but not which setting is to be mended."""
        try:
            with self._connected() as client:
                client.ping()
        except (redis.RedisError, OSError) as error:
            reason = explain_outage(error, self._redis_url)
            logger.warning("Redis can't be used, so this worker finds work by looking for it: %s", reason)

    def _connected(self) -> redis.Redis:
        return redis.Redis.from_url(
            self._redis_url,
            socket_connect_timeout=BROKER_SILENCE_SECONDS,
            socket_timeout=BROKER_SILENCE_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def _drop_rings(self) -> None:
        """Remove all rings of these models. One of them may be malformed, and would end every consumer of the queue.

        Workers of earlier versions note the rings that they have not acknowledged, and put them back into the queue. So
        these are removed, too.
        """
        keys = [f"{key_prefix(self._prefix)}{name}" for name in (*self._queues, "unacked", "unacked_index")]
        try:
            with self._connected() as client:
                client.delete(*keys)
        except redis.RedisError as error:
            logger.warning("the rings could not be dropped: %s", error)
        self._on_ring()  # in place of the dropped ones

    def stop(self) -> None:
        """End the consumer: within a second, or within five if Redis has stopped answering."""
        self._stopped.set()
        state.should_stop = 0  # an exit status; Celery's loop looks at it every second at least


def _run_at_once(task: Any, app: Any, consumer: Any) -> Callable[..., None]:
    """Return a Celery strategy, which runs the task for each of its messages.

    Celery's own strategy makes a request of the message, traces its execution, and acknowledges it. All of that takes
    far longer than the task, and a ring needs none of it.
    """

    def on_message(message: object, body: object, ack: object, reject: object, callbacks: object) -> None:
        task.run()

    return on_message


def _before_consuming(on_start: Callable[[], None]) -> type[Any]:
    """Return a bootstep that calls ``on_start`` once, before Celery's consumer step, which is always the last."""
    started = threading.Event()

    class BeforeConsuming(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
        def start(self, parent: object) -> None:
            if not started.is_set():
                started.set()
                on_start()

    return BeforeConsuming
