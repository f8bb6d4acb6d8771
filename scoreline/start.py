"""Where the ``scoreline`` command starts. Ctrl-C ends it quietly also while its modules are still being loaded."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command."""
    try:
        from scoreline.command import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # as ExitCode.INTERRUPTED, which may not be loaded yet
    run()


if __name__ == "__main__":
    main()
