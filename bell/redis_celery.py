"""The Celery application: one task, one queue for each model, and no more of Celery than rings need.

It has no result backend, events, gossip, mingle, heartbeats or remote control: the state of the work is in SQL, where
each worker also keeps a row that shows it is alive.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

RING_TASK = "scoreline.ring"

BROKER_SILENCE_SECONDS = 5.0
"""How long Redis may take to answer a command before the connection counts as lost."""


def key_prefix(prefix: str) -> str:
    """Return what every key of this deployment in Redis starts with."""
    return f"{prefix}:"


def queue_name(model: str) -> str:
    """Return the name of a model's queue of rings: in Redis, a list. Its key is :func:`key_prefix` and this name."""
    return f"ring.{model}"


def ended_channel(prefix: str) -> str:
    """Return the name of the publish/subscribe channel on which ended jobs are announced."""
    return f"{key_prefix(prefix)}ended"


def create_celery(redis_url: str, prefix: str, *, silence_seconds: float = BROKER_SILENCE_SECONDS) -> Any:
    """Return a Celery application, not yet connected. Celery has no types, hence ``Any``."""
    app = Celery("scoreline", broker=redis_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        # A ring is acknowledged before it is acted on: the work does not depend on it.
        task_acks_late=False,
        task_send_sent_event=False,
        # No limit. If there were one, rings whose acknowledgement was lost in an outage would use it up: the consumer
        # would ask Redis for nothing more, never notice that its connection is gone, and hear nothing ever again.
        worker_prefetch_multiplier=0,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # Celery warns if it is unset
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        # Redis may be away when a worker starts, and may go away at any time.
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=silence_seconds,
        broker_transport_options={
            "global_keyprefix": key_prefix(prefix),
            "visibility_timeout": 120,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            # A consumer whose connection the network has lost connects again after twice this time.
            "health_check_interval": 5,
            "socket_keepalive": True,
            "socket_connect_timeout": silence_seconds,
            "socket_timeout": silence_seconds,
        },
    )
    return app
