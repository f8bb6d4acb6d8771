"""The first thing a process of the embedded service does: tie its life to its parent's, then become its role.

``python -m scoreline.child PARENT_PROCESS_ID MODULE``. A parent that is killed outright can't stop its children, so
they must notice it by themselves.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 0.5


def die_with(parent: int) -> None:
    """End this process as soon as ``parent`` has: at the kernel's hand on Linux, elsewhere by looking for it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it went before it could be watched
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def main() -> None:
    """Become a role of the server."""
    die_with(int(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
