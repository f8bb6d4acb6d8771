"""Explain in one line what went wrong with the hub and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_permanent(error: BaseException) -> bool:
    """Whether an error will not go away by itself: the hub refused, or this machine's disk did.

    Such an error must be reported even if there is a cached copy.
    """
    from huggingface_hub.errors import OfflineModeIsEnabled

    for cause in _causes(error):
        status = _status(cause)
        if status is not None:
            return status < 500 and status not in (408, 429)
        if isinstance(cause, OfflineModeIsEnabled) or _is_disk_full(cause) or _is_about_a_file(cause):
            return True
    return False


def explain(error: BaseException, hub_id: str, revision: str | None) -> str:
    """Return the explanation. The library's messages are paragraphs, and often the cause behind the error matters."""
    from huggingface_hub import constants, errors, is_offline_mode

    causes = list(_causes(error))
    for cause in causes:
        match cause:
            case errors.GatedRepoError() | errors.DisabledRepoError():
                return (
                    f"model {hub_id} is gated: accept its terms on {constants.ENDPOINT}/{hub_id}, and set HF_TOKEN to "
                    "a token of the account that did"
                )
            case errors.RevisionNotFoundError():
                return (
                    f"model {hub_id} has no revision {revision!r}: set SCORELINE_MODEL_REVISION to a branch, tag or "
                    "commit that it has"
                )
            case errors.RepositoryNotFoundError():
                return (
                    f"there is neither a folder nor a model on the hub named {hub_id}, or it is private: check the "
                    "name, and for a private model set HF_TOKEN to a token that may read it"
                )
        if _is_disk_full(cause):
            return (
                f"the disk is full: {hub_id} does not fit into {constants.HF_HUB_CACHE}; free some space, or set "
                "HF_HOME to a folder on a larger disk"
            )
        if _is_about_a_file(cause):
            return f"{constants.HF_HUB_CACHE} can't be used ({_short(cause)}): set HF_HOME to a folder that can"
        if (status := _status(cause)) in (401, 403):
            return (
                f"the hub refuses access to {hub_id} ({status}): set HF_TOKEN to a valid token that may read this model"
            )
        if status is not None:
            return f"the hub answered {status} for {hub_id}: try again later"
    if is_offline_mode():
        return (
            f"model {hub_id} at revision {revision or 'main'} is not, or not completely, in {constants.HF_HUB_CACHE}, "
            "and HF_HUB_OFFLINE is set: unset it, or fetch the model first on a machine with a network"
        )
    if any("Consistency check failed" in str(cause) for cause in causes):
        return f"the download of {hub_id} was cut short ({_short(causes[-1])}): try again"
    return (
        f"{constants.ENDPOINT} can't be reached for {hub_id} ({_short(causes[-1])}): check the network and proxy "
        "settings, or name a folder that holds the model"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of errors that caused it, outermost first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _status(error: BaseException) -> int | None:
    from huggingface_hub.errors import HfHubHTTPError

    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _is_disk_full(error: BaseException) -> bool:
    # Libraries that are not written in Python report it in the text alone.
    return (isinstance(error, OSError) and error.errno in _DISK_FULL) or "No space left on device" in str(error)


def _is_about_a_file(error: BaseException) -> bool:
    """Whether the system refused an operation on a file. A missing file does not count: the cache handles those."""
    return isinstance(error, OSError) and error.filename is not None and error.errno != errno.ENOENT


def _short(error: BaseException) -> str:
    """Return the first line of an error's message, or its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
