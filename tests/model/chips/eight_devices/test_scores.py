"""Several devices compute the scores of one device, and the same bits in any company."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints.adapter_folder import AdapterFolder
from checkpoints.card import ModelCard
from model.architecture.configuration_reader import UnsupportedModelError
from model.engine import Engine
from model.packed_sequence import pack_sequences
from model.rows import item_rows
from model.score_buffer import ScoreBuffer
from model.states import States
from scoring.layout import GroupWork, Head
from settings.engine import EngineSettings
from tests.model import engines
from tests.model.checkpoints import sequences
from tests.model.chips.eight_devices.conftest import MODELS, SHARED, SIX_HEADS, Loaded, platform
from tests.model.decisions.deciding import Deciding
from tests.model.decisions.heads import HEADS, write_head
from tests.model.decisions.requests import REQUESTS
from tests.model.decisions.stored import read_references
from tests.model.decisions.test_decisions import assert_same_answers
from tests.model.references.gates import FLOAT32_LOGPROBS

TOLERANCE = 1e-5
TOLERANCES = {"mixture": 2e-5, "recurrent": FLOAT32_LOGPROBS}
"""Of models whose layers give more, and so have larger rounding errors."""
PREFIXES = (130, 70, 5)
ITEMS = (1, 2, 8, 31, 40, 3, 0)


def groups(name: str) -> list[GroupWork]:
    """Prefixes of a few blocks with items, whose scores are log-probabilities of every token, or class."""
    config = MODELS[name]
    return [
        GroupWork(
            f"owner {n}",
            prefix,
            (engines.chunk(n, sequences(config, 10 + n, ITEMS), len(prefix) - n, range(config.outputs)),),
        )
        for n, prefix in enumerate(sequences(config, 1, PREFIXES))
    ]


def logprobs(engine: Engine, work: list[GroupWork]) -> dict[int, np.ndarray]:
    """The log-probabilities of all chunks by id."""
    return {number: engines.logprobs_of(scores) for number, scores in engines.score(engine, work).items()}


@pytest.mark.parametrize(("name", "chips"), SHARED)
def test_scores_are_those_of_one_device(name: str, chips: int, engine: Loaded) -> None:
    expected, found = (logprobs(engine(name, count), groups(name)) for count in (1, chips))
    for number, of_chunk in expected.items():
        tolerance = TOLERANCES.get(name, TOLERANCE)
        np.testing.assert_allclose(found[number], of_chunk, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("name", "chips"), SHARED[:5])
def test_bits_do_not_depend_on_company(name: str, chips: int, engine: Loaded) -> None:
    together = logprobs(engine(name, chips), groups(name))
    reverse = logprobs(engine(name, chips), groups(name)[::-1])
    for group in groups(name):
        (alone,) = logprobs(engine(name, chips), [group]).values()
        number = group.chunks[0].id
        assert np.array_equal(alone, together[number])
        assert np.array_equal(alone, reverse[number])


@pytest.mark.parametrize(("name", "chips"), [("eight heads", 8), ("recurrent", 2), SIX_HEADS])
def test_known_answers_are_right_and_have_the_same_bits_everywhere(name: str, chips: int, engine: Loaded) -> None:
    engine(name, chips).warm_up(lambda done, total, what: None)


@pytest.mark.parametrize(("name", "chips"), [("eight heads", 8), SIX_HEADS])
def test_heads_score_targets_and_labels_of_all_shards(name: str, chips: int, engine: Loaded) -> None:
    config = MODELS[name]
    random = np.random.default_rng(3)
    states = [States(3 * random.standard_normal((20, config.width), np.float32), np.arange(20, dtype=np.int32))]
    everything = np.tile(np.arange(config.vocabulary, dtype=np.int32), (20, 1))
    one, several = (engine(name, count).forward.heads for count in (1, chips))
    for expected, found in zip(
        one.of_targets(states, everything, top=True),
        several.of_targets(states, everything, top=True),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=TOLERANCE)
    greedy = np.asarray(several.of_targets(states, everything)[1])[:20, : config.vocabulary]
    assert (greedy.sum(axis=1) == 1).all(), "one token of all shards is the most probable one"
    labels = [config.vocabulary - 1, 0, config.vocabulary // chips, config.vocabulary // chips - 1]
    for expected, found in zip(
        one.of_labels(Head.LOGITS, states, labels, top=True),
        several.of_labels(Head.LOGITS, states, labels, top=True),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=TOLERANCE)


def test_a_decision_head_is_whole_on_every_device(tmp_path: Path) -> None:
    path, config = write_head(tmp_path, HEADS["slots"]) / "model.safetensors", tmp_path / "config.json"
    weights, fields = load_file(path), json.loads(config.read_text())
    embedding = weights["model.embed_tokens.weight"]
    # A row of padding, so that two devices can share the embedding equally.
    save_file(weights | {"model.embed_tokens.weight": np.pad(embedding, ((0, 1), (0, 0)))}, path)
    config.write_text(json.dumps(fields | {"vocab_size": len(embedding) + 1}))
    deciding = Deciding(tmp_path, platform=platform(2))
    found = deciding.answer(REQUESTS["three kinds"])["answers"]
    assert_same_answers(found, read_references()["slots"]["three kinds"]["answers"])


@pytest.mark.parametrize("dense", [False, True])
def test_packed_sequences_have_the_states_of_one_device(dense: bool, engine: Loaded) -> None:
    (prefix,), rows = sequences(MODELS["eight heads"], 1, (70,)), sequences(MODELS["eight heads"], 2, (3, 9, 20))
    buffer = ScoreBuffer.of(engines.chunk(0, rows, 70, (0,)))
    (packed,) = pack_sequences([(prefix, item_rows(buffer))], 256, 64)
    expected, found = (
        np.asarray(engine("eight heads", count).forward.packed(packed, dense=dense).states)[: len(rows)]
        for count in (1, 4)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_model_that_can_not_be_divided_is_refused_before_its_weights_are_read(
    directory: Callable[[str], Path],
) -> None:
    def on_progress(done: int, total: int) -> None:
        raise AssertionError("weights were read")

    card = ModelCard("six heads", 1_024, 96, "no tokenizer")
    with pytest.raises(UnsupportedModelError, match="does not divide num_attention_heads 6, vocab_size 96"):
        Engine.load(directory("six heads"), EngineSettings(), card, platform(5), on_progress)


def test_adapters_that_requests_name_are_refused_on_several_devices(
    directory: Callable[[str], Path], tmp_path: Path
) -> None:
    card = ModelCard("six heads", 1_024, 96, "no tokenizer")
    folder = AdapterFolder(tmp_path)
    with pytest.raises(
        UnsupportedModelError, match="SCORELINE_ADAPTER_FOLDER is not implemented for a worker of several"
    ):
        Engine.load(directory("six heads"), EngineSettings(), card, platform(2), adapters=folder)
