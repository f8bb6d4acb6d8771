"""Write the stored references: ``python -m tests.model.decisions.make_references``, where torch is installed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import transformers

from tests.model.decisions.checkpoints import VARIANTS, write_variant
from tests.model.decisions.heads import ASKED, HEADS, write_head
from tests.model.decisions.reference import reference, reference_of_head
from tests.model.decisions.stored import FILE


def main() -> None:
    """One file for all checkpoints, with the versions that made it."""
    found: dict[str, Any] = {"versions": {"torch": str(torch.__version__), "transformers": transformers.__version__}}
    for name in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = reference(write_variant(Path(folder), name))
    for name, head in HEADS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = reference_of_head(write_head(Path(folder), head), ASKED)
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
