"""The examples with engines and frameworks of others run unchanged, each with the packages of a folder of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scoreline.conftest import demonstration  # noqa: F401 (a fixture)
from tests.scoreline.running import ROOT, Up

pytestmark = pytest.mark.integrations

FOLDER = Path(os.environ.get("INTEGRATIONS", ".integrations")).absolute()


def printed(up: Up, name: str, packages: str, **variables: str) -> str:
    """Return what an example prints."""
    environment = os.environ | {"SCORELINE_URL": up.url, "PYTHONPATH": f"{FOLDER / packages}{os.pathsep}{ROOT}"}
    run = subprocess.run(
        [sys.executable, *name.split()],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("engine", ["dagster", "duckdb", "ray", "spark"])
def test_an_engine_classifies_reviews_as_a_reader_would(demonstration: Up, engine: str) -> None:  # noqa: F811
    found = printed(demonstration, f"examples/{engine}_reviews.py", "dagster" if engine == "dagster" else "tables")
    right = re.search(r"(\d+) of 600 reviews are classified as a reader would", found)
    assert right is not None, found
    assert int(right[1]) >= 540


def test_the_page_of_tables_runs_from_its_beginning_to_its_end(demonstration: Up, tmp_path: Path) -> None:  # noqa: F811
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    program = tmp_path / "page.py"
    program.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)))
    found = printed(demonstration, str(program), "tables")
    assert "Cost(items=20, prompt_tokens=" in found
    means = re.findall(r"avg\(positive\)=(0\.\d+)|^\[\((0\.\d+),\)\]$|^(0\.\d+)$", found, re.MULTILINE)
    assert len(means) == 4, found
    *_, of_duckdb, of_ray, of_spark = (float("".join(mean)) for mean in means)
    assert of_duckdb == pytest.approx(of_ray) == pytest.approx(of_spark)


def test_frameworks_rank_by_the_classes_that_they_have(demonstration: Up, tmp_path: Path) -> None:  # noqa: F811
    quiet = {"HAYSTACK_TELEMETRY_ENABLED": "False", "NLTK_DATA": str(tmp_path)}
    found = printed(demonstration, "examples/framework_rerankers.py", "frameworks", **quiet)
    best = re.findall(r"^(\w+): (\S+) Water the fern", found, re.MULTILINE)
    assert [name for name, _ in best] == ["LangChain", "LlamaIndex", "Haystack"]
    assert all(float(score) > 0.5 for _, score in best)


def test_a_workflow_of_airflow_defers_until_its_job_has_ended(demonstration: Up, tmp_path: Path) -> None:  # noqa: F811
    airflow = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "examples"),
    }
    printed(demonstration, "-m airflow db migrate", "airflow", **airflow)
    found = printed(demonstration, "examples/airflow_scoring.py", "airflow", **airflow)
    assert "Pausing task as DEFERRED" in found
    assert "2 of 4 reviews are positive" in found
    assert "the workflow ended with: success" in found


def test_metrics_of_deepeval_are_decided_without_a_model_that_writes(demonstration: Up, tmp_path: Path) -> None:  # noqa: F811
    quiet = {"DEEPEVAL_TELEMETRY_OPT_OUT": "YES", "DEEPEVAL_CACHE_FOLDER": str(tmp_path)}
    found = printed(demonstration, "examples/deepeval_decisions.py", "deepeval", **quiet)
    assert re.findall(r"(passes|fails): (\w+ \w+)", found) == [("passes", "My parcel"), ("fails", "The app")]


def test_promptfoo_compares_prompts(demonstration: Up, tmp_path: Path) -> None:  # noqa: F811
    installed = FOLDER / "promptfoo" / "node_modules"
    program = [f"{installed}/.bin/node", f"{installed}/promptfoo/dist/src/entrypoint.js", "eval"]
    few = ["--config", "examples/promptfoo.yaml", "--filter-first-n", "100", "--no-cache"]
    found = tmp_path / "found.json"
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1", "PROMPTFOO_CONFIG_DIR": str(tmp_path)}
    evaluated = subprocess.run(
        [*program, *few, "--output", str(found)],
        env=os.environ | quiet | {"SCORELINE_URL": demonstration.url, "PROMPTFOO_PASS_RATE_THRESHOLD": "85"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    counts = json.loads(found.read_text())["results"]["stats"]
    assert counts["errors"] == 0
    assert counts["successes"] + counts["failures"] == 200  # two prompts
