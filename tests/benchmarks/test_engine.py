"""The output of the command that measures the engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command on the bundled model, without what peers need, and with packed sequences of few sizes to compile."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SCORELINE_MULTI_ITEM_PRECOMPILE_BUCKETS": "320", "SCORELINE_MAX_MULTI_ITEM_SEQ_LEN": "512"}
    command = [sys.executable, "-m", "benchmarks.engine", "--shape", "demonstration", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_last_line_is_one_json_object_of_the_documented_shape() -> None:
    asked = ("--workload", "100x10x100", "--items", "2", "--repeats", "1", "--algorithms", "packed_segment")
    outcome = run(*asked)
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert set(report) == {"workload", "bf16_gflops", "algorithms", "peers"}
    assert report["workload"] == "100x10x100"
    assert report["bf16_gflops"] > 0
    assert report["peers"] == {}
    assert set(report["algorithms"]) == {"packed_segment"}
    figures = report["algorithms"]["packed_segment"]
    assert set(figures) == {"items_per_s", "share_of_rate", "peak_memory_gb", "necessary_tflop"}
    assert all(figure > 0 for figure in figures.values())
    assert "linear: 2 x weights" in outcome.stderr
    assert "320 tokens computed, 300 necessary: 1.07 times as many" in outcome.stderr


def test_a_peer_that_is_not_installed_is_refused_before_anything_is_measured() -> None:
    outcome = run("--peers", "llama_cpp")
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    assert outcome.stderr == "llama_cpp needs llama_cpp: make peers, and PYTHONPATH=.peers\n"
