"""Run a module in a process that ends when its parent does.

``python -m scoreline.child PARENT_PROCESS_ID MODULE [ARGUMENT ...]``

Processes of the embedded service, and those of an API with several processes, are started this way, since a parent
that is killed can't stop its children.
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
POLL_SECONDS = 0.5


def die_with(parent: int) -> None:
    """End this process when ``parent`` ends. On Linux the kernel does it; elsewhere a thread polls for the parent."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before it was watched
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


def main() -> None:
    """Run the module named on the command line."""
    die_with(int(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
