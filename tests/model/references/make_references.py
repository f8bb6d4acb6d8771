"""Write the stored references: ``python -m tests.model.references.make_references [NAME ...]``. It takes torch.

A name is that of a checkpoint, ``labels`` or ``classes``; without any, all references are written. Checkpoints and
sequences follow from seeds (see :mod:`tests.model.checkpoints`), so a reference holds only what HuggingFace said of
them.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
import transformers

from tests.model import references
from tests.model.checkpoints import CLASSIFIERS, EVERY, tensors, write
from tests.model.continuations.cases import GREEDY, reference_case
from tests.model.references import SEED, huggingface

LABELS, CLASSES = "labels", "classes"


def main() -> None:
    """One file a checkpoint, and one with the versions that made them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*EVERY, LABELS, CLASSES], default=[*EVERY, LABELS, CLASSES])
    wanted = parser.parse_args().names
    for name, config in EVERY.items():
        if name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            directory = write(Path(folder), config, tensors(config, SEED))
            rows = references.rows(name)
            found = {dtype: huggingface.logprobs(directory, rows, dtype) for dtype in ("float32", "bfloat16")}
        np.savez_compressed(references.path(name), float32=found["float32"], bfloat16=found["bfloat16"])
        top = np.exp(found["float32"].max(axis=1))
        entropy = -(np.exp(found["float32"]) * found["float32"]).sum(axis=1)
        print(f"{name}: top probabilities {np.round(top, 2)}, entropies {np.round(entropy, 1)} nats")
    if LABELS in wanted:
        np.savez_compressed(references.labels_path(), **of_labels())  # type: ignore[arg-type]
    if CLASSES in wanted:
        np.savez_compressed(references.classes_path(), **of_classes())  # type: ignore[arg-type]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__}
    (references.FOLDER / "versions.json").write_text(
        json.dumps(versions | {"machine": platform.machine()}, indent=2) + "\n"
    )


def of_classes() -> dict[str, np.ndarray]:
    """The outputs of heads for classes, by checkpoint."""
    found = {}
    for name, config in CLASSIFIERS.items():
        with tempfile.TemporaryDirectory() as folder:
            directory = write(Path(folder), config, tensors(config, SEED))
            found[name] = huggingface.class_logits(directory, references.rows_of_classifier(name))
    return found


def of_labels() -> dict[str, np.ndarray]:
    """What HuggingFace says of labels of several tokens, by family."""
    found = {}
    for name in references.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            directory = write(Path(folder), EVERY[name], tensors(EVERY[name], SEED))
            greedy = np.zeros((3, GREEDY), np.int32)
            for n in range(GREEDY):
                case = reference_case(EVERY[name].vocabulary, greedy)
                labels = [case.sequences()[(row + 1) * len(case.labels[0]) - 1] for row in range(len(greedy))]
                rows = [np.concatenate([kept, targets[:n]]) for kept, targets in labels]
                greedy[:, n] = huggingface.logprobs(directory, rows, "float32").argmax(axis=1)
            case = reference_case(EVERY[name].vocabulary, greedy)
            found[f"{name} greedy"] = greedy
            found[f"{name} logprobs"], found[f"{name} lead"] = huggingface.targets(directory, case.sequences())
    return found


if __name__ == "__main__":
    main()
