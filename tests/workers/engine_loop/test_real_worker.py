"""The process of a scoring worker with a real, tiny checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Hashable
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pytest

from api.provenances import KnownProvenances
from checkpoints.card import ModelCard
from jobs.queue.read import read_scores
from jobs.queue.worker_registry import live_workers
from model.architecture.config import DecoderConfig
from model.architecture.rope import Rope
from model.architecture.weights import save
from model.buckets import HeadKey, OutputMLPKey
from model.engine import Engine
from model.platforms import Platform
from model.whole_steps.executables import ExtendKey
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from scoring.planning.description import planner_of
from scoring.tokenization import TextTokenizer
from settings.engine import EngineSettings
from settings.version import VERSION
from tests.api.tiny_model import make_model_directory
from tests.model.checkpoints import random_decoder
from tests.services import wait_until
from tests.workers.conftest import LABELS, MODEL, Store

ROOT = Path(__file__).parents[3]
CONFIG = DecoderConfig(
    vocabulary=512,
    width=32,
    layers=2,
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_width=64,
    context=512,
    rope=Rope(10_000.0),
    norm_epsilon=1e-6,
    tied=True,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a tokenizer."""
    directory = make_model_directory(tmp_path_factory.mktemp("checkpoint") / "tiny")
    save(random_decoder(CONFIG), directory)
    return directory


def worker(model: Path, *module: str, **settings: object) -> subprocess.Popen[str]:
    """Start a worker process without a bell, which polls for work.

    module: the module to run and its arguments; by default that of the worker.
    """
    variables = {
        "model": model,
        "model_name": MODEL,
        "multi_item_enable_startup_warmup": False,
        "poll_seconds": 0.1,
        "bell_socket": "/nowhere",
    }
    return subprocess.Popen(
        [sys.executable, "-m", *(module or ("workers.engine_loop",))],
        cwd=ROOT,
        env=os.environ | {f"SCORELINE_{name.upper()}": str(value) for name, value in (variables | settings).items()},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_scores_with_the_real_engine_and_registers_what_it_serves(sqlite_url: str, checkpoint: Path) -> None:
    store = Store(sqlite_url)
    job_id = store.submit(chunks=3, tokenizer=TextTokenizer.load(checkpoint).fingerprint)
    process = worker(checkpoint, database_url=sqlite_url)
    try:
        store.wait_for(job_id)
        (record,) = live_workers(store.database, 20.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        _, log = process.communicate()
    assert "Traceback" not in log
    platform = Platform.of(jax.devices()[0])
    assert (record.card.name, record.card.context_length, record.dtype) == (MODEL, 512, platform.serving_dtype("auto"))
    assert len(record.weights_fingerprint) == 64
    assert record.planning is not None

    engine = Engine.load(checkpoint, EngineSettings(), ModelCard(MODEL, 512, 512, "tokenizer"), platform)
    rows = Rows.pack([[7, 0], [7, 0, 9], [7, 1], [7, 1, 9], [7, 2], [7, 2, 9]], [2] * 6)
    chunk = ChunkWork(1, rows, LABELS, Head.LOGPROBS)
    assert planner_of(record.planning["planner"]) == engine.planner
    (expected,) = engine.score([GroupWork("group", np.array([1, 2], np.int32), (chunk,))], lambda: None)
    page = read_scores(store.database, "default", job_id, 0, 10)
    assert page.scores.logprobs is not None
    assert expected.scores.logprobs is not None
    assert page.scores.logprobs.tobytes() == expected.scores.logprobs.tobytes(), "bit for bit"

    [provenance] = KnownProvenances(store.database).look_up(page.provenances)
    assert provenance is not None
    assert (provenance.model, provenance.revision, provenance.algorithms) == (MODEL, None, ("serial",))
    assert (provenance.weights_fingerprint, provenance.dtype) == (record.weights_fingerprint, record.dtype)
    assert provenance.tokenizer_fingerprint == record.card.tokenizer_fingerprint
    assert (provenance.device, provenance.step_tokens) == (str(platform), platform.step_tokens(None))
    assert provenance.versions == {"scoreline": VERSION, "jax": jax.__version__, "jaxlib": version("jaxlib")}


def _remove_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def _truncate_weights(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def _name_another_family(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))


def _break_configuration(directory: Path) -> None:
    (directory / "config.json").write_text("{")


@pytest.mark.slow  # a quick one is in test_broken_checkpoints.py
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_remove_weights, "model.safetensors"),
        (_truncate_weights, "can't be read"),
        (_name_another_family, "gpt2"),
        (_break_configuration, "config.json"),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_a_checkpoint_that_can_not_be_served_is_refused_with_one_clear_message(
    sqlite_url: str, checkpoint: Path, tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    harm(broken)
    process = worker(broken, database_url=sqlite_url)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1, log
    assert "Traceback" not in log
    errors = [line for line in map(json.loads, log.splitlines()) if line["level"] == "error"]
    assert len(errors) == 1, log
    assert errors[0]["event"] == "can't start"
    assert words in errors[0]["reason"]


def test_invalid_settings_are_refused_with_one_clear_message(sqlite_url: str, checkpoint: Path) -> None:
    process = worker(checkpoint, database_url=sqlite_url, claim_seconds="soon")
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1, log
    assert "Traceback" not in log
    assert "claim_seconds" in log


@pytest.mark.slow
def test_a_signal_while_the_model_loads_ends_the_worker_at_once(sqlite_url: str, checkpoint: Path) -> None:
    process = worker(checkpoint, database_url=sqlite_url, multi_item_enable_startup_warmup=True)
    assert process.stderr is not None
    with process.stderr as log:
        wait_until(lambda: "compiling" in log.readline(), "the worker compiles its programs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


MISCOMPILING = "tests.workers.engine_loop.miscompiling_worker"


@pytest.mark.parametrize(
    ("program", "factor", "reason"),
    [
        (OutputMLPKey(64), (), f"output 0 of {OutputMLPKey(64)} differs from NumPy's by 0."),
        pytest.param(
            ExtendKey(),
            (1 + 2**-12,),
            "copies of known items scored by serial do not have the same bits",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ExtendKey(), (-1.0,), "a known prompt scored by serial differs from NumPy's by ", marks=pytest.mark.slow
        ),
    ],
    ids=["a wrong program of a layer", "a whole step whose bits depend on the place", "a wrong whole step"],
)
def test_a_worker_whose_device_computes_a_program_wrongly_does_not_start(
    program: Hashable, factor: tuple[float, ...], reason: str, sqlite_url: str, checkpoint: Path
) -> None:
    store = Store(sqlite_url)
    # Whole steps are compiled and checked in any case.
    settings = {"multi_item_enable_startup_warmup": not factor, "step_tokens": 64}
    wrong = (str(program), *map(str, factor))
    process = worker(checkpoint, MISCOMPILING, *wrong, database_url=sqlite_url, **settings)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 1, log
    assert "Traceback" not in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["event"] for line in lines if line["level"] in ("error", "critical")] == ["can't start"], log
    assert reason in lines[-1]["reason"]
    assert "ready" not in [line["event"] for line in lines]
    assert live_workers(store.database, 600.0) == []


@pytest.mark.slow
def test_a_worker_that_promises_no_bits_serves_whole_steps_whose_bits_depend_on_the_place(
    sqlite_url: str, checkpoint: Path
) -> None:
    store = Store(sqlite_url)
    job_id = store.submit(tokenizer=TextTokenizer.load(checkpoint).fingerprint)
    settings = {"step_tokens": 64, "batch_invariant": False}
    wrong = str(ExtendKey()), str(1 + 2**-12)
    process = worker(checkpoint, MISCOMPILING, *wrong, database_url=sqlite_url, **settings)
    try:
        store.wait_for(job_id)
    finally:
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert "bits of scores depend on their company" in [json.loads(line)["event"] for line in log.splitlines()]


@pytest.mark.slow
def test_a_program_that_is_compiled_wrongly_beside_the_work_ends_the_worker(sqlite_url: str, checkpoint: Path) -> None:
    wrong = str(HeadKey(Head.LOGITS, 128, 64))
    settings = {"multi_item_enable_startup_warmup": True, "step_tokens": 64}
    process = worker(checkpoint, MISCOMPILING, wrong, database_url=sqlite_url, **settings)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 1, log
    lines = [json.loads(line) for line in log.splitlines()]
    (ended,) = [line for line in lines if line["level"] in ("error", "critical")]
    assert f"output 0 of {wrong} differs from NumPy's by 0." in ended["event"]
    assert "compiled" not in [line["event"] for line in lines]
