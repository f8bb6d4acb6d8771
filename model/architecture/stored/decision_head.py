"""The tensors of a decision head, which are in a file beside those of the body."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.architecture.stored.tensors import Tensor, Tensors, WeightsError, open_files

FILES = ("head.safetensors", "readout.safetensors")

WEIGHT, BIAS = "proj.weight", "proj.bias"


class _Zeros:
    """The bias of a head that has none."""

    def __init__(self, count: int) -> None:
        self._values = np.zeros(count, np.float32)

    def get_shape(self) -> list[int]:
        return list(self._values.shape)

    def get_dtype(self) -> str:
        return "F32"

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._values[rows]
        return found


@contextmanager
def open_decision_head(directory: Path, body: Tensors, labels: int) -> Iterator[Tensors]:
    """Open the head of a checkpoint, and give its tensors with those of the body. Raises :class:`WeightsError`."""
    paths = [path for path in map(directory.joinpath, FILES) if path.is_file()]
    if len(paths) > 1:
        raise WeightsError(f"{directory} holds both {' and '.join(FILES)}: which of them is the head is not known")
    with open_files(directory, paths) as found:
        tensors: dict[str, Tensor] = {BIAS: _Zeros(labels), **_in_model(body), **found}
        # A head that was written without a name has its weight alone.
        yield {WEIGHT if name == "weight" else name: tensor for name, tensor in tensors.items()}


def _in_model(body: Tensors) -> Tensors:
    """Return the tensors of a body by the names that they have in a model with a head."""
    is_alone = body.keys() & {"embed_tokens.weight", "language_model.embed_tokens.weight"}
    if not is_alone:
        return body
    return {name if name.startswith("mtp.") else f"model.{name}": tensor for name, tensor in body.items()}
