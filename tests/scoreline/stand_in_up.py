"""``scoreline`` with the stand-in worker: ``python -m tests.scoreline.stand_in_up up …``."""

from __future__ import annotations

import signal

from scoreline import embedded
from scoreline.command import main

if __name__ == "__main__":
    # Behind nohup, the tests and their children ignore it, and so would this command.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    embedded.ROLES["worker"] = "tests.scoreline.stand_in_worker"
    main()
