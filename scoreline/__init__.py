"""Scoreline: score items against a query with a causal language model.

``from scoreline import Client`` talks to a running service; ``scoreline up`` on the command line starts one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoreline.client import *

__version__ = "0.4.0"


def __getattr__(name: str) -> Any:
    """Load the client when it is first used: server processes import this package without needing the client."""
    if not name.startswith("_") or name == "__all__":
        client = import_module("scoreline.client")
        exported = [one for one in client.__all__ if not one.isupper()]
        if name == "__all__":
            return exported
        if name in exported:
            return getattr(client, name)
    raise AttributeError(f"module 'scoreline' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what editors and consoles may offer."""
    return [*__getattr__("__all__"), "__version__"]
