"""Hear from Redis which jobs have ended."""

from __future__ import annotations

import asyncio
import logging

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from bell.interfaces import OnEnded
from bell.notices import decode_notices
from bell.outages import explain_outage
from bell.redis_celery import ended_channel

CONNECT_SECONDS = 2.0  # for connecting to Redis, and as long again for subscribing
QUIET_SECONDS = 2.0  # after so much quiet Redis is asked for a sign of life, and has as long to give it
FIRST_PAUSE_SECONDS = 0.1  # before the first attempt to connect again; each further pause is twice as long
LONGEST_PAUSE_SECONDS = 5.0

logger = logging.getLogger("bell.notices")


class RedisEndedJobsListener:
    """An EndedJobsListener on a channel of Redis. It does not hear what is published while it is not connected."""

    def __init__(self, redis_url: str, prefix: str) -> None:
        self._redis_url = redis_url
        self._channel = ended_channel(prefix)

    async def listen(self, on_ended: OnEnded) -> None:
        """Subscribe and call ``on_ended`` with each job until cancelled. Pauses between reconnections grow."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            client = redis.asyncio.Redis.from_url(
                self._redis_url,
                socket_connect_timeout=CONNECT_SECONDS,
                # With a time limit here, redis-py sends with asyncio.wait_for, which in Python 3.11 swallows a
                # cancellation that comes when the command has just been sent. So the limits are set below.
                socket_timeout=None,
                retry=Retry(NoBackoff(), 0),
            )
            try:
                async with client, client.pubsub() as subscription:
                    async with asyncio.timeout(2 * CONNECT_SECONDS):
                        await subscription.subscribe(self._channel)
                    asked = False
                    while True:
                        # When the connection is lost, redis-py connects once more before it raises the error.
                        async with asyncio.timeout(QUIET_SECONDS + 2 * CONNECT_SECONDS):
                            message = await subscription.get_message(timeout=QUIET_SECONDS)
                        if message is None:
                            # The network may have lost the connection, and then nobody would ever say so.
                            if asked:
                                raise redis.TimeoutError("Redis does not answer")
                            async with asyncio.timeout(QUIET_SECONDS):
                                await subscription.ping()
                        else:
                            pause = FIRST_PAUSE_SECONDS
                            if message["type"] == "message":
                                for job_id, result in decode_notices(message["data"]).items():
                                    on_ended(job_id, result)
                        asked = message is None
            except (redis.RedisError, OSError) as error:
                logger.warning("no notices from Redis: %s", explain_outage(error, self._redis_url))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
