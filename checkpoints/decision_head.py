"""What a checkpoint with a decision head says of it, as ``JevForDecision`` of transformers 5.24 reads it.

Such a head is a linear layer over the final hidden state, beside the weights of a language model. Each of its rows is a
label. A question is answered by the rows from the first one of its kind on, as many as it has options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoints.classification import Activation, Classes

FILES = ("decision_config.json", "judge_config.json", "calibration.json")
"""The files that describe a head that is shipped beside a model."""

ADAPTER_FOLDER = "adapter"
"""The folder of the LoRA adapter that a head may have been trained with."""

_KINDS = ("noul", "score", "choice")
_PROMPTS = ("pplx", "d3")
_CODES, _SLOTS = "decision_config.json: codes", "judge_config.json: slots"


@dataclass(frozen=True, slots=True)
class DecisionHead:
    """The decision head of a checkpoint."""

    labels: tuple[str, ...]  # by the numbers of the rows
    offsets: Mapping[str, int]  # the row of the first label of a question, by its kind
    softcap: float | None = None  # outputs x become softcap * tanh(x / softcap); None: they stay as they are
    adapter: str | None = None  # the folder of the LoRA adapter that is merged into the weights below the head
    # What decides how questions are asked, by the names of files without endings; none: the usual files for decisions.
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def classes(self) -> Classes:
        """The rows as the outputs of the model."""
        return Classes(self.labels, Activation.DECISIONS)

    @classmethod
    def of(cls, files: Mapping[str, Mapping[str, Any]]) -> DecisionHead | None:
        """Read the files of a head that is shipped beside a model; None if there is none. Raises ValueError.

        files: by their names without endings. Fields that change no number are not looked at, as in transformers.
        """
        if "codes" in files.get("decision_config", {}):
            return cls._with_codes(files)
        return cls._with_slots(files) if "judge_config" in files else None

    @classmethod
    def saved(cls, config: Mapping[str, Any], decision: Mapping[str, Any]) -> DecisionHead:
        """Read the ``config.json`` and ``decision.json`` of a model that transformers has saved. Raises ValueError."""
        labels = [""] * _count(config, "config.json", "num_verbalizers")
        offsets, of_kinds = _object(config.get("offsets"), "config.json: offsets"), decision.get("labels")
        for kind in _KINDS:
            own = _texts(_object(of_kinds, "decision.json: labels").get(kind), f"decision.json: labels.{kind}")
            start = offsets.get(kind)
            end = start + len(own) if type(start) is int else None
            labels[_first([start, end], f"config.json: offsets.{kind}", len(labels)) : end] = own
        softcap, adapter = _softcap(config.get("softcap"), "config.json"), decision.get("adapter")
        return cls(tuple(labels), offsets, softcap, _adapter(adapter, "decision.json: adapter"))

    @classmethod
    def _with_codes(cls, files: Mapping[str, Mapping[str, Any]]) -> DecisionHead:
        """Return a head whose labels are the same for all kinds of questions."""
        config = files["decision_config"]
        codes = _texts(config["codes"], _CODES)
        only = {"attention_mode": ("causal",), "pooling": ("last",), "prompt": _PROMPTS}
        for name, values in only.items():
            if name in config and config[name] not in values:
                known = " and ".join(map(repr, values))
                raise ValueError(f"decision_config.json: {name} {config[name]!r} is not implemented, only {known}")
        _positive(config.get("temperature"), "decision_config.json: temperature")
        return cls(codes, dict.fromkeys(_KINDS, 0), files=files)

    @classmethod
    def _with_slots(cls, files: Mapping[str, Mapping[str, Any]]) -> DecisionHead:
        """Return a head of which each kind of questions has rows of its own."""
        config = files["judge_config"]
        slots = _object(config.get("slots"), _SLOTS)
        named, count = _texts(slots.get("verbalizers"), f"{_SLOTS}.verbalizers"), _count(slots, _SLOTS, "num_slots")
        labels = (*named, *[""] * count)[:count]
        ranges = _object(slots.get("ranges"), f"{_SLOTS}.ranges")
        offsets = {kind: _first(ranges.get(kind), f"{_SLOTS}.ranges.{kind}", min(count, len(named))) for kind in _KINDS}
        temperatures = files.get("calibration", {}).get("per_kind")
        for kind, value in _object(temperatures, "calibration.json: per_kind").items():
            _positive(value, f"calibration.json: per_kind.{kind}")
        adapter = _adapter(config.get("adapter_subfolder", ADAPTER_FOLDER), "judge_config.json: adapter_subfolder")
        return cls(labels, offsets, _softcap(config.get("softcap"), "judge_config.json"), adapter, files)


def _texts(value: object, field: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{field} must be a list of texts")
    return tuple(value)


def _count(fields: Mapping[str, Any], place: str, name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 1:
        raise ValueError(f"{place}: {name} must be an integer of at least 1, not {value!r}")
    return value


def _object(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{field} must be an object, not {value!r}")
    return value


def _softcap(value: Any, file: str) -> float | None:
    return None if value is None else _positive(value, f"{file}: softcap")


def _adapter(value: object, field: str) -> str | None:
    if value not in (None, "", ADAPTER_FOLDER):
        raise ValueError(f"{field} {value!r} is not implemented, only {ADAPTER_FOLDER!r}")
    return ADAPTER_FOLDER if value else None


def _positive(value: Any, field: str) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{field} must be a positive number, not {value!r}")
    return float(value)


def _first(value: object, field: str, rows: int) -> int:
    """Return the first row of a range."""
    match value:
        case [int(first), int(end)] if 0 <= first < end <= rows:
            return first
    raise ValueError(f"{field} must be the first of {rows} rows and the one behind the last, not {value!r}")
