"""The Celery application: one task, one queue for each model, and no more of Celery than rings need.

It has no result backend, events, gossip, mingle, heartbeats or remote control: the state of the work is in SQL, where
each worker also keeps a row that shows it is alive.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from celery import Celery
from kombu.entity import Exchange, Queue

RING_TASK = "scoreline.ring"

BROKER_SILENCE_SECONDS = 5.0
"""How long Redis may take to answer a command before the connection counts as lost."""


def key_prefix(prefix: str) -> str:
    """Return what every key of this deployment in Redis starts with."""
    return f"{prefix}:"


def queue_name(model: str) -> str:
    """Return the name of a model's queue of rings: in Redis, a list. Its key is :func:`key_prefix` and this name."""
    return f"ring.{model}"


def ring_queue(model: str) -> Queue:
    """Return a model's queue of rings, as its workers declare it.

    Redis forgets a ring as soon as a worker has taken it. To note each ring until it is acknowledged would cost two
    transactions, and would save a ring only from a worker that ends within a millisecond.
    """
    name = queue_name(model)
    return Queue(name, Exchange(name), name, no_ack=True)  # type: ignore[no-untyped-call]


def ring_message(model: str) -> bytes:
    """Return a ring as Celery puts it into the queue of ``model`` in Redis.

    All rings of a model say the same, so one message serves for all of them. Celery needs longer to make it than Redis
    to store it.
    """
    name = queue_name(model)
    with Celery(broker="memory://", set_as_current=False) as app, app.connection_for_write() as connection:
        app.send_task(RING_TASK, queue=name, connection=connection, declare=[], ignore_result=True)
        message = connection.default_channel.basic_get(name, no_ack=True)
    return json.dumps(message.serializable()).encode()


def ended_channel(prefix: str) -> str:
    """Return the name of the publish/subscribe channel on which ended jobs are announced."""
    return f"{key_prefix(prefix)}ended"


def create_celery(redis_url: str, prefix: str) -> Any:
    """Return the Celery application of a worker, not yet connected. Celery has no types, hence ``Any``."""
    app = Celery("scoreline", broker=_broker_url(redis_url), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_send_sent_event=False,
        worker_prefetch_multiplier=0,  # no limit on what is not yet acknowledged, since nothing is ever acknowledged
        worker_cancel_long_running_tasks_on_connection_loss=True,  # Celery warns if it is unset
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        # Redis may be away when a worker starts, and may go away at any time.
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=BROKER_SILENCE_SECONDS,
        broker_transport_options={
            "global_keyprefix": key_prefix(prefix),
            "priority_steps": [0],  # one list for each queue, instead of one for each of four priorities
            # Rings are not acknowledged (see :func:`ring_queue`), so there are none to put back into their queue.
            "unacked_restore_interval": 3600,
            # A consumer whose connection the network has lost connects again after twice this time.
            "health_check_interval": 5,
            "socket_keepalive": True,
            "socket_connect_timeout": BROKER_SILENCE_SECONDS,
            "socket_timeout": BROKER_SILENCE_SECONDS,
        },
    )
    return app


def _broker_url(redis_url: str) -> str:
    """Return the URL with those of redis-py's options that Celery takes, which are those of TLS.

    It is told to check the other side's certificate, as redis-py does by default.
    """
    parts = urlsplit(redis_url)
    given = dict(parse_qsl(parts.query))
    options = {"ssl_cert_reqs": "required"} if parts.scheme == "rediss" else {}
    options |= {name: value for name, value in given.items() if name.startswith("ssl_")}
    path = f"/{given['db']}" if "db" in given else parts.path
    return urlunsplit(parts._replace(path=path, query=urlencode(options)))
