"""Each worker of a host has a device of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from jobs.queue.worker_registry import live_workers
from scoring.tokenizing.tokenization import TextTokenizer
from tests.services import wait_until
from tests.workers.conftest import Store
from tests.workers.engine_loop.processes.real_workers import RealWorker, worker
from workers.engine_loop import libraries
from workers.engine_loop.devices import DeviceError, hold, names, show_only, take

WORKERS = 4
QUERIES = 16


def test_a_device_whose_library_is_known_to_compute_wrong_results_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "OF_PLATFORM", {"cpu": ("jax", "not installed")})
    installed = libraries.versions_of("cpu")
    assert list(installed) == ["jax"]
    take([])[1].close()
    monkeypatch.setattr(libraries, "BROKEN", {"jax": {installed["jax"]: "it adds wrongly"}})
    with pytest.raises(
        DeviceError, match=rf"^jax {installed['jax']} is known to compute wrong results: it adds wrongly;"
    ):
        take([])
    assert libraries.fault_of({"libtpu": "0.0.41"}) is None


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("NVRM version: unknown\n", None),
        (None, None),
    ],
)
def test_the_driver_tells_its_version(told: str | None, version: str | None, tmp_path: Path) -> None:
    path = tmp_path / "version"
    if told is not None:
        path.write_text(told)
    assert libraries.driver_version(path) == version


def test_accelerator_libraries_see_only_the_device_of_the_worker() -> None:
    environment: dict[str, str] = {}
    show_only([2], environment)
    assert environment == {
        "CUDA_VISIBLE_DEVICES": "2",
        "TPU_VISIBLE_CHIPS": "2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_PORT": "8478",
    }


@pytest.mark.parametrize(
    ("devices", "bounds"), [((0, 1), "1,2,1"), ((4, 5, 6, 7), "2,2,1"), (tuple(range(8)), "2,4,1"), ((0, 1, 2), None)]
)
def test_accelerator_libraries_see_all_devices_of_a_worker_that_has_several(
    devices: tuple[int, ...], bounds: str | None
) -> None:
    environment: dict[str, str] = {}
    show_only(devices, environment)
    named = ",".join(map(str, devices))
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["TPU_VISIBLE_CHIPS"]) == (named, named)
    assert environment.get("TPU_CHIPS_PER_PROCESS_BOUNDS") == bounds
    assert environment["TPU_PROCESS_PORT"] == str(8476 + devices[0])


def test_devices_are_counted_among_those_that_the_operator_leaves_visible() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "5, GPU-8932f937"}
    show_only([1], environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-8932f937"
    with pytest.raises(DeviceError, match=r"SCORELINE_DEVICES=2: .* leaves 2, numbered from 0"):
        show_only([2], {"CUDA_VISIBLE_DEVICES": "5,7"})


@pytest.mark.parametrize(
    ("visible", "devices", "held"),
    [
        ({}, (), ["0"]),
        ({}, (3,), ["3"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (), ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (0,), ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "4, 5,GPU-8932f937"}, (1, 2), ["5", "GPU-8932f937"]),
    ],
)
def test_a_worker_holds_devices_by_the_names_that_they_have_on_the_host(
    visible: dict[str, str], devices: tuple[int, ...], held: list[str]
) -> None:
    """Their numbers among those that are visible are the same for workers that see different ones."""
    environment = dict(visible)
    if devices:
        show_only(devices, environment)
    assert names("gpu", max(1, len(devices)), environment) == held


def test_the_chips_of_a_tpu_are_held_by_their_own_names() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "7"}
    show_only([0], environment)
    assert names("tpu", 1, environment) == ["0"]
    assert names("tpu", 1, {"TPU_VISIBLE_CHIPS": "2"}) == ["2"]


def test_a_device_that_is_absent_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"SCORELINE_DEVICES=99: there is no such device; jax finds \d+ here.* cpu"):
        take([99])


def test_a_device_is_taken_once_until_its_holder_ends() -> None:
    held = hold("made up", 0)
    assert held is not None
    with pytest.raises(DeviceError, match="device 0 of the kind made up is taken"):
        hold("made up", 0)
    held.close()
    again = hold("made up", 0)
    assert again is not None
    again.close()


def refusal_of(refused: RealWorker) -> tuple[int, str]:
    """The exit status of a worker that can't start, and the reason in its one line of error."""
    status, log = refused.ended(120.0)
    (error,) = [line for line in map(json.loads, log.splitlines()) if line["level"] == "error"]
    return status, error["reason"]


def events(log: str, event: str) -> list[dict[str, Any]]:
    """The lines of a log that tell of an event. The last line may be half written."""
    whole = log[: log.rfind("\n") + 1].splitlines()
    return [line for line in map(json.loads, whole) if line["event"] == event]


def told_chunks(workers: Iterable[RealWorker]) -> int:
    return sum(line["chunks"] for one in workers for line in events(one.log, "scored"))


@pytest.mark.slow
def test_workers_with_a_device_each_drain_one_backlog(
    sqlite_url: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count={WORKERS}")
    store = Store(sqlite_url)

    def start(device: int) -> RealWorker:
        return worker(checkpoint, database_url=sqlite_url, devices=device, claim_seconds=0.01, step_tokens=64)

    workers = [start(device) for device in range(WORKERS)]
    try:
        wait_until(lambda: len(live_workers(store.database, 600.0)) == WORKERS, "all workers have registered", 120.0)
        status, refusal = refusal_of(start(2))
        tokenizer = TextTokenizer.load(checkpoint).fingerprint
        jobs = [store.submit(chunks=1, prefix=[9, query] * 40, tokenizer=tokenizer) for query in range(QUERIES)]
        wait_until(lambda: all(store.status(job).ended for job in jobs), "the backlog is drained", 120.0)
        # A worker tells what it has computed behind its scores, and a stop in between would leave that line out.
        wait_until(lambda: told_chunks(workers) == QUERIES, "all workers have told of the backlog", 60.0)
    finally:
        for one in workers:
            one.process.terminate()
        logs = [one.ended()[1] for one in workers]
    assert status == 1
    assert "device 2 of the kind cpu is taken" in refusal

    loaded = [line["number"] for log in logs for line in events(log, "loaded")]
    assert loaded == list(range(WORKERS)), "no device is used twice"
    computed = [events(log, "computed") for log in logs]
    assert sum(map(bool, computed)) > 1, "several workers share the backlog"
    prefills = sum(of_worker[-1]["prefixes"]["prefills"] for of_worker in computed if of_worker)
    assert prefills == QUERIES, "each query is prefilled only by the worker that claims it"


@pytest.mark.slow
def test_a_worker_with_several_devices_computes_one_model_on_all_of_them(
    sqlite_url: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    store = Store(sqlite_url)

    def start(devices: str) -> RealWorker:
        return worker(checkpoint, database_url=sqlite_url, devices=devices, dtype="float32", step_tokens=64)

    sharing = start("0,1,2,3")
    try:
        wait_until(lambda: len(live_workers(store.database, 600.0)) == 1, "the worker has registered", 200.0)
        status, reason = refusal_of(start("3"))
        assert status == 1
        assert "device 3 of the kind cpu is taken" in reason
        status, reason = refusal_of(start("4,5,6"))
        assert status == 2
        assert "3 devices can't share this model equally" in reason
        assert "num_attention_heads 4" in reason
        tokenizer = TextTokenizer.load(checkpoint).fingerprint
        jobs = [store.submit(chunks=1, prefix=[9, query] * 40, tokenizer=tokenizer) for query in range(4)]
        wait_until(lambda: all(store.status(job).ended for job in jobs), "all jobs are scored", 120.0)
        assert [store.status(job) for job in jobs] == ["succeeded"] * len(jobs)
    finally:
        sharing.process.terminate()
        _, log = sharing.ended()
    (loaded,) = events(log, "loaded")
    assert loaded["number"] == [0, 1, 2, 3]
    assert loaded["device"].endswith(", 4 devices")
