"""A resource of Dagster: where the service is, and the key."""

from __future__ import annotations

from dagster import ConfigurableResource
from pydantic import Field

from scoreline.client import Client


class ScorelineResource(ConfigurableResource):
    """The service, for assets and ops: ``with scoreline.get_client() as client: ...``.

    For tables, give ``url`` and ``api_key`` to the functions of :mod:`scoreline.frames`, and as ``run`` the id of
    Dagster's first run, ``context.run.root_run_id or context.run.run_id``: what is tried again, an asset or the whole
    run, finds the jobs that it has submitted.
    """

    url: str | None = Field(None, description="The address of the service; without it, SCORELINE_URL.")
    api_key: str | None = Field(None, description="The key; without it, SCORELINE_API_KEY. Take dagster.EnvVar.")

    def get_client(self) -> Client:
        """Return a client, which is closed by its ``with``. Raises ScorelineError if there is no address."""
        return Client(self.url, api_key=self.api_key)
