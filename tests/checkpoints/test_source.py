"""A model is found in a folder or on the hub; if not, the error is one line that says what to do.

A small server stands in for the hub. Each search runs in a process of its own, since the hub library reads its
variables (``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, …) when it is imported.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checkpoints.files import CheckpointError, read_config
from checkpoints.hub_errors import explain, is_permanent
from checkpoints.progress import ByteProgress
from checkpoints.source import Contents, find_checkpoint, is_hub_id, name_of_adapter
from tests.checkpoints.hub_server import Hub, Repository, commit_of
from tests.forked import running as forked

ID = "tiny-org/tiny"
WEIGHTS = bytes(range(256)) * 4096
FILES = {
    "config.json": b'{"vocab_size": 1}',
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b'{"tokenizer_class": "None"}',
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "model.safetensors.index.json": b'{"weight_map": {}}',
    # None of these is needed, and some are as large as the rest together.
    "consolidated.safetensors": WEIGHTS + b"c",
    "consolidated-00001-of-00002.safetensors": WEIGHTS + b"d",
    "original/model.safetensors": WEIGHTS + b"o",
    "original/config.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "consolidated.00.pth": b"pickle",
    "model.pt": b"pickle",
    "model-q4.gguf": b"GGUF",
    "README.md": b"# Tiny",
}
DESCRIPTION = ["config.json", "tokenizer.json", "tokenizer_config.json"]
ALL = sorted(
    [*DESCRIPTION, *(name for name in FILES if name.startswith("model") and name.endswith(("tensors", "index.json")))]
)

BEFORE_THE_HUB = ("checkpoints.source", "settings.logs", "httpx2", "tqdm.auto", "yaml")
"""What is imported before a process is forked: not the hub library."""


@dataclass
class Found:
    """What a process found, or its error, and its log."""

    answer: dict[str, Any]
    log: list[dict[str, Any]]

    @property
    def refusal(self) -> str:
        line: str = self.answer["refusal"]
        assert "\n" not in line
        return line

    @property
    def files(self) -> list[str]:
        return sorted(self.answer["files"])

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]


Find = Callable[..., Found]


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub({ID: Repository({"main": FILES})})
    yield hub
    hub.close()


@pytest.fixture
def find(hub: Hub, tmp_path: Path) -> Find:
    """Return a function that searches for a model in a new process, without a token unless one is given."""

    def run(model: str = ID, revision: str = "", contents: Contents = Contents.WEIGHTS, **variables: str) -> Found:
        hub.requests.clear()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        done = forked.run(
            *("-m", "tests.checkpoints.finding", model, revision, contents.name),
            imports=BEFORE_THE_HUB,
            environment=clean | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")} | variables,
            nothing_else=True,
        )
        assert done.returncode == 0, done.stderr
        return Found(json.loads(done.stdout), [json.loads(line) for line in done.stderr.splitlines()])

    return run


def test_a_worker_fetches_the_weights_and_nothing_it_does_not_read(hub: Hub, find: Find) -> None:
    found = find()
    assert found.files == hub.downloads() == ALL
    assert found.answer["files"]["model-00001-of-00002.safetensors"] == len(WEIGHTS)
    assert found.answer["name"] == ID
    assert found.answer["commit"] == commit_of(FILES)
    assert [line["commit"] for line in found.logged("resolved")] == [commit_of(FILES)]


def test_the_api_fetches_no_weights(hub: Hub, find: Find) -> None:
    found = find(contents=Contents.DESCRIPTION)
    assert found.files == hub.downloads() == DESCRIPTION


def test_a_worker_fetches_a_decision_head_and_the_adapter_that_belongs_to_it(hub: Hub, find: Find) -> None:
    head = {"judge_config.json": b"{}", "calibration.json": b'{"a": 1}', "head.safetensors": b"head"}
    adapter = {"adapter/adapter_config.json": b'{"r": 1}', "adapter/adapter_model.safetensors": b"adapter"}
    hub.repositories[ID].revisions = {"main": FILES | head | adapter | {"adapter/README.md": b"# Adapter"}}
    found = find()
    assert found.files == hub.downloads() == sorted([*ALL, *head])
    own = find(revision=found.answer["commit"], contents=Contents.OWN_ADAPTER)
    assert hub.downloads() == sorted(adapter)
    assert set(own.files) == {*ALL, *head, *adapter, "adapter"}


def test_a_worker_does_not_download_again_what_the_api_downloaded(hub: Hub, find: Find) -> None:
    find(contents=Contents.DESCRIPTION)
    find()
    assert hub.downloads() == [name for name in ALL if name not in DESCRIPTION]


def test_cached_files_are_not_downloaded_again(hub: Hub, find: Find) -> None:
    first = find()
    second = find()
    assert second.answer == first.answer
    assert hub.downloads() == []


def test_a_moved_branch_is_followed_at_the_next_start_but_a_commit_stays(hub: Hub, find: Find) -> None:
    old = find().answer["commit"]
    hub.repositories[ID].revisions = {"main": FILES | {"config.json": b'{"vocab_size": 2}'}, "v1": FILES}
    new = find().answer
    assert new["commit"] != old
    assert hub.downloads() == ["config.json"], "the weights are the same"
    pinned = find(revision=old)
    assert pinned.answer["commit"] == old
    assert hub.repository_requests() == [], "a commit that is cached needs no hub"
    assert find(revision="v1").answer["commit"] == old


def test_a_cached_model_needs_no_network_when_offline(hub: Hub, find: Find) -> None:
    online = find()
    offline = find(HF_HUB_OFFLINE="1")
    assert offline.answer == online.answer
    assert hub.requests == []
    assert not [line for line in offline.log if line["level"] == "warning"]


@pytest.mark.parametrize("cached", [None, Contents.DESCRIPTION])
def test_offline_a_model_that_is_not_completely_cached_is_refused(find: Find, cached: Contents | None) -> None:
    if cached is not None:
        find(contents=cached)
    assert "HF_HUB_OFFLINE is set: unset it, or fetch the model first" in find(HF_HUB_OFFLINE="1").refusal


def test_the_token_is_sent_and_a_private_model_needs_it(hub: Hub, find: Find) -> None:
    hub.repositories[ID].token = "hf_secret"
    assert "HF_TOKEN" in find().refusal
    hub.bearers.clear()
    assert find(HF_TOKEN="hf_secret").files == ALL
    assert hub.bearers == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("model", "revision", "token", "says"),
    [
        ("tiny-org/none", "", "", "neither a folder nor a model on the hub named tiny-org/none"),
        ("tiny-org/none", "", "hf_any", "neither a folder nor a model on the hub named tiny-org/none"),
        (ID, "v9", "", "no revision 'v9': set SCORELINE_MODEL_REVISION"),
        (ID, "0" * 40, "", "no revision"),
        (ID, "", "wrong", "refuses access to tiny-org/tiny (401): set HF_TOKEN to a valid token"),
    ],
)
def test_a_refusal_of_the_hub_is_reported_on_one_line(
    find: Find, model: str, revision: str, token: str, says: str
) -> None:
    assert says in find(model, revision, **({"HF_TOKEN": token} if token else {})).refusal


def test_the_error_for_a_gated_model_says_how_to_get_access(hub: Hub, find: Find) -> None:
    hub.repositories[ID].gated = True
    assert f"is gated: accept its terms on {hub.url}/{ID}, and set HF_TOKEN" in find().refusal


def test_a_refusal_is_not_hidden_by_a_cached_copy(hub: Hub, find: Find) -> None:
    find()
    hub.repositories[ID].token = "hf_new"
    assert "HF_TOKEN" in find().refusal


def test_an_interrupted_download_is_resumed(hub: Hub, find: Find) -> None:
    hub.cut = 2
    found = find()
    assert found.files == ALL
    for name in ALL:
        assert (Path(found.answer["directory"]) / name).read_bytes() == FILES[name]


@pytest.mark.parametrize("how", ["gone", "broken"])
def test_without_the_hub_a_cached_copy_is_used_with_a_warning(hub: Hub, find: Find, how: str) -> None:
    online = find()
    if how == "gone":
        hub.close()
    hub.broken = True
    found = find()
    assert found.answer == online.answer
    (warning,) = found.logged("using the cached copy of the model")
    assert (warning["level"], warning["commit"]) == ("warning", commit_of(FILES))
    assert ("can't be reached" if how == "gone" else "503") in warning["why"]


@pytest.mark.parametrize("cached", [None, Contents.DESCRIPTION])
def test_without_the_hub_and_without_a_complete_copy_the_error_is_one_line(
    hub: Hub, find: Find, cached: Contents | None
) -> None:
    if cached is not None:
        find(contents=cached)
    hub.close()
    assert find().refusal.startswith(f"{hub.url} can't be reached for {ID}")


@pytest.mark.parametrize("revision", ["", "0" * 40])
def test_a_hub_that_does_not_answer_is_given_up_after_a_time_limit(hub: Hub, find: Find, revision: str) -> None:
    hub.silent = threading.Event()
    assert "can't be reached" in find(revision=revision).refusal


def test_a_cache_directory_that_can_not_be_used_is_reported_on_one_line(find: Find, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refusal = find(HF_HUB_CACHE=str(tmp_path / "file" / "hub")).refusal
    assert f"{tmp_path / 'file' / 'hub'} can't be used" in refusal
    assert "HF_HOME" in refusal


def test_a_full_disk_is_reported_on_one_line_whichever_library_notices_it() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = RuntimeError("I/O error: No space left on device (os error 28)")
    for error in (full, wrapped):
        assert explain(error, ID, None).startswith("the disk is full: tiny-org/tiny does not fit into")
    assert is_permanent(full)


def test_a_download_logs_its_progress_as_json_without_drawing_bars(find: Find) -> None:
    found = find(HF_HUB_DISABLE_PROGRESS_BARS="0")  # every line of the log has been parsed
    reports = found.logged("downloading")
    total = sum(len(FILES[name]) for name in ALL)
    assert reports
    assert {(line["steps"], line["unit"], line["model"]) for line in reports} == {(total, "bytes", ID)}
    assert reports[-1]["step"] == total


def test_python_warnings_of_the_hub_library_are_logged_as_json() -> None:
    """For instance its warning that the disk is too small, which Python prints as plain text."""
    code = "import warnings; from settings.logs import configure_logs; configure_logs(); warnings.warn('not enough')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert line["level"] == "warning"
    assert "not enough" in line["event"]


def test_progress_is_reported_once_a_second_and_at_the_end() -> None:
    now = 0.0
    told: list[tuple[int, int]] = []
    progress = ByteProgress(lambda: 100, lambda done, total: told.append((done, total)), lambda: now)
    for step in range(1, 101):
        now = step / 25
        progress.advance(step, 50)
    assert told == [(1, 100), (26, 100), (51, 100), (76, 100), (100, 100)]


def test_if_the_total_is_unknown_the_announced_bytes_are_reported() -> None:
    told: list[tuple[int, int]] = []
    progress = ByteProgress(lambda: None, lambda done, total: told.append((done, total)), iter(range(9)).__next__)
    progress.advance(5, 10)
    progress.advance(4, 10)
    progress.advance(12, 10)
    assert told == [(5, 10), (12, 12)]


def test_a_folder_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for model in ("owner/name", "./owner/name", str(tmp_path / "owner/name"), "~/owner/name"):
        found = find_checkpoint(model, None, Contents.WEIGHTS)
        assert found.directory.samefile(tmp_path / "owner" / "name")
        assert (found.name, found.commit) == ("name", None)


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="unset SCORELINE_MODEL_REVISION"):
        find_checkpoint(str(tmp_path), "main", Contents.WEIGHTS)


def test_a_file_is_refused(tmp_path: Path) -> None:
    shutil.copy(__file__, tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="is a file; name the folder"):
        find_checkpoint(str(tmp_path / "model.gguf"), None, Contents.WEIGHTS)


@pytest.mark.parametrize("model", ["x" * 300, "~nobody-of-this-name/x"])
def test_what_can_not_be_looked_at_is_refused(model: str) -> None:
    with pytest.raises(CheckpointError, match="can't be read"):
        find_checkpoint(model, None, Contents.WEIGHTS)
    if not model.startswith("~"):
        with pytest.raises(CheckpointError, match="can't be read"):
            read_config(Path(model))


PATHS = ["./x", "../x", "/x", "/x/y", "~/x", "x/", "a/b/c", "a//b", ".x/y", "a/.y", "gpt2", "", ".", "a/b--c", "a b/c"]


@pytest.mark.parametrize("path", PATHS)
def test_what_looks_like_a_path_is_never_looked_up_on_the_hub(path: str) -> None:
    assert not is_hub_id(path)
    if path not in ("", "."):
        with pytest.raises(CheckpointError, match="does not exist"):
            find_checkpoint(path.replace("x", "nowhere-at-all"), None, Contents.WEIGHTS)


@pytest.mark.parametrize("hub_id", ["Qwen/Qwen3-0.6B", "mistralai/Mistral-7B-v0.1", "01-ai/Yi-6B", "a/_b"])
def test_ids_of_the_hub_are_recognised(hub_id: str) -> None:
    assert is_hub_id(hub_id)


def test_a_model_with_an_adapter_has_the_adapters_name(tmp_path: Path) -> None:
    assert name_of_adapter(None) is None
    assert name_of_adapter("owner/judge-lora") == "owner/judge-lora"
    assert name_of_adapter(str(tmp_path / "judge-lora")) == "judge-lora"


@pytest.mark.parametrize("is_file", [False, True])
def test_errors_about_an_adapter_name_it(is_file: bool, tmp_path: Path) -> None:
    place = tmp_path / "judge-lora"
    if is_file:
        place.touch()
    says = "is a file; name the folder that holds adapter_config.json" if is_file else "does not exist"
    with pytest.raises(CheckpointError, match=f"^adapter .*{says}"):
        find_checkpoint(str(place), None, Contents.ADAPTER)
