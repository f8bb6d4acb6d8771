"""A run is scored by one template from its first row to its last, whatever becomes of the template's file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scoreline import Client, InvalidRequest
from scoreline.exit_codes import CommandError
from scoreline.runs.journal import Journal
from tests.scoreline.client.unreliable import Got, Reply, answering, passed_on
from tests.scoreline.running import CommandUp, Up
from tests.scoreline.runs.files import ROWS, execute, plan_of, write_csv

BY_TEMPLATE: dict[str, Any] = {"labels": (), "options": {"template": "yes-no"}}


@pytest.mark.parametrize("changed", [{"template": "0123"}, {"labels": [" no", " yes"]}])
def test_a_run_does_not_go_on_with_a_changed_template(
    shared_up: Up, client: Client, tmp_path: Path, changed: dict[str, Any]
) -> None:
    plan = plan_of(write_csv(tmp_path / "in.csv", ROWS[:3]), tmp_path / "out.csv", **BY_TEMPLATE)
    (model,) = client.models()
    (template,) = (template for template in model.templates if template.name == "yes-no")
    served = {"models": [model.id], "template": template.digest, "labels": template.labels}
    journal = Journal(plan.journal, plan.fingerprint(), plan.files)
    journal.note("served", served | changed)
    journal.add_job("key", 0, "job_0123")
    journal.close()
    with pytest.raises(CommandError, match=r"the template yes-no of the service was changed .* --restart") as refused:
        execute(plan, shared_up.url)
    assert refused.value.exit_code == 2
    execute(replace(plan, restart=True), shared_up.url)


def test_each_job_of_a_run_names_the_template_as_it_was_when_the_run_began(shared_up: Up, tmp_path: Path) -> None:
    """So a service that was started again with another one refuses the job."""
    plan = plan_of(write_csv(tmp_path / "in.csv", ROWS[:3]), tmp_path / "out.csv", **BY_TEMPLATE)

    def with_another_digest(got: Got) -> Reply:
        reply = passed_on(shared_up.url, got)
        if got.path != "/v1/models":
            return reply
        assert isinstance(reply.body, bytes)
        models = json.loads(reply.body)
        for template in models["data"][0]["templates"]:
            template["digest"] = "0123"
        return Reply(reply.status, models)

    with answering(with_another_digest) as server, pytest.raises(InvalidRequest, match="yes-no was changed"):
        execute(plan, server.url)
    execute(plan, shared_up.url)


FILE = """
query = "{query}"
item = "{item}"
labels = [%s]
relevance = "softmax(0)"
"""


@pytest.mark.slow
def test_a_run_ends_with_an_error_if_the_file_of_its_template_was_changed(
    start_up: Callable[..., CommandUp], tmp_path: Path
) -> None:
    rows = [*ROWS[:20], ROWS[20] | {"item": "too long " * 600}]
    source, path = write_csv(tmp_path / "in.csv", rows), tmp_path / "mine.toml"
    plan = plan_of(source, tmp_path / "out.csv", labels=(), options={"template": "mine"}, concurrency=1)

    def run_with(labels: str, says: str) -> None:
        path.write_text(FILE % labels)
        up = start_up(SCORELINE_TEMPLATE=str(path))
        up.wait_until_ready()
        with pytest.raises(CommandError, match=says):
            execute(plan, up.url)
        up.close()

    run_with('" yes", " no"', "line 22")
    run_with('" no", " yes"', "the template mine of the service was changed")
    run_with('" yes", " no"', "line 22")
