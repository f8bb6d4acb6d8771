"""Tasks of Airflow and runs of Dagster that are tried again go on with what they have submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from scoreline import Client
from tests.integrations.conftest import items_since
from tests.integrations.test_examples import printed
from tests.scoreline.conftest import demonstration  # noqa: F401 (a fixture)
from tests.scoreline.running import ROOT, Up

pytestmark = pytest.mark.integrations

OF_AIRFLOW = """
from types import SimpleNamespace
from airflow.sdk.exceptions import TaskDeferred
from scoreline import Client, InvalidRequest
from scoreline.airflow import ScoreOperator

TASK = SimpleNamespace(dag_id="a", run_id="b", task_id="c", map_index=-1)

def submitted(items):
    operator = ScoreOperator(task_id="c", query="A query", items=items, options={"labels": [" yes", " no"]})
    try:
        operator.execute({"ti": TASK})
    except TaskDeferred as deferred:
        return deferred.trigger.job_id

first = submitted(["{{ b }}", "c"])
assert submitted(lambda: iter(["{{ b }}", "c"])) == first
with Client() as client:
    client.wait(first)
assert submitted(["{{ b }}", "c"]) == first
try:
    submitted("a single text")
except InvalidRequest as error:
    print(error)
"""

OF_DAGSTER = """
from importlib.util import module_from_spec, spec_from_file_location
from dagster import DagsterInstance, Definitions, ReexecutionOptions, define_asset_job, execute_job, reconstructable

spec = spec_from_file_location("reviews", "EXAMPLE")
reviews = module_from_spec(spec)
spec.loader.exec_module(reviews)
again_too = Definitions(jobs=[define_asset_job("again")])

def again():
    return Definitions.merge(reviews.definitions, again_too).get_job_def("again")

if __name__ == "__main__":
    with DagsterInstance.local_temp("FOLDER") as instance:
        first = execute_job(reconstructable(again), instance=instance)
        options = ReexecutionOptions(parent_run_id=first.run_id)
        assert execute_job(reconstructable(again), instance=instance, reexecution_options=options).success
"""


def test_a_task_of_airflow_goes_on_with_its_job_and_takes_a_list_of_items(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    before = {job.id for job in client.jobs()}
    program = tmp_path / "program.py"
    program.write_text(OF_AIRFLOW)
    assert "items must be a list of texts, not one text" in printed(shared_up, str(program), "airflow")
    assert items_since(client, before) == 2


def test_a_run_of_dagster_that_is_tried_again_scores_nothing_twice(demonstration: Up, tmp_path: Path) -> None:  # noqa: F811
    example = str(ROOT / "examples" / "dagster_reviews.py")
    program = tmp_path / "program.py"
    program.write_text(OF_DAGSTER.replace("EXAMPLE", example).replace("FOLDER", str(tmp_path)))
    with Client(demonstration.url) as client:
        before = {job.id for job in client.jobs()}
        printed(demonstration, str(program), "dagster")
        assert items_since(client, before) == 600
