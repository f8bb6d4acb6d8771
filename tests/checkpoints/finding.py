"""Search for a checkpoint and print what was found: ``python -m tests.checkpoints.finding MODEL REVISION CONTENTS``."""

from __future__ import annotations

import json
import sys

from checkpoints import source
from checkpoints.files import CheckpointError
from checkpoints.source import Contents, find_checkpoint
from settings.logs import configure_logs


def main() -> None:
    assert "huggingface_hub" not in sys.modules, "the hub library has read another environment"
    configure_logs()
    source.HUB_SECONDS = 1.0
    model, revision, contents = sys.argv[1:]
    try:
        found = find_checkpoint(model, revision or None, Contents[contents])
    except CheckpointError as refusal:
        print(json.dumps({"refusal": str(refusal)}))
    else:
        files = {str(path.relative_to(found.directory)): path.stat().st_size for path in found.directory.rglob("*")}
        directory = str(found.directory)
        print(json.dumps({"name": found.name, "commit": found.commit, "files": files, "directory": directory}))


if __name__ == "__main__":
    main()
