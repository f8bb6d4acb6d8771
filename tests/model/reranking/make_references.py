"""Write the stored references: ``python -m tests.model.reranking.make_references``, where torch is installed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tests.model.reranking import publishers
from tests.model.reranking.rerankers import FOLDER, RERANKERS, write_checkpoint


def main() -> None:
    """One file a reranker. The versions are those of tests/model/references/versions.json."""
    for name in RERANKERS:
        with tempfile.TemporaryDirectory() as folder:
            found = publishers.reference(write_checkpoint(Path(folder), name), name)
        np.savez_compressed(FOLDER / f"{name}.npz", plain=found.plain, instructed=found.instructed)
        print(
            f"{name}: relevance {found.plain.min():.2f} to {found.plain.max():.2f}, deviation {found.plain.std():.2f}"
        )


if __name__ == "__main__":
    main()
