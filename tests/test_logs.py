"""The lines of the service and of libraries look alike, and a line that nobody reads harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from settings.errors.endings import Ending

SCRIPT = """
import logging, os, structlog
from settings.logs import configure_logs
configure_logs(fields={"process": 3})
log = structlog.stdlib.get_logger("api.some")
with structlog.contextvars.bound_contextvars(request_id="r"):
    log.info("own", path="/a\\nb")
    logging.getLogger("library").info("of a %s", "library")
log.debug("not shown")
try:
    raise ValueError("why")
except ValueError:
    log.exception("failed")
os.close(2)
log.info("lost")
print("lived")
"""


def test_lines_are_json_with_the_same_fields_and_may_be_lost() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "lived\n"
    own, library, failed = map(json.loads, done.stderr.splitlines())
    assert own.pop("timestamp") <= library.pop("timestamp") <= failed.pop("timestamp")
    same = {"process": 3, "level": "info", "request_id": "r"}
    assert own == same | {"event": "own", "logger": "api.some", "path": "/a\nb"}
    assert library == same | {"event": "of a library", "logger": "library"}
    assert (failed["event"], failed["level"]) == ("failed", "error")
    assert "ValueError: why" in failed["exception"]


def test_the_level_of_the_log_is_a_setting() -> None:
    def logged(level: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"SCORELINE_LOG_LEVEL": level}
        arguments = [sys.executable, "-c", SCRIPT.replace("os.close(2)", "")]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)

    assert [json.loads(line)["event"] for line in logged("error").stderr.splitlines()] == ["failed"]
    assert "not shown" in logged("debug").stderr
    wrong = logged("loud")
    (line,) = map(json.loads, wrong.stderr.splitlines())
    assert (wrong.returncode, line["event"]) == (Ending.MISCONFIGURED, "can't start")
    assert line["reason"].startswith("SCORELINE_LOG_LEVEL is 'loud': it must be debug, info, warning or error; ")
