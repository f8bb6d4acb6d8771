"""``scoreline up --model owner/name``: from a model on the hub to scores over HTTP."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreline.client import Client
from tests.checkpoints.hub_server import Hub, Repository, commit_of
from tests.end_to_end.small_models import expected_scores
from tests.model.checkpoints import CONFIGS, tensors, write
from tests.scoreline.running import REAL, CommandUp, gone
from tests.scoring.tokenizing.tokenizers_under_test import save_qwen2
from tests.services import wait_until

ID = "tiny-org/tiny-qwen3"
CONFIG = replace(CONFIGS["tied"], vocabulary=1024)
QUERY, ITEMS, LABELS = "The answer", [" is", " document: 12"], ["the", " a"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with a tokenizer."""
    return save_qwen2(write(tmp_path_factory.mktemp("checkpoint"), CONFIG, tensors(CONFIG, seed=7)))


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    hub = Hub({ID: Repository({"main": files | {"pytorch_model.bin": b"never"}})})
    yield hub
    hub.close()


@pytest.fixture
def variables(hub: Hub, tmp_path: Path) -> dict[str, Any]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hub"),
        "SCORELINE_MULTI_ITEM_ENABLE_STARTUP_WARMUP": "false",
        "SCORELINE_DTYPE": "float32",
        "SCORELINE_CONTEXT_LENGTH": "32",
    }


@pytest.mark.slow
def test_a_model_on_the_hub_is_downloaded_and_scores_as_its_folder_does(
    hub: Hub, checkpoint: Path, variables: dict[str, Any], tmp_path: Path
) -> None:
    up = CommandUp(ID, tmp_path / "up", command=REAL, **variables)
    try:
        up.wait_until_ready()
        with Client(up.url) as client:
            (served,) = client.models()
            result = client.score(QUERY, ITEMS, labels=LABELS)
            assert served.id == ID
            np.testing.assert_allclose(result.scores, expected_scores(checkpoint, QUERY, ITEMS, LABELS), rtol=1e-5)
            with pytest.raises(Exception, match="context"):
                client.score(QUERY, [" a" * 40], labels=LABELS)
        assert up.end(signal.SIGTERM) == 0
    finally:
        up.close()
    assert hub.downloads() == sorted(path.name for path in checkpoint.iterdir())
    assert "downloading ...\nloading ..." in up.output
    assert "Traceback" not in up.output
    snapshots = tmp_path / "hub" / "hub" / "models--tiny-org--tiny-qwen3" / "snapshots"
    files = hub.repositories[ID].revisions["main"]
    assert [path.name for path in snapshots.iterdir()] == [commit_of(files)]


@pytest.mark.slow
def test_ctrl_c_during_a_download_stops_at_once(hub: Hub, variables: dict[str, Any], tmp_path: Path) -> None:
    hub.stalled = threading.Event()
    up = CommandUp(ID, tmp_path / "up", command=REAL, **variables)
    try:
        # The API and the worker each wait for a file by now.
        wait_until(lambda: len(hub.downloads()) > 1, "both download")
        children = list(up.children().values())
        started = time.monotonic()
        assert up.end(signal.SIGINT) == 0, up.output
        assert time.monotonic() - started < 5.0
        assert gone(children)
    finally:
        up.close()


@pytest.mark.slow
def test_a_model_that_does_not_exist_is_one_clear_line(variables: dict[str, Any], tmp_path: Path) -> None:
    up = CommandUp("tiny-org/none", tmp_path / "up", command=REAL, **variables)
    try:
        assert up.process.wait(60) == 2
        said = "did not start: SCORELINE_MODEL is 'tiny-org/none': there is neither a folder nor a model on the hub"
        assert said in up.output.splitlines()[-1]
        assert "Traceback" not in up.output
        assert up.children() == {}
    finally:
        up.close()
