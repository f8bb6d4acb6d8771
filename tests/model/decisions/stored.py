"""The stored references, which ``python -m tests.model.decisions.make_references`` writes where torch is installed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "references.json"


def digest(ids: Sequence[int]) -> str:
    """Return what tells one sequence of token ids from another."""
    return f"{len(ids)}:{hashlib.blake2b(repr(list(ids)).encode(), digest_size=8).hexdigest()}"


def read_references() -> dict[str, Any]:
    """Return the references of all checkpoints."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found
