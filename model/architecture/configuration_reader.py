"""Typed reading of a ``config.json``. Errors name the field that is missing, of a wrong type, or out of range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from checkpoints.files import CheckpointError


class UnsupportedModelError(CheckpointError):
    """A checkpoint that this decoder does not implement. The message names the field."""


class ConfigurationReader:
    """Reads the fields of a JSON object. A null field counts as absent, as in HuggingFace.

    section: the name of the field that holds the object, for messages; empty for the whole file. All methods raise
    :class:`UnsupportedModelError`.
    """

    def __init__(self, values: Mapping[str, Any], section: str = "") -> None:
        self.values = values
        self._section = section

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def named(self, name: str) -> str:
        """Return the name of a field in messages."""
        return f"{self._section}.{name}" if self._section else name

    def get(self, name: str) -> Any:
        """Return a field of any type, or None."""
        return self.values.get(name)

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer of at least ``least``. The field is required unless there is a default."""
        value = self._present(name, default)
        if type(value) is not int or value < least:
            raise UnsupportedModelError(f"{self.named(name)} must be an integer from {least} up, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive finite number. The field is required unless there is a default."""
        value = self._present(name, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise UnsupportedModelError(f"{self.named(name)} must be a positive number, not {value!r}")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of positive finite numbers."""
        values = self._present(name, None)
        if not isinstance(values, list):
            raise UnsupportedModelError(f"{self.named(name)} must be a list of positive numbers, not {values!r}")
        own = ConfigurationReader({f"{name}[{n}]": value for n, value in enumerate(values)}, self._section)
        return tuple(own.number(entry) for entry in own.values)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._present(name, default)
        if type(value) is not bool:
            raise UnsupportedModelError(f"{self.named(name)} must be true or false, not {value!r}")
        return value

    def section(self, name: str) -> ConfigurationReader:
        """Return the reader of a field that holds an object, empty if the field is absent."""
        value = self._present(name, {})
        if not isinstance(value, Mapping):
            raise UnsupportedModelError(f"{self.named(name)} must be an object, not {value!r}")
        return ConfigurationReader(value, self.named(name))

    def require(self, name: str, only: object, *, present: bool = False) -> None:
        """Raise unless the field is absent or has the only value that is implemented. present: it may not be absent."""
        if (present or name in self) and self.get(name) != only:
            implemented = "" if only is None else f", only {only!r}"
            raise UnsupportedModelError(f"{self.named(name)} {self.get(name)!r} is not implemented{implemented}")

    def _present(self, name: str, default: object) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise UnsupportedModelError(f"config.json lacks {self.named(name)}")
        return default
