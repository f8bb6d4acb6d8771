"""The card of a checkpoint is what its files say, or one line that says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scoring.model_card import ModelCard
from scoring.model_files import ModelFilesError, context_length, read_model_card
from tests.scoring.tokenizers_under_test import qwen2

CONFIG = {"max_position_embeddings": 2048, "vocab_size": 4096}


def checkpoint(tmp_path: Path, config: object = CONFIG) -> Path:
    directory = tmp_path / "small-model"
    directory.mkdir()
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return directory


def test_the_card_holds_context_vocabulary_name_and_fingerprint(tmp_path: Path) -> None:
    tokenizer = qwen2()
    card = read_model_card(checkpoint(tmp_path), None, None, tokenizer)
    assert card == ModelCard("small-model", 2048, tokenizer.vocabulary, tokenizer.fingerprint, None)


def test_a_given_name_wins(tmp_path: Path) -> None:
    assert read_model_card(checkpoint(tmp_path), "judge", None, qwen2()).name == "judge"


def test_the_name_of_a_relative_directory_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint(tmp_path))
    assert read_model_card(Path("."), None, None, qwen2()).name == "small-model"


def test_the_vocabulary_is_at_most_the_models_logit_width(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path, CONFIG | {"vocab_size": 100})
    assert read_model_card(directory, None, None, qwen2()).vocabulary == 100


def test_delimiter_zero_is_a_delimiter(tmp_path: Path) -> None:
    assert read_model_card(checkpoint(tmp_path), None, 0, qwen2()).delimiter == 0


@pytest.mark.parametrize("beyond", [-1, 0])
def test_a_delimiter_outside_the_vocabulary_is_refused(tmp_path: Path, beyond: int) -> None:
    delimiter = beyond if beyond < 0 else qwen2().vocabulary
    with pytest.raises(ModelFilesError, match=f"delimiter {delimiter}"):
        read_model_card(checkpoint(tmp_path), None, delimiter, qwen2())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "can't be read"),
        ("[]", "not a JSON object"),
        ({"vocab_size": 10}, "max_position_embeddings"),
        ({"max_position_embeddings": 10}, "vocab_size"),
        ({"max_position_embeddings": 0, "vocab_size": 10}, "max_position_embeddings"),
        ({"max_position_embeddings": 2048.0, "vocab_size": 10}, "max_position_embeddings"),
        ({"max_position_embeddings": True, "vocab_size": 10}, "max_position_embeddings"),
        ({"max_position_embeddings": "2048", "vocab_size": 10}, "max_position_embeddings"),
    ],
)
def test_a_broken_configuration_is_named(tmp_path: Path, config: object, reason: str) -> None:
    with pytest.raises(ModelFilesError, match=reason):
        read_model_card(checkpoint(tmp_path, config), None, None, qwen2())


def test_a_missing_directory_or_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="does not exist"):
        read_model_card(tmp_path / "nowhere", None, None, qwen2())
    with pytest.raises(ModelFilesError, match=r"holds no config\.json"):
        read_model_card(tmp_path, None, None, qwen2())


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("written", "longest"), [(32768, 131072), (131072, 131072), (262144, 262144)])
def test_yarn_stretches_the_context_unless_it_is_written_stretched(field: str, written: int, longest: int) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert context_length({"max_position_embeddings": written, field: yarn}) == longest


def test_other_scalings_leave_the_context_as_it_is_written() -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": llama3}) == 131072
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": None}) == 131072
