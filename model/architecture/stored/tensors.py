"""The tensors in the safetensors files of a checkpoint, by name, without reading them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from checkpoints.files import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT8 = "F8_E4M3"

_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
"""Bytes of a value by dtype. All others have one."""


class WeightsError(CheckpointError):
    """A checkpoint that does not match its configuration. The message lists all faults."""


class Tensor(Protocol):
    """A tensor that is read when it is indexed."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str:
        """Return the dtype in safetensors' words."""

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]: ...


Tensors = Mapping[str, Tensor]


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor, by the header of its file."""
    return _BYTES.get(tensor.get_dtype(), 1) * math.prod(tensor.get_shape())


@contextmanager
def open_tensors(directory: Path) -> Iterator[Tensors]:
    """Open all tensors of a checkpoint: of ``model.safetensors``, or else of the shards that the index names.

    Raises :class:`WeightsError`.
    """
    with open_files(directory, _files(directory)) as tensors:
        yield tensors


@contextmanager
def open_files(directory: Path, paths: list[Path]) -> Iterator[Tensors]:
    """Open all tensors of these files. Raises :class:`WeightsError`, which names the folder."""
    with ExitStack() as stack:
        tensors: dict[str, Tensor] = {}
        try:
            for path in paths:
                file = stack.enter_context(safe_open(path, framework="numpy"))
                tensors |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
                if any(tensors[name].get_dtype() == FLOAT8 for name in file.keys()):  # noqa: SIM118
                    tensors |= _float8_tensors(path)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"weights in {directory} can't be read: {error}") from error
        yield tensors


class _Float8Tensor:
    """A tensor in eight bits, for which NumPy has no dtype, so that safetensors does not read it into an array."""

    def __init__(self, path: Path, start: int, shape: list[int]) -> None:
        self._path = path
        self._start = start  # of its bytes in the file
        self._shape = shape

    def get_shape(self) -> list[int]:
        return self._shape

    def get_dtype(self) -> str:
        return FLOAT8

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        """Read some rows; rows: a slice without a step, or an ellipsis for all of them."""
        whole = slice(None) if rows is ... else rows
        first, last, _ = whole.indices(self._shape[0])
        row_bytes = math.prod(self._shape[1:])
        start = self._start + first * row_bytes
        stored = np.fromfile(self._path, np.uint8, (last - first) * row_bytes, offset=start)
        found: npt.NDArray[Any] = stored.view(ml_dtypes.float8_e4m3fn).reshape(last - first, *self._shape[1:])
        return found


def _float8_tensors(path: Path) -> dict[str, Tensor]:
    """Return these tensors of a file by their names. The library has found the header to be sound."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    return {
        name: _Float8Tensor(path, 8 + header_bytes + entry["data_offsets"][0], entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == FLOAT8 and entry["shape"]
    }


def _files(directory: Path) -> list[Path]:
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.exists():
        return [single]
    if not index.exists():
        raise WeightsError(f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} can't be read: {error}") from error
    # Shards are files beside the index. Directories in their names are removed, so that no path leads elsewhere.
    return [directory / Path(str(name)).name for name in sorted(names)]
