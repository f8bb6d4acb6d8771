"""Typed reading of a ``config.json``: whatever is missing, of another type or out of range is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.files import ModelFilesError


class UnsupportedModelError(ModelFilesError):
    """A checkpoint that this decoder does not implement. The message names the field."""


class Fields:
    """A JSON object whose fields are read one by one. A field that is null counts as left out, as in HuggingFace.

    values: the object; section: the field that holds the object, for messages; empty at the top. All methods raise
    :class:`UnsupportedModelError`.
    """

    def __init__(self, values: Mapping[str, Any], section: str = "") -> None:
        self.values = values
        self._section = section

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def named(self, name: str) -> str:
        """How messages call a field."""
        return f"{self._section}.{name}" if self._section else name

    def get(self, name: str) -> Any:
        """A field as it is, or None."""
        return self.values.get(name)

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer from ``least`` up, which must be there unless there is a default."""
        value = self._present(name, default)
        if type(value) is not int or value < least:
            raise UnsupportedModelError(f"{self.named(name)} must be an integer from {least} up, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number, which must be there unless there is a default."""
        value = self._present(name, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise UnsupportedModelError(f"{self.named(name)} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._present(name, default)
        if type(value) is not bool:
            raise UnsupportedModelError(f"{self.named(name)} must be true or false, not {value!r}")
        return value

    def section(self, name: str) -> Fields:
        """A field that holds an object; empty where it is left out."""
        value = self._present(name, {})
        if not isinstance(value, Mapping):
            raise UnsupportedModelError(f"{self.named(name)} must be an object, not {value!r}")
        return Fields(value, self.named(name))

    def require(self, name: str, only: object) -> None:
        """Refuse any value but one, which is also what leaving the field out means."""
        if name in self and self.values[name] != only:
            raise UnsupportedModelError(f"{self.named(name)} {self.values[name]!r} is not implemented, only {only!r}")

    def refuse(self, names: Collection[str]) -> None:
        """Refuse fields that mean something this decoder does not do, unless they are left out."""
        for name in names:
            if name in self:
                raise UnsupportedModelError(f"{self.named(name)} {self.values[name]!r} is not implemented")

    def _present(self, name: str, default: object) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise UnsupportedModelError(f"config.json lacks {self.named(name)}")
        return default
