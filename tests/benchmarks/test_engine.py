"""The output of the command that measures the engine."""

import json
import os

import pytest

from tests.forked.running import COMMAND, WORKER, run

SHAPE = ("--shape", "demonstration")
FEW_SIZES = {"SCORELINE_MULTI_ITEM_PRECOMPILE_BUCKETS": "320", "SCORELINE_MAX_MULTI_ITEM_SEQ_LEN": "512"}
"""Packed sequences of few sizes to compile."""


@pytest.mark.slow
def test_the_last_line_is_one_json_object_of_the_documented_shape() -> None:
    asked = ("--workload", "100x10x100", "--items", "2", "--repeats", "1", "--algorithms", "packed_segment")
    command = ("-m", "tests.benchmarks.in_one_process", "engine", *SHAPE, *asked)
    outcome = run(*command, imports=WORKER, environment=os.environ | FEW_SIZES)
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
    outcome = run("-m", "benchmarks.engine", *SHAPE, "--peers", "llama_cpp", imports=COMMAND)
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    assert outcome.stderr == "llama_cpp needs llama_cpp: make peers, and PYTHONPATH=.peers\n"
