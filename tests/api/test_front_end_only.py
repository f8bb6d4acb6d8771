"""ADR-001: the API process never loads the accelerator library, not even after it has served every route."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.api.every_route import OPERATIONS
from tests.api.tiny_model import TinyModel

SERVE_EVERYTHING = """
import json, sys
from pathlib import Path

from tests.api.every_route import OPERATIONS, WEBHOOK_BODY, job_for, request
from tests.api.serving import running_api

directory, database_url, folder = sys.argv[1:]
with running_api(Path(directory), database_url, Path(folder)) as (api, _):
    documented = api.client.get("/openapi.json").json()["paths"]
    answers = {}
    api.wait(api.submit(**WEBHOOK_BODY, apply_softmax=True)["id"])
    for operation in OPERATIONS:
        response = request(api, operation, job_for(api, operation))
        answers[f"{operation.method} {operation.path}"] = response.status_code
    loaded = sorted({name.partition(".")[0] for name in sys.modules} | {"telemetry.spans"} & sys.modules.keys())
print(json.dumps({"documented": documented, "answers": answers, "loaded": loaded}))
"""


def test_no_accelerator_library_is_loaded_after_serving_every_route(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SERVE_EVERYTHING, str(model.directory), sqlite_url, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    documented = {f"{method} {path}" for path, methods in report["documented"].items() for method in methods}
    assert report["answers"] == {f"{operation.method} {operation.path}": operation.status for operation in OPERATIONS}
    assert set(report["answers"]) == documented
    assert {"fastapi", "scipy", "transformers"} <= set(report["loaded"])
    assert not {"jax", "jaxlib", "flax", "torch", "model", "workers"} & set(report["loaded"])
    assert "telemetry.spans" not in report["loaded"], "nothing is traced unless somebody asks for it"
