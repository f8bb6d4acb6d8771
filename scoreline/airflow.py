"""An operator of Airflow 3 that has a job scored while no worker of Airflow waits for it.

Workers and the triggerer find the service, and their key, in ``SCORELINE_URL`` and ``SCORELINE_API_KEY``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from airflow.sdk import BaseOperator, Context, XComArg
from airflow.triggers.base import BaseTrigger, TriggerEvent

from scoreline.client import AsyncClient, Client, JobEnded

OUTAGE_SECONDS = 3600.0
"""For how long a service that is away is waited for."""


class JobTrigger(BaseTrigger):
    """Waits in the triggerer until a job has ended. Its event is the job's id."""

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return how another process makes the same trigger."""
        return f"{JobTrigger.__module__}.{JobTrigger.__qualname__}", {"job_id": self.job_id}

    async def on_kill(self) -> None:
        """Cancel the job of a task that is stopped."""
        async with AsyncClient() as client:
            await client.cancel(self.job_id)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the job."""
        async with AsyncClient(retry_seconds=OUTAGE_SECONDS, outage_seconds=OUTAGE_SECONDS) as client:
            with suppress(JobEnded):  # The operator says so.
                await client.wait(self.job_id)
            yield TriggerEvent(self.job_id)


class ScoreOperator(BaseOperator):
    """Submits a job of scores, defers until it has ended, and returns its id, by which ``client.scores`` reads it.

    query, items: what is scored; items may also be a function that returns them, which is called by the worker, or what
    another task returns.
    options: those of the job, as for :meth:`Client.submit`.

    A task that is tried again and asks the same goes on with the job that it has submitted, unless that one has failed.
    The task fails if the job does. Stopping the task cancels the job.
    """

    template_fields: Sequence[str] = ("query", "options")

    def __init__(
        self,
        *,
        query: str,
        items: Sequence[str] | Callable[[], Sequence[str]] | XComArg,
        options: dict[str, Any],
        **of_airflow: Any,
    ) -> None:
        super().__init__(**of_airflow)
        self.query, self.items, self.options = query, items, options
        # Airflow does so for templates alone, and what stands in an item is none.
        XComArg.apply_upstream_relationship(self, items)

    def execute(self, context: Context) -> None:
        """Submit the job, or find the one that an earlier try has submitted."""
        task = context["ti"]
        given = self.items.resolve(context) if isinstance(self.items, XComArg) else self.items
        given = given() if callable(given) else given
        items = given if isinstance(given, str) else [*given]  # The client refuses a text.
        asked = [task.dag_id, task.run_id, task.task_id, task.map_index, self.query, items, self.options]
        base = f"airflow-{hashlib.blake2b(json.dumps(asked).encode(), digest_size=20).hexdigest()}"
        with Client() as client:
            for attempt in count():
                job = client.submit(self.query, items, idempotency_key=f"{base}-{attempt}", **self.options)
                if not job.ended or job.status == "succeeded":
                    break
        self.defer(trigger=JobTrigger(job.id), method_name=self.resume.__name__)

    def resume(self, _: Context, event: str) -> str:
        """Return the id of the job. Raises JobEnded if it has not succeeded."""
        with Client() as client:
            return client.wait(event).id
