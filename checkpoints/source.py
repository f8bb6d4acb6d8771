"""Where a checkpoint comes from: a folder, or a model on the hub, which is fetched into the hub library's cache.

``huggingface_hub`` does the fetching, and its own variables are honoured: ``HF_HOME`` and ``HF_HUB_CACHE`` (where the
cache is), ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``. A branch is resolved to a commit once, and the files of
that commit are what the process serves, whatever happens to the branch while it runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

import structlog

from checkpoints.files import ModelFilesError
from checkpoints.hub_errors import explain, is_definite
from checkpoints.progress import ByteProgress

_DESCRIPTION = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    # Not read, but a repository that has only this one is then told from one that has no tokenizer at all.
    "tokenizer.model",
)


class Contents(Enum):
    """Which files of a model on the hub a process needs, as the hub library's patterns."""

    DESCRIPTION = _DESCRIPTION
    """Configuration and tokenizer: what the API reads."""
    WEIGHTS = (*_DESCRIPTION, "*.safetensors", "model.safetensors.index.json")
    """And the weights: what a worker reads."""


_NEVER = ["*/*", "consolidated*.safetensors", "adapter_model*.safetensors"]
"""Folders (``original/``, ``onnx/``), and safetensors that repeat the weights under other names or change others."""

_HUB_ID = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?/[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")

HUB_SECONDS = 10.0
"""How long the hub may take to answer before the cached copy is used."""

log = structlog.stdlib.get_logger("scoring")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on this machine's disk.

    name: what requests call the model unless told otherwise; commit: the hub's, or None for a folder.
    """

    directory: Path
    name: str
    commit: str | None = None


def find_checkpoint(model: str, revision: str | None, contents: Contents) -> Checkpoint:
    """The checkpoint that ``model`` names: an existing folder, else a model on the hub, by its ``owner/name``.

    revision: a branch, a tag or a commit of a model on the hub; None: its main branch. A name without a slash is a
    folder's: on the hub, such names are old aliases, and here they are more likely to be misspelt folders. Anything
    else that looks like a path (``./x``, ``/x``, ``~/x``, more than one slash) is never looked up on the hub either.
    Raises :class:`ModelFilesError`, one line that names the cause and the remedy.
    """
    directory = Path(model).expanduser()
    if directory.exists():
        if not directory.is_dir():
            raise ModelFilesError(f"model {model} is a file; name the folder that holds config.json")
        if revision is not None:
            raise ModelFilesError(
                f"model_revision {revision!r} is set, but the model is the folder {directory}: a revision belongs to a "
                "model on the hub; unset SCORELINE_MODEL_REVISION"
            )
        return Checkpoint(directory, directory.resolve().name)
    if not is_hub_id(model):
        raise ModelFilesError(
            f"model directory {directory} does not exist; a model on the hub is named by its id, owner/name"
        )
    snapshot = _fetch(model, revision, contents)
    log.info("resolved", model=model, revision=revision or "main", commit=snapshot.name)
    return Checkpoint(snapshot, model, snapshot.name)


def is_hub_id(model: str) -> bool:
    """Whether ``model`` may be the id of a model on the hub, ``owner/name``."""
    return _HUB_ID.fullmatch(model) is not None and not any(part in model for part in ("--", ".."))


def _fetch(hub_id: str, revision: str | None, contents: Contents) -> Path:
    """The folder of one commit in the cache, complete."""
    from huggingface_hub import HfApi, is_offline_mode

    with _library_logs_joined():
        try:
            if is_offline_mode():
                return _snapshot(hub_id, revision, contents, cached_only=True)
            # A commit never changes: what is in it is known once and for all.
            if revision is None or not _COMMIT.fullmatch(revision) or _listing(hub_id, revision) is None:
                # The library would fall back on the cache without a word, also where the hub's answer was no, and it
                # would wait without end for a hub that takes connections and does not answer.
                HfApi().model_info(hub_id, revision=revision, timeout=HUB_SECONDS)
            return _snapshot(hub_id, revision, contents)
        # The library and the transports below it raise a dozen classes with no common parent.
        except Exception as error:
            reason = explain(error, hub_id, revision)
            if is_definite(error):
                raise ModelFilesError(reason) from error
            try:
                found = _snapshot(hub_id, revision, contents, cached_only=True)
            except Exception:
                raise ModelFilesError(reason) from error
    log.warning("using the cached copy of the model", model=hub_id, commit=found.name, why=reason)
    return found


def _snapshot(hub_id: str, revision: str | None, contents: Contents, *, cached_only: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    progress = ByteProgress(
        lambda: _missing_bytes(hub_id, revision, contents),
        lambda done, total: log.info("downloading", model=hub_id, step=done, steps=total, unit="bytes"),
    )
    path = snapshot_download(
        hub_id,
        revision=revision,
        allow_patterns=list(contents.value),
        ignore_patterns=_NEVER,
        local_files_only=cached_only,
        tqdm_class=progress.bars(),
    )
    return Path(path)


def _missing_bytes(hub_id: str, revision: str | None, contents: Contents) -> int | None:
    """How much is to be downloaded, by the listing that the library has just fetched; None if it has none."""
    from huggingface_hub import try_to_load_from_cache

    files = _listing(hub_id, revision)
    if files is None:
        return None
    return sum(
        size
        for name, size in files.items()
        if any(fnmatchcase(name, pattern) for pattern in contents.value)
        and not any(fnmatchcase(name, pattern) for pattern in _NEVER)
        and not isinstance(try_to_load_from_cache(hub_id, name, revision=revision), str)
    )


def _listing(hub_id: str, revision: str | None) -> dict[str, int] | None:
    """The files of a revision and their sizes, where the cache knows them."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return {file.path: file.size for file in get_cached_repo_tree(hub_id, revision=revision)}
    except CachedRepoTreeNotFoundError:
        return None


@contextmanager
def _library_logs_joined() -> Iterator[None]:
    """What the library logs goes where everything goes: its own handler writes plain text among the JSON lines."""
    library = logging.getLogger("huggingface_hub")
    before = library.handlers[:], library.propagate
    library.handlers[:], library.propagate = [], True
    try:
        yield
    finally:
        library.handlers[:], library.propagate = before
