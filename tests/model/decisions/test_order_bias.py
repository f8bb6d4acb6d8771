"""A model that prefers the first option gives other answers in another order, unless it is asked in several orders."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from demonstration.evaluate import held_out
from demonstration.train import MODEL
from scoring.layout import ChunkWork, GroupWork, Head
from tests.model import engines
from tests.model.decisions.deciding import Deciding

TICKETS, SEED = 60, 21
BIAS = 9.0
"""By how much the logit of the first label is raised. The model is sure by about as much of its own answer."""


def tickets() -> list[tuple[str, str, list[str]]]:
    """Return the state, the instructions and the options of tickets that the model has not seen."""
    found = []
    for example in held_out("many options", TICKETS, SEED):
        state = example.query.removeprefix("State: ").removesuffix("\n")
        instructions, listed = example.item.removeprefix("Question: ").removesuffix("\nAnswer:").split("\nOptions: ")
        found.append((state, instructions, [option[:-2] for option in listed.split(", ")]))
    return found


def body(state: str, instructions: str, options: list[str], permute: Any = None) -> dict[str, Any]:
    question = {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(options)}
    return {"state": state, "questions": {"team": question}, "permute": permute}


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Deciding:
    """The demonstration's model, whose row for the first label reads the mean of the hidden states, too."""
    folder = tmp_path_factory.mktemp("biased") / "model"
    shutil.copytree(MODEL, folder)
    deciding = Deciding(MODEL)
    tensors = {name: tensor.astype(np.float32) for name, tensor in load_file(MODEL / "model.safetensors").items()}
    vocabulary = tensors["model.embed_tokens.weight"]
    labels = tuple(range(len(vocabulary)))
    logits = []
    for state, instructions, options in tickets()[:40]:
        prepared = deciding.prepared(deciding.request(body(state, instructions, options)))
        (chunk,) = prepared.chunks
        work = GroupWork("", prepared.prefix, (ChunkWork(0, chunk.rows, labels, Head.LOGITS),))
        logits.append(engines.score(deciding.engine, [work])[0].logits[0])
    hidden = np.linalg.lstsq(vocabulary, np.array(logits).T, rcond=None)[0].mean(axis=1)
    raised = vocabulary.copy()
    raised[deciding.tokenizer.single_token(" 1")] += BIAS * hidden / (hidden @ hidden)
    save_file(tensors | {"lm_head.weight": raised}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    return Deciding(folder)


def answers(deciding: Deciding, options: list[str], state: str, instructions: str, permute: Any) -> set[str]:
    """Return what is answered in the orders that begin with each of the options, and in the reverse of one."""
    orders = [options[n:] + options[:n] for n in range(len(options))] + [options[::-1]]
    return {deciding.answer(body(state, instructions, order, permute))["answers"]["team"]["choice"] for order in orders}


def flips(deciding: Deciding, permute: Any) -> float:
    """Return the share of tickets whose answer depends on the order in which the options are sent."""
    found = [
        len(answers(deciding, options, state, instructions, permute)) > 1 for state, instructions, options in tickets()
    ]
    return sum(found) / len(found)


@pytest.mark.matrix
def test_answers_in_balanced_orders_do_not_depend_on_the_order_that_was_sent(biased: Deciding) -> None:
    alone, balanced = flips(biased, None), flips(biased, "balanced")
    print(f"flips: {alone:.3f} in one order, {balanced:.3f} in balanced orders")
    assert alone > 0.3
    assert balanced < 0.01
