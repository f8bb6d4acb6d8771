"""The files of a decision head are read as transformers reads them, and what they can't mean is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints.classification import Activation
from checkpoints.decision_head import DecisionHead
from checkpoints.files import CheckpointError, read_decision_head
from checkpoints.source import Checkpoint, find_adapter

SLOTS = {
    "num_slots": 6,
    "verbalizers": ["n", "y", "0", "1", "A", "B"],
    "ranges": {"noul": [0, 2], "score": [2, 4], "choice": [4, 6]},
}
JUDGE: dict[str, Any] = {"slots": SLOTS, "softcap": 30.0, "verbalizer_ids": [1, 2, 3, 4, 5, 6]}
CALIBRATION: dict[str, Any] = {"per_kind": {"noul": 1.2, "choice": 0.9}}
CODES: dict[str, Any] = {"codes": ["A", "B", "C"], "temperature": 1.0, "token_ids": [1, 2, 3], "format_version": 1}


def read(judge: object = None, calibration: object = None, codes: object = None) -> DecisionHead | None:
    files = {"judge_config": judge, "calibration": calibration, "decision_config": codes}
    return DecisionHead.of({name: content for name, content in files.items() if content is not None})  # type: ignore[misc]


def test_each_kind_has_rows_of_its_own_or_all_have_the_same() -> None:
    slots, codes = read(JUDGE, CALIBRATION), read(codes=CODES)
    assert slots is not None
    assert codes is not None
    assert (slots.offsets, slots.softcap, slots.adapter) == ({"noul": 0, "score": 2, "choice": 4}, 30.0, "adapter")
    assert (codes.offsets, codes.softcap, codes.adapter) == ({"noul": 0, "score": 0, "choice": 0}, None, None)
    assert (slots.classes.names, slots.classes.activation) == (tuple(SLOTS["verbalizers"]), Activation.DECISIONS)  # type: ignore[arg-type]
    assert read(JUDGE | {"adapter_subfolder": None}, CALIBRATION).adapter is None  # type: ignore[union-attr]
    assert read(JUDGE, CALIBRATION, CODES).offsets == codes.offsets, "codes go first"  # type: ignore[union-attr]


def test_a_checkpoint_without_such_files_has_no_head(tmp_path: Path) -> None:
    assert read(calibration=CALIBRATION) is read(codes={"something": "else"}) is read_decision_head(tmp_path) is None


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ({"attention_mode": "noncausal_full_attention"}, "decision_config.json: attention_mode 'noncausal_full_attent"),
        ({"pooling": "mean"}, "decision_config.json: pooling 'mean' is not implemented, only 'last'"),
        ({"prompt": "other"}, "decision_config.json: prompt 'other' is not implemented, only 'pplx' and 'd3'"),
        ({"temperature": None}, "decision_config.json: temperature must be a positive number, not None"),
        ({"temperature": 0}, "decision_config.json: temperature must be a positive number, not 0"),
        ({"codes": []}, "decision_config.json: codes must be a list of texts"),
        ({"codes": [1]}, "decision_config.json: codes must be a list of texts"),
    ],
)
def test_codes_that_are_not_implemented_are_refused_by_the_field(codes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(codes=CODES | codes)


@pytest.mark.parametrize(
    ("judge", "calibration", "message"),
    [
        ({"slots": None}, {}, "judge_config.json: slots must be an object"),
        ({"slots": SLOTS | {"num_slots": "6"}}, {}, "slots: num_slots must be an integer of at least 1, not '6'"),
        ({"slots": SLOTS | {"num_slots": 5}}, {}, "slots.ranges.choice must be the first of 5 rows"),
        ({"slots": SLOTS | {"verbalizers": [1] * 6}}, {}, "slots.verbalizers must be a list of texts"),
        ({"slots": SLOTS | {"ranges": {"noul": [0, 2], "score": [2, 4]}}}, {}, "slots.ranges.choice must be the first"),
        ({"slots": SLOTS | {"ranges": SLOTS["ranges"] | {"noul": [0, 7]}}}, {}, "slots.ranges.noul must be the first"),  # type: ignore[operator]
        ({"softcap": 0}, {}, "judge_config.json: softcap must be a positive number"),
        ({"adapter_subfolder": "../other"}, {}, "adapter_subfolder '../other' is not implemented, only 'adapter'"),
        ({}, {"per_kind": None}, "calibration.json: per_kind must be an object"),
        ({}, {"per_kind": {"noul": -1}}, "calibration.json: per_kind.noul must be a positive number, not -1"),
    ],
)
def test_slots_that_mean_nothing_are_refused_by_the_field(
    judge: dict[str, Any], calibration: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(JUDGE | judge, CALIBRATION | calibration)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_verbalizers": None}, "config.json: num_verbalizers must be an integer of at least 1, not None"),
        ({"offsets": None}, "config.json: offsets must be an object"),
        ({"offsets": {"noul": 0, "score": 1}}, "config.json: offsets.choice must be the first of 4 rows"),
        ({"num_verbalizers": 3}, "config.json: offsets.choice must be the first of 3 rows"),
        ({"softcap": "30"}, "config.json: softcap must be a positive number"),
        ({"labels": {"noul": ["a"]}}, "decision.json: labels.score must be a list of texts"),
        ({"adapter": "lora"}, "decision.json: adapter 'lora' is not implemented, only 'adapter'"),
    ],
)
def test_a_saved_head_that_means_nothing_is_refused_by_the_field(changes: dict[str, Any], message: str) -> None:
    config: dict[str, Any] = {"num_verbalizers": 4, "offsets": {"noul": 0, "score": 1, "choice": 2}}
    decision: dict[str, Any] = {"labels": {"noul": ["a"], "score": ["0", "1"], "choice": ["A", "B"]}}
    assert DecisionHead.saved(config, decision).labels == ("a", "0", "A", "B"), "rows may be of two kinds"
    with pytest.raises(ValueError, match=message):
        DecisionHead.saved(config | changes, decision | changes)


def test_an_adapter_is_that_of_the_head_or_the_named_one_and_never_both(tmp_path: Path) -> None:
    (tmp_path / "judge_config.json").write_text(json.dumps(JUDGE))
    with pytest.raises(CheckpointError, match=r"calibration\.json: per_kind"):
        find_adapter(str(tmp_path), Checkpoint(tmp_path, "model"), None)
    (tmp_path / "calibration.json").write_text(json.dumps(CALIBRATION))
    assert find_adapter(str(tmp_path), Checkpoint(tmp_path, "model"), None) == tmp_path / "adapter"
    with pytest.raises(CheckpointError, match="has one of its own"):
        find_adapter(str(tmp_path), Checkpoint(tmp_path, "model"), str(tmp_path))
