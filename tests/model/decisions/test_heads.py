"""Checkpoints with a decision head give the answers of transformers' ``JevForDecision``, by stored references."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints.files import CheckpointError
from scoring.error_codes import RequestError
from tests.model.decisions.deciding import Deciding
from tests.model.decisions.heads import (
    ASKED,
    HEADS,
    head_tensors,
    write_as_body,
    write_as_part,
    write_as_saved,
    write_head,
)
from tests.model.decisions.requests import REFUND, REQUESTS, TEAM, TICKET, URGENCY
from tests.model.decisions.stored import read_references
from tests.model.decisions.test_decisions import assert_same_answers
from tests.model.decisions.test_isolation import WAYS

SLOTS, ADAPTED, CODES = "slots", "slots behind a soft cap and an adapter", "codes"
AS_PARTS = ("slots on gemma3", "codes on qwen35")
"""Those whose body is compared with the same references as a part of a model that sees pictures, too."""
WIDTH = 64  # of the body of SLOTS


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.matrix) if name in AS_PARTS else name for name in HEADS],
)
def test_prompts_and_answers_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    deciding, references = Deciding(write_head(tmp_path, HEADS[name])), read_references()[name]
    for asked in ASKED:
        assert deciding.prompts(REQUESTS[asked]) == references[asked]["prompts"]
        found = deciding.answer(REQUESTS[asked])
        assert_same_answers(found["answers"], references[asked]["answers"])
        assert not found["warnings"]
        shown = found["diagnostics"].values()
        assert all(one == {"label_mass": None, "argmax_is_label": None} for one in shown), "labels are no tokens"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (SLOTS, write_as_saved),
        (SLOTS, write_as_body),
        pytest.param(AS_PARTS[0], write_as_part, marks=pytest.mark.slow),
        (AS_PARTS[1], write_as_part),
    ],
)
def test_a_model_that_transformers_has_saved_and_a_body_without_a_head_of_its_own_give_the_same_answers(
    name: str, change: Callable[[Path], Path], tmp_path: Path
) -> None:
    deciding, references = Deciding(change(write_head(tmp_path, HEADS[name]))), read_references()[name]
    for asked in ASKED:
        assert deciding.prompts(REQUESTS[asked]) == references[asked]["prompts"]
        assert_same_answers(deciding.answer(REQUESTS[asked])["answers"], references[asked]["answers"])


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *(("layer by layer", name) for name in (ADAPTED, CODES)),
        ("whole steps", CODES),
        ("serial", ADAPTED),
        *(pytest.param(*both, marks=pytest.mark.matrix) for both in (("whole steps", ADAPTED), ("serial", CODES))),
    ],
)
def test_an_answer_has_the_same_bits_alone_and_among_others(way: str, name: str, tmp_path: Path) -> None:
    deciding = Deciding(write_head(tmp_path, HEADS[name]), **WAYS[way])
    asked: dict[str, Any] = {"refund": REFUND, "team": TEAM, "urgency": URGENCY}
    wide = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(map(str, range(16)))}
    others = {f"q{n}": wide | {"instructions": f"Is it number {n}?"} for n in range(20)}
    mixed = list((asked | others).items())
    random.Random(5).shuffle(mixed)
    state = REQUESTS["long state"]["state"] if name == CODES else TICKET
    among = deciding.answer({"state": state, "questions": dict(mixed)})["answers"]
    for one, question in asked.items():
        assert deciding.answer({"state": state, "questions": {one: question}})["answers"][one] == among[one]


def test_more_options_than_the_head_has_rows_for_are_refused(tmp_path: Path) -> None:
    deciding = Deciding(write_head(tmp_path, HEADS[SLOTS]))
    levels = {"type": "score", "instructions": "?", "criteria": [str(n) for n in range(7)]}
    with pytest.raises(RequestError, match=r"questions\.a has 7 options; the model has 6 labels") as caught:
        deciding.request({"state": "", "questions": {"a": levels}})
    assert caught.value.code == "too_many_options"


def test_bytes_of_the_head_and_of_its_adapter_are_in_the_fingerprint_of_the_weights(tmp_path: Path) -> None:
    def fingerprint(directory: Path) -> str:
        return Deciding(directory).fingerprint

    directory = write_head(tmp_path / "model", HEADS[ADAPTED])
    first, path = fingerprint(directory), directory / "head.safetensors"
    head = load_file(path)
    save_file({name: tensor[::-1].copy() for name, tensor in head.items()}, path)
    turned = fingerprint(directory)
    path = directory / "adapter" / "adapter_model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(path).items()}, path)
    assert len({first, turned, fingerprint(directory)}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head.safetensors": None}, r"missing: proj\.weight"),
        (
            {"head.safetensors": {"proj.weight": np.zeros((23, WIDTH), np.float32)}},
            r"shape of proj\.weight: \[23, 64\]",
        ),
        ({"head.safetensors": {"proj.scale": np.zeros(24, np.float32)}}, r"unknown: proj\.scale"),
        ({"readout.safetensors": head_tensors(HEADS[SLOTS], WIDTH)}, "both head.safetensors and readout.safetensors"),
        ({"judge_config.json": {"adapter_subfolder": "adapter"}}, "adapter does not exist"),
        ({"config.json": {"is_causal": False}}, "is_causal False is not implemented"),
    ],
)
def test_what_is_wrong_with_a_head_refuses_the_checkpoint(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory = write_head(tmp_path, HEADS[SLOTS])
    for name, change in changes.items():
        path = directory / name
        if change is None:
            path.unlink()
        elif path.suffix == ".json":
            path.write_text(json.dumps(json.loads(path.read_text()) | change))
        else:
            save_file((load_file(path) if path.exists() else {}) | change, path)
    with pytest.raises(CheckpointError, match=message):
        Deciding(directory)


def test_programs_of_a_head_compute_what_numpy_does(tmp_path: Path) -> None:
    """The known answers are compared while programs are compiled."""
    Deciding(write_head(tmp_path, HEADS[SLOTS])).warm_up()


def test_a_head_without_a_bias_has_one_of_zeros(tmp_path: Path) -> None:
    head = head_tensors(HEADS[SLOTS], WIDTH)
    without = write_head(tmp_path / "without", HEADS[SLOTS])
    save_file({"proj.weight": head["proj.weight"]}, without / "head.safetensors")
    zeros = write_head(tmp_path / "zeros", HEADS[SLOTS])
    save_file(head | {"proj.bias": np.zeros(24, np.float32)}, zeros / "head.safetensors")
    body = REQUESTS["three kinds"]
    assert Deciding(without).answer(body)["answers"] == Deciding(zeros).answer(body)["answers"]
    biased = Deciding(write_head(tmp_path / "biased", HEADS[SLOTS]))
    assert biased.answer(body)["answers"] != Deciding(zeros).answer(body)["answers"]
