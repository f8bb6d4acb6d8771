"""Hold a running service against its OpenAPI document with schemathesis: nothing undocumented, and no server error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.deployment import ROOT

HOOKS = "tests.hostile.schemathesis_hooks"

LEFT_OUT = (
    # The hooks have a check that knows which server errors are right answers.
    "not_a_server_error",
    # No schema can say that a text is one token to the model, or that an Idempotency-Key is new.
    "positive_data_acceptance",
)


def undocumented_answers(url: str, key: str, folder: Path, *, examples: int, seed: int) -> str:
    """Return what schemathesis has to complain about; nothing if it is content.

    examples: requests by chance for each operation, besides those that schemathesis makes systematically.
    """
    options = {
        "--header": f"Authorization: Bearer {key}",
        "--checks": "all",
        "--exclude-checks": ",".join(LEFT_OUT),
        "--max-examples": str(examples),
        "--seed": str(seed),
        "--generation-database": "none",
        "--request-timeout": "60",
        "--suppress-health-check": "all",
    }
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += [text for option in options.items() for text in option]
    done = subprocess.run(
        [*command, "--continue-on-failure", "--no-shrink", "--no-color"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": HOOKS},
        capture_output=True,
        text=True,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
