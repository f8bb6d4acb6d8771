"""The command that measures a device: its parts, its budget of time, its page, and on a CPU all of its paths."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.algorithms import ALGORITHMS, planned_by
from benchmarks.device import gates, pytorch
from benchmarks.device.findings import Finding, Part, findings_of
from benchmarks.device.page import Report
from benchmarks.device.scale import Scale
from benchmarks.machine import bf16_gflops
from benchmarks.workloads import WORKLOADS
from scoring.planning.algorithms import Policy
from scoring.planning.estimates import Estimator, Rates, Shapes
from scoring.planning.lengths import GroupLengths
from scoring.planning.planner import Planner
from tests.forked.running import WORKER, run
from tests.model import engines
from tests.model.checkpoints import CONFIGS

FAR = 600.0  # seconds
GATES = {"float32": 19, "bfloat16": 18}
"""The gates of correctness of one model, by its dtype."""


def two() -> Iterator[Finding]:
    yield Finding("a part", "one", {"found": 1.0})
    yield Finding("a part", "two", {"found": 2.0})


def one_and_then_nothing() -> Iterator[Finding]:
    yield Finding("a part", "one", {"found": 1.0})
    threading.Event().wait()


def one_and_then_an_error() -> Iterator[Finding]:
    yield Finding("a part", "one", {"found": 1.0})
    raise RuntimeError("the device is gone")


def test_a_part_is_run_to_its_end() -> None:
    assert list(findings_of(Part("a part", two), time.time() + FAR)) == list(two())


def test_a_part_is_ended_when_the_time_is_over_and_keeps_what_it_has_found() -> None:
    found = findings_of(Part("a part", one_and_then_nothing), time.time() + 8)
    names = [one.name for one in found]
    assert names in (["one", "ended"], ["ended"]), "on a machine this busy, it may not have begun"


def test_a_part_that_fails_says_so_and_keeps_what_it_has_found() -> None:
    found = list(findings_of(Part("a part", one_and_then_an_error), time.time() + FAR))
    assert [one.name for one in found] == ["one", "failed"]


def test_nothing_begins_when_the_time_is_over() -> None:
    (found,) = findings_of(Part("a part", two), time.time())
    assert found == Finding("a part", "not run", {"note": "no time was left"})


REPORT = Report(
    "2026-11-23",
    "NVIDIA H200",
    {"jax": "0.10.1"},
    "python -m benchmarks.device",
    [
        Finding("gates", "right", {"found": 1e-5, "allowed": 1e-4, "passed": True}),
        Finding("workloads", "target", {"items_per_s": 12_345.6, "note": "a | b"}),
    ],
)


def test_the_page_has_a_table_for_each_part(tmp_path: Path) -> None:
    page = REPORT.write(tmp_path / "results")
    assert page.name == "2026-11-23-nvidia-h200.md"
    text = page.read_text()
    assert "1 of 1 gates hold." in text
    assert "## Gates\n\n|  | found | allowed | passed |" in text
    assert "| right | 1e-05 | 0.0001 | yes |" in text
    assert "| target | 12,346 | a / b |" in text
    stored = json.loads(page.with_suffix(".json").read_text())
    assert stored["findings"][1]["values"]["items_per_s"] == 12_345.6


@pytest.mark.parametrize(
    ("finding", "told"),
    [
        (Finding("gates", "wrong", {"found": 1.0, "passed": False}), "1 of 2 gates hold. These do not: gates: wrong."),
        (Finding("speed", "failed", {"note": "gone"}), "These do not: speed: failed. Not complete: speed."),
    ],
)
def test_a_gate_that_does_not_hold_and_a_part_that_failed_are_told_at_the_top(finding: Finding, told: str) -> None:
    report = replace(REPORT, findings=[*REPORT.findings, finding])
    assert report.failed == [finding]
    assert told in report.page().splitlines()[4]


def test_what_was_left_out_is_told_but_is_no_failure() -> None:
    report = replace(REPORT, findings=[*REPORT.findings, Finding("PyTorch", "not run", {"note": "no time was left"})])
    assert not report.failed
    assert "Not complete: PyTorch." in report.page()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_tiny_workload_is_tiny_and_any_other_is_whole(name: str) -> None:
    tiny = Scale("demonstration", tiny=True).workload(name)
    assert tiny.longest <= 78
    assert 0 < tiny.items <= 6
    assert Scale("qwen3-0.6b").workload(name) is WORKLOADS[name]


def test_torch_is_measured_only_where_it_has_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (found,) = pytorch.pytorch("cached", "gpu", Scale("demonstration", tiny=True), 1.0)
    assert found.values == {"note": "torch is not installed, so nothing was measured beside it"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert pytorch.absence("cpu") is None
    assert pytorch.absence("tpu") == "torch has no device of the kind tpu here, so nothing was measured beside it"


def test_products_may_be_called_together() -> None:
    assert bf16_gflops(1, (8, 16, 8), together=3) > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_existing_planner_plans_by_another_algorithm_meanwhile(name: str) -> None:
    policy = Policy("auto", "auto", prefill_extend_enabled=True, min_prefix_tokens=64, max_packed_tokens=512)
    planner = Planner(policy, Estimator(CONFIGS["tied"].size, Rates.of("cpu"), Shapes((64,), 64, (512,), 128)))
    group = GroupLengths(100, np.array([5, 9], np.int32), np.array([100, 100], np.int32))
    with planned_by(ALGORITHMS[name]):
        (one,) = planner.plan(group)
    assert one.choice.algorithm == name
    assert planner.plan(group)[0].choice.algorithm == "prefill_extend"


@pytest.mark.slow
def test_the_gates_notice_wrong_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next test shows that they hold for right ones."""
    logprobs = engines.logprobs
    monkeypatch.setattr(engines, "logprobs", lambda *arguments: logprobs(*arguments) * 1.01)
    found = next(gates.gates("tied", "float32", Scale("demonstration", tiny=True)))
    assert found.name == "tied, float32: serial against HuggingFace, log-probabilities"
    assert not found.values["passed"]


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_all_paths_run_on_a_cpu(tmp_path: Path) -> None:
    options = ("--tiny", "--minutes", "15", "--out", str(tmp_path))
    outcome = run("-m", "tests.benchmarks.in_one_process", "device", *options, imports=WORKER, timeout=900)
    assert outcome.returncode == 0, outcome.stderr
    (stored,) = tmp_path.glob("*.json")
    report = json.loads(stored.read_text())
    by_part: dict[str, list[str]] = {}
    for one in report["findings"]:
        by_part.setdefault(one["part"], []).append(one["name"])
    gates_of = [name.partition(":")[0] for name in by_part["gates of correctness"]]
    assert {dtype: gates_of.count(f"tied, {dtype}") for dtype in GATES} == GATES
    assert by_part["workloads"] == list(WORKLOADS)
    assert by_part["algorithms, on the target workload"] == list(ALGORITHMS)
    assert by_part["bits"][-1] == "another process, beside strangers, in reverse"
    assert set(by_part[pytorch.PART]) == set(pytorch.WAYS.values())
    assert "gates hold.\n" in stored.with_suffix(".md").read_text(), "all parts ran"
