"""The process of a scoring worker with a real, tiny checkpoint."""

from __future__ import annotations

import json
from collections.abc import Hashable
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pytest

from api.results import KnownProvenances
from checkpoints.card import ModelCard
from jobs.queue.read import read_scores
from jobs.queue.worker_registry import live_workers
from model.engine import Engine
from model.layerwise.output_mlp import OutputMLPKey
from model.platforms import Platform
from model.programs.label_head import HeadKey
from model.whole_steps.extend import ExtendKey
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from scoring.planning.description import planner_of
from scoring.tokenizing.tokenization import TextTokenizer
from settings.engine import EngineSettings
from settings.version import VERSION
from tests.services import wait_until
from tests.workers.conftest import LABELS, MODEL, Store
from tests.workers.engine_loop.processes.real_workers import worker


def test_a_worker_scores_with_the_real_engine_and_registers_what_it_serves(sqlite_url: str, checkpoint: Path) -> None:
    store = Store(sqlite_url)
    job_id = store.submit(chunks=3, tokenizer=TextTokenizer.load(checkpoint).fingerprint)
    running = worker(checkpoint, database_url=sqlite_url)
    try:
        store.wait_for(job_id)
        (record,) = live_workers(store.database, 20.0)
        names = [file.read_text() for file in Path(f"/proc/{running.process.pid}/task").glob("*/comm")]
        assert sum(name.startswith("tf_XLAEigen") for name in names) == 1, "a small model is computed by one thread"
        running.process.terminate()
        assert running.process.wait(20) == 0
    finally:
        running.process.kill()
    assert "Traceback" not in running.log
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


def test_invalid_settings_are_refused_with_one_clear_message(sqlite_url: str, checkpoint: Path) -> None:
    status, log = worker(checkpoint, database_url=sqlite_url, claim_seconds="soon").ended()
    assert status == 2, log
    assert "Traceback" not in log
    assert "SCORELINE_CLAIM_SECONDS is 'soon': it must be" in log


@pytest.mark.slow
def test_a_signal_while_the_model_loads_ends_the_worker_at_once(sqlite_url: str, checkpoint: Path) -> None:
    running = worker(checkpoint, database_url=sqlite_url, multi_item_enable_startup_warmup=True)
    wait_until(lambda: "compiling" in running.log, "the worker compiles its programs", 60.0)
    running.process.terminate()
    assert running.process.wait(5) == 0


MISCOMPILING = "tests.workers.engine_loop.processes.miscompiling_worker"


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
    status, log = worker(checkpoint, MISCOMPILING, *wrong, database_url=sqlite_url, **settings).ended(120.0)
    assert status == 1, log
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
    running = worker(checkpoint, MISCOMPILING, *wrong, database_url=sqlite_url, **settings)
    try:
        store.wait_for(job_id)
    finally:
        running.process.terminate()
        _, log = running.ended(20.0)
    assert "bits of scores depend on their company" in [json.loads(line)["event"] for line in log.splitlines()]


@pytest.mark.slow
def test_a_program_that_is_compiled_wrongly_beside_the_work_ends_the_worker(sqlite_url: str, checkpoint: Path) -> None:
    wrong = str(HeadKey(Head.LOGITS, 128, 64))
    settings = {"multi_item_enable_startup_warmup": True, "step_tokens": 64}
    status, log = worker(checkpoint, MISCOMPILING, wrong, database_url=sqlite_url, **settings).ended(120.0)
    assert status == 1, log
    lines = [json.loads(line) for line in log.splitlines()]
    (ended,) = [line for line in lines if line["level"] in ("error", "critical")]
    assert f"output 0 of {wrong} differs from NumPy's by 0." in ended["event"]
    assert "compiled" not in [line["event"] for line in lines]
