"""The card of a checkpoint holds what its files say; an error says in one line what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog

from checkpoints.card import ModelCard
from checkpoints.files import CheckpointError, context_length, read_model_card
from tests.scoring.tokenizing.tokenizers_under_test import qwen2

CONFIG = {"max_position_embeddings": 2048, "vocab_size": 4096}


def checkpoint(tmp_path: Path, config: object = CONFIG) -> Path:
    directory = tmp_path / "small-model"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return directory


def test_the_card_holds_context_vocabulary_name_and_fingerprint(tmp_path: Path) -> None:
    tokenizer = qwen2()
    card = read_model_card(checkpoint(tmp_path), None, None, tokenizer)
    assert card == ModelCard("small-model", 2048, tokenizer.vocabulary, tokenizer.fingerprint, None)


def test_workers_with_other_classes_or_another_activation_have_other_fingerprints(tmp_path: Path) -> None:
    fields = CONFIG | {"architectures": ["Qwen3ForSequenceClassification"]}
    of_classes: list[dict[str, Any]] = [
        {"id2label": {"0": "news", "1": "spam"}},
        {"id2label": {"0": "spam", "1": "news"}},
        {"id2label": {"0": "news", "1": "spam"}, "problem_type": "multi_label_classification"},
    ]
    cards = [
        read_model_card(checkpoint(tmp_path / str(n), fields | one), None, None, qwen2())
        for n, one in enumerate(of_classes)
    ]
    fingerprints = {card.tokenizer_fingerprint for card in cards}
    assert len(fingerprints | {qwen2().fingerprint}) == 4
    assert [card.classes and card.classes.names for card in cards[:2]] == [("news", "spam"), ("spam", "news")]
    with pytest.raises(CheckpointError, match=r"config\.json: id2label has the name 'a' for 2 classes"):
        read_model_card(checkpoint(tmp_path / "bad", fields | {"id2label": {"0": "a", "1": "a"}}), None, None, qwen2())


def test_a_configured_name_is_used_instead_of_the_directorys(tmp_path: Path) -> None:
    assert read_model_card(checkpoint(tmp_path), "judge", None, qwen2()).name == "judge"


def test_a_relative_directory_is_resolved_for_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint(tmp_path))
    assert read_model_card(Path("."), None, None, qwen2()).name == "small-model"


def test_padding_rows_of_the_models_head_do_not_count_as_tokens(tmp_path: Path) -> None:
    assert qwen2().vocabulary < CONFIG["vocab_size"]
    assert read_model_card(checkpoint(tmp_path), None, None, qwen2()).vocabulary == qwen2().vocabulary


def test_a_tokenizer_of_another_model_is_refused_with_both_numbers(tmp_path: Path) -> None:
    base = qwen2().base_vocabulary
    with pytest.raises(CheckpointError, match=f"up to {base - 1}, and the model's vocab_size is {base - 1}"):
        read_model_card(checkpoint(tmp_path, CONFIG | {"vocab_size": base - 1}), None, None, qwen2())


def test_added_tokens_beyond_the_models_logits_are_warned_of_and_do_not_count(tmp_path: Path) -> None:
    base = qwen2().base_vocabulary
    assert base < qwen2().vocabulary
    with structlog.testing.capture_logs() as logged:
        card = read_model_card(checkpoint(tmp_path, CONFIG | {"vocab_size": base}), None, None, qwen2())
    assert card.vocabulary == base
    (warning,) = logged
    assert (warning["log_level"], warning["tokens"], warning["first"], warning["vocab_size"]) == (
        "warning",
        qwen2().vocabulary - base,
        qwen2().pieces([base])[0],
        base,
    )


@pytest.mark.parametrize("longest", [None, 1, 2048])
def test_the_context_may_be_lowered(tmp_path: Path, longest: int | None) -> None:
    card = read_model_card(checkpoint(tmp_path), None, None, qwen2(), longest)
    assert card.context_length == (2048 if longest is None else longest)


def test_a_context_beyond_the_checkpoints_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="context_length 2049 is more than the 2048 tokens"):
        read_model_card(checkpoint(tmp_path), None, None, qwen2(), 2049)


def test_delimiter_zero_is_a_delimiter(tmp_path: Path) -> None:
    assert read_model_card(checkpoint(tmp_path), None, 0, qwen2()).delimiter == 0


@pytest.mark.parametrize("beyond", [-1, 0])
def test_a_delimiter_outside_the_vocabulary_is_refused(tmp_path: Path, beyond: int) -> None:
    delimiter = beyond if beyond < 0 else qwen2().vocabulary
    with pytest.raises(CheckpointError, match=f"delimiter {delimiter}"):
        read_model_card(checkpoint(tmp_path), None, delimiter, qwen2())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "can't be read"),
        ("[]", "not a JSON object"),
        ({"vocab_size": 4096}, "max_position_embeddings"),
        ({"max_position_embeddings": 10}, "vocab_size"),
        ({"max_position_embeddings": 0, "vocab_size": 4096}, "max_position_embeddings"),
        ({"max_position_embeddings": 2048.0, "vocab_size": 4096}, "max_position_embeddings"),
        ({"max_position_embeddings": True, "vocab_size": 4096}, "max_position_embeddings"),
        ({"max_position_embeddings": "2048", "vocab_size": 4096}, "max_position_embeddings"),
    ],
)
def test_the_error_for_a_broken_configuration_names_the_field(tmp_path: Path, config: object, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_model_card(checkpoint(tmp_path, config), None, None, qwen2())


def test_the_error_for_a_missing_directory_or_configuration_names_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_model_card(tmp_path / "nowhere", None, None, qwen2())
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        read_model_card(tmp_path, None, None, qwen2())


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("written", "longest"), [(32768, 131072), (131072, 131072), (262144, 262144)])
def test_yarn_stretches_the_context_unless_the_configuration_holds_the_stretched_length(
    field: str, written: int, longest: int
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert context_length({"max_position_embeddings": written, field: yarn}) == longest


def test_long_positions_have_the_original_context() -> None:
    longrope: dict[str, object] = {"type": "longrope", "short_factor": [1.0]}
    original = {"original_max_position_embeddings": 4096}
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": longrope | original}) == 4096
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": longrope} | original) == 4096
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": longrope}) == 131072


def test_other_scalings_do_not_change_the_context() -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": llama3}) == 131072
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": None}) == 131072
