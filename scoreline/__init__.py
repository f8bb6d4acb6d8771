"""Scoreline: score items against a query with a causal language model.

``from scoreline import Client`` talks to a running service; ``scoreline up`` on the command line starts one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoreline.client import Client, ItemScores, Job, Model, RankedDocument, Ranking, ScorelineError, ScoreResult

__version__ = "0.1.0"
__all__ = ["Client", "ItemScores", "Job", "Model", "RankedDocument", "Ranking", "ScoreResult", "ScorelineError"]


def __getattr__(name: str) -> Any:
    """Load the client when it is first used: server processes import this package without needing the client."""
    if name not in __all__:
        raise AttributeError(f"module 'scoreline' has no attribute {name!r}")
    from scoreline import client

    return getattr(client, name)
