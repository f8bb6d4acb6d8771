"""The Celery application: one task, one queue a model, and no more of Celery than a doorbell needs.

No result backend, events, gossip, mingle, heartbeats or remote control: the state of the work is in SQL, and a worker's
liveness is its row there.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

RING_TASK = "scoreline.ring"

BROKER_SILENCE_SECONDS = 5.0
"""How long a connection to Redis may be silent in the middle of a command before it counts as lost."""


def key_prefix(prefix: str) -> str:
    """What every key of ours in Redis starts with."""
    return f"{prefix}:"


def queue_name(model: str) -> str:
    """The queue of a model's rings; in Redis a list of this name, after :func:`key_prefix`."""
    return f"ring.{model}"


def ended_channel(prefix: str) -> str:
    """The publish/subscribe channel of ended jobs."""
    return f"{key_prefix(prefix)}ended"


def create_celery(redis_url: str, prefix: str, *, silence_seconds: float = BROKER_SILENCE_SECONDS) -> Any:
    """A Celery application that connects to nothing yet. Celery has no types, hence ``Any``."""
    app = Celery("scoreline", broker=redis_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        # A ring is acknowledged before it is acted on: the work does not depend on it.
        task_acks_late=False,
        task_send_sent_event=False,
        # No limit. With one, a ring whose acknowledgement is lost in an outage fills it, and the consumer, which then
        # asks Redis for nothing and so never learns that its connection is gone, is deaf for good.
        worker_prefetch_multiplier=0,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # there are none; unset, Celery warns of it
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        # Redis may be absent when a worker starts, and may go away at any time.
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=silence_seconds,
        broker_transport_options={
            "global_keyprefix": key_prefix(prefix),
            "visibility_timeout": 120,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "health_check_interval": 25,
            "socket_keepalive": True,
            "socket_connect_timeout": silence_seconds,
            "socket_timeout": silence_seconds,
        },
    )
    return app
