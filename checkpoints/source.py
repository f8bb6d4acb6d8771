"""Find a checkpoint: a folder, or a model on the hub, which is downloaded into the hub library's cache.

``huggingface_hub`` does the download and reads its own variables: ``HF_HOME`` and ``HF_HUB_CACHE`` (where the cache
is), ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``. A branch is resolved to a commit once. The process serves the
files of that commit, even if the branch moves on.
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

from checkpoints.decision_head import ADAPTER_FOLDER, FILES
from checkpoints.files import CheckpointError, read_decision_head
from checkpoints.hub_errors import explain, is_permanent
from checkpoints.progress import ByteProgress

_DESCRIPTION = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "decision.json",
    "decision_template.jinja",
    *FILES,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    # Never read, but it lets an error message distinguish a tokenizer in a wrong form from a missing one.
    "tokenizer.model",
)


class Contents(Enum):
    """The files of a model on the hub that a process needs, as patterns for the hub library."""

    DESCRIPTION = _DESCRIPTION
    """Configuration and tokenizer, which the API reads."""
    WEIGHTS = (*_DESCRIPTION, "*.safetensors", "model.safetensors.index.json")
    """Also the weights, which a worker reads."""
    ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
    """An adapter, which a worker merges into the weights."""
    OWN_ADAPTER = (f"{ADAPTER_FOLDER}/adapter_config.json", f"{ADAPTER_FOLDER}/adapter_model.safetensors")
    """The adapter that a decision head was trained with, in a folder of the model."""


_NEVER = ["*/*", "consolidated*.safetensors", "adapter_model*.safetensors"]
"""Never downloaded with a model: folders (``original/``, ``onnx/``), second copies of the weights, and adapters."""
_ADAPTERS = (Contents.ADAPTER, Contents.OWN_ADAPTER)

_HUB_ID = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?/[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")

HUB_SECONDS = 10.0
"""Time that the hub has to answer before the cached copy is used."""

log = structlog.stdlib.get_logger("scoring")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on this machine's disk."""

    directory: Path
    name: str  # what requests call the model if no other name is configured
    commit: str | None = None  # None for a folder, which is not from the hub


def find_checkpoint(model: str, revision: str | None, contents: Contents) -> Checkpoint:
    """Return the checkpoint that ``model`` names: an existing folder, or else a model on the hub, as ``owner/name``.

    revision: a branch, a tag or a commit of a model on the hub; None: its main branch. A name without a slash is never
    looked up on the hub, where such names are old aliases: it is more likely a misspelt folder. The same holds for
    paths (``./x``, ``/x``, ``~/x``, more than one slash). Raises :class:`CheckpointError`, which names the cause and
    the remedy.
    """
    what, first = ("adapter", contents.value[0]) if contents is Contents.ADAPTER else ("model", "config.json")
    try:
        directory = Path(model).expanduser()
        exists, is_folder = directory.exists(), directory.is_dir()
    except (OSError, RuntimeError) as error:  # It may not be read, or there is no such user.
        raise CheckpointError(f"{what} {model} can't be read: {error}") from error
    if exists:
        if not is_folder:
            raise CheckpointError(f"{what} {model} is a file; name the folder that holds {first}")
        if revision is not None:
            raise CheckpointError(
                f"model_revision {revision!r} is set, but the model is the folder {directory}: a revision belongs to a "
                "model on the hub; unset SCORELINE_MODEL_REVISION"
            )
        return Checkpoint(directory, directory.resolve().name)
    if not is_hub_id(model):
        raise CheckpointError(
            f"{what} directory {directory} does not exist; one on the hub is named by its id, owner/name"
        )
    snapshot = _fetch(model, revision, contents)
    log.info("resolved", model=model, revision=revision or "main", commit=snapshot.name)
    return Checkpoint(snapshot, model, snapshot.name)


def find_adapter(model: str, checkpoint: Checkpoint, adapter: str | None) -> Path | None:
    """Return the folder of the adapter that is merged into a checkpoint: the named one, or that of its decision head.

    model: what the checkpoint was found by. Raises :class:`CheckpointError`.
    """
    head = read_decision_head(checkpoint.directory)
    if head is None or head.adapter is None:
        return None if adapter is None else find_checkpoint(adapter, None, Contents.ADAPTER).directory
    if adapter is not None:
        raise CheckpointError(f"the adapter {adapter} can't be merged: the decision head of {model} has one of its own")
    return find_checkpoint(model, checkpoint.commit, Contents.OWN_ADAPTER).directory / head.adapter


def name_of_adapter(adapter: str | None) -> str | None:
    """Return what requests call a model into which an adapter is merged, if no other name is configured.

    adapter: a folder, or an id on the hub. Nothing is looked up, since the API does without an adapter's files.
    """
    if adapter is None or is_hub_id(adapter):
        return adapter
    return Path(adapter).expanduser().resolve().name


def is_hub_id(model: str) -> bool:
    """Whether ``model`` may be the id of a model on the hub, ``owner/name``."""
    return _HUB_ID.fullmatch(model) is not None and not any(part in model for part in ("--", ".."))


def _fetch(hub_id: str, revision: str | None, contents: Contents) -> Path:
    """Download what is missing and return the folder of the commit in the cache."""
    from huggingface_hub import HfApi, is_offline_mode

    with _library_logs_redirected():
        try:
            if is_offline_mode():
                return _snapshot(hub_id, revision, contents, cached_only=True)
            # A commit never changes, so one whose list of files is cached need not be looked up again.
            if revision is None or not _COMMIT.fullmatch(revision) or _listing(hub_id, revision) is None:
                # The library alone would use the cache silently even after a refusal by the hub, and would wait
                # forever for a hub that accepts connections but does not answer.
                HfApi().model_info(hub_id, revision=revision, timeout=HUB_SECONDS)
            return _snapshot(hub_id, revision, contents)
        # The library and what it uses raise a dozen classes of errors without a common parent.
        except Exception as error:
            reason = explain(error, hub_id, revision)
            if is_permanent(error):
                raise CheckpointError(reason) from error
            try:
                found = _snapshot(hub_id, revision, contents, cached_only=True)
            except Exception:
                raise CheckpointError(reason) from error
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
        ignore_patterns=[] if contents in _ADAPTERS else _NEVER,
        local_files_only=cached_only,
        tqdm_class=progress.bar_class(),
    )
    return Path(path)


def _missing_bytes(hub_id: str, revision: str | None, contents: Contents) -> int | None:
    """Return how many bytes are to be downloaded, from the list of files that is cached; None if there is none."""
    from huggingface_hub import try_to_load_from_cache

    files = _listing(hub_id, revision)
    if files is None:
        return None
    return sum(
        size
        for name, size in files.items()
        if any(fnmatchcase(name, pattern) for pattern in contents.value)
        and (contents in _ADAPTERS or not any(fnmatchcase(name, pattern) for pattern in _NEVER))
        and not isinstance(try_to_load_from_cache(hub_id, name, revision=revision), str)
    )


def _listing(hub_id: str, revision: str | None) -> dict[str, int] | None:
    """Return the files of a revision and their sizes in bytes, or None if the cache has no list of them."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return {file.path: file.size for file in get_cached_repo_tree(hub_id, revision=revision)}
    except CachedRepoTreeNotFoundError:
        return None


@contextmanager
def _library_logs_redirected() -> Iterator[None]:
    """Send the library's log to the root logger. Its own handler would write plain text among the JSON lines."""
    library = logging.getLogger("huggingface_hub")
    before = library.handlers[:], library.propagate
    library.handlers[:], library.propagate = [], True
    try:
        yield
    finally:
        library.handlers[:], library.propagate = before
