"""Run one of several API processes, started by their parent:

``python -m api.processes.child NUMBER COUNT FOLDER LISTENING_SOCKET [LISTENING_SOCKET ...]``
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from prometheus_client import values

from api.processes.serving import serve
from api.siblings import Siblings, counters_folder
from settings.logs import configure_logs


def main() -> int:
    """Serve until stopped, and return the exit status."""
    number, count, folder, *files = sys.argv[1:]
    configure_logs(fields={"process": int(number)})
    keep_counters(int(number), Path(folder))
    sockets = [socket.socket(fileno=int(file)) for file in files]
    return serve(sockets, siblings=Siblings(int(number), int(count), Path(folder)))


def keep_counters(number: int, folder: Path) -> None:
    """Keep the counters of this process in a file, which outlives it and which its siblings read."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(counters_folder(folder))
    # Not by process id: so a process that is started again goes on with the file of the one that ended.
    values.ValueClass = values.MultiProcessValue(process_identifier=lambda: number)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(main())
