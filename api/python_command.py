"""How the API starts further processes."""

from __future__ import annotations

import sys


def python_command(*arguments: str) -> list[str]:
    """Return a command that runs Python. It imports from the current folder only if this process does so, too."""
    return [sys.executable, *(["-P"] if sys.flags.safe_path else []), *arguments]
