"""``scoreline`` with the stand-in worker: ``python -m tests.scoreline.stand_in_up up …``."""

from __future__ import annotations

from scoreline import embedded
from scoreline.command import main

if __name__ == "__main__":
    embedded.ROLES["worker"] = "tests.scoreline.stand_in_worker"
    main()
