"""Templates are read strictly, and those of the service are what the publishers' code makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from tokenizers import Tokenizer

from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import LabelScores
from scoring.templates.encoding import Prompt
from scoring.templates.known import FALLBACK, KnownTemplates, require_fit
from scoring.templates.relevance import Relevance
from scoring.templates.template import parse_template, read_template
from scoring.templates.wording import TemplateError
from scoring.tokenizing.tokenization import TextTokenizer
from tests.scoring.templates.prompts import sequences_of, text_of
from tests.scoring.tokenizing.tokenizer_families import family

FIELDS: dict[str, Any] = {
    "query": "Q: {query}\n",
    "item": "D: {item}",
    "labels": [" yes", " no"],
    "relevance": "softmax(0)",
}
KNOWN = KnownTemplates.read(None, "any")


@pytest.mark.parametrize("text", ["softmax(0)", "logit(1)", "difference(1, 0)", "sigmoid(difference(0, 1))"])
def test_a_relevance_is_written_as_it_is_read(text: str) -> None:
    assert str(Relevance.read(text, 2)) == text


def test_the_prompt_of_qwen3_reranker_is_that_of_its_model_card() -> None:
    template = KNOWN.by_name["qwen3-reranker"]
    expected = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: {}\n<Query>: what?\n<Document>: this"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    default = "Given a web search query, retrieve relevant passages that answer the query"
    assert text_of(template.plain, "what?", "this") == expected.format(default)
    assert text_of(template.wording("Judge it"), "what?", "this") == expected.format("Judge it")


def test_the_prompt_of_mxbai_rerank_is_that_of_its_library() -> None:
    template = KNOWN.by_name["mxbai-rerank-v2"]
    expected = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n{}query: what?\ndocument: this\nYou are a search relevance expert who evaluates how well "
        "documents match search queries. For each query-document pair, carefully analyze the semantic relationship "
        "between them, then provide your binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text_of(template.plain, "what?", "this") == expected.format("")
    assert text_of(template.wording("Do"), "what?", "this") == expected.format("instruction: Do\n")


@pytest.mark.parametrize("name", KNOWN.by_name)
def test_braces_in_what_a_client_writes_are_text(name: str) -> None:
    query = "{item} {query} {instruction}"
    prompt = Prompt(KNOWN.by_name[name].plain, query, family("qwen3").ours)
    (sequence,) = sequences_of(prompt, ["{query}"])
    assert "".join(family("qwen3").ours.pieces(sequence)) == text_of(prompt.wording, query, "{query}")
    assert query in text_of(prompt.wording, query, "{query}")


@pytest.mark.parametrize("name", KNOWN.by_name)
def test_the_templates_of_the_service_fit_the_models_that_they_were_made_for(name: str) -> None:
    tokenizer = family("qwen3").ours
    require_fit(KNOWN.by_name[name], tokenizer)


def test_the_digest_of_a_template_changes_with_what_scores_depend_on() -> None:
    digest = parse_template("mine", FIELDS).digest
    assert parse_template("another name", dict(reversed(FIELDS.items())) | {"models": ["any*"]}).digest == digest
    for changes in (
        {"labels": [" no", " yes"]},
        {"query": "Q: {query} \n"},
        {"item": "D: {item}."},
        {"relevance": "softmax(1)"},
        {"label_scoring": "sequence"},
        {"default_instruction": "Which is best?", "query": "{instruction} Q: {query}\n"},
    ):
        assert parse_template("mine", FIELDS | changes).digest != digest


def test_a_template_for_another_tokenizer_is_noticed() -> None:
    with pytest.raises(TemplateError, match=r"<\|im_start\|>, <\|im_end\|>"):
        require_fit(KNOWN.by_name["qwen3-reranker"], family("llama3").ours)
    inside = parse_template("mine", FIELDS | {"control_tokens": ["Yes"]})
    assert len(family("qwen3").ours.encode("Yes")) == 1
    with pytest.raises(TemplateError, match="would split Yes"):
        require_fit(inside, family("qwen3").ours)
    labels = parse_template("mine", FIELDS | {"labels": ["positively", "no"]})
    with pytest.raises(TemplateError, match="'positively' is"):
        require_fit(labels, family("qwen3").ours)


def test_a_tokenizer_told_to_split_special_tokens_fits_no_template_with_any() -> None:
    backend = Tokenizer.from_file(str(family("qwen3").directory / "tokenizer.json"))
    with pytest.raises(TemplateError, match=r"would split <\|im_start\|>, <\|im_end\|>$"):
        require_fit(KNOWN.by_name["mxbai-rerank-v2"], TextTokenizer(backend, special_tokens_split=True))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-Reranker-0.6B", "qwen3-reranker"),
        ("mixedbread-ai/mxbai-rerank-large-v2", "mxbai-rerank-v2"),
        ("demonstration", "demonstration"),
        ("Qwen/Qwen3-0.6B", FALLBACK),
    ],
)
def test_the_name_of_the_model_decides_unless_a_template_is_wanted(model: str, name: str) -> None:
    assert KnownTemplates.read(None, model).default_name == name
    assert KnownTemplates.read("demonstration", model).default_name == "demonstration"


def test_a_file_of_the_user_is_a_template_with_a_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('query = "{query}"\nitem = ": {item}"\nlabels = [" yes"]\nrelevance = "probability(0)"\n')
    known = KnownTemplates.read(str(path), "any")
    assert known.default is known.by_name["mine"]
    assert known.by_name.keys() > {"qwen3-reranker", "mine"}


def test_an_unknown_template_is_refused_with_the_names_of_the_others(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="demonstration, mxbai-rerank-v2"):
        KnownTemplates.read("qwen", "any")
    with pytest.raises(TemplateError, match=r"none\.toml"):
        KnownTemplates.read(str(tmp_path / "none.toml"), "any")
    (tmp_path / "broken.toml").write_text("query = ")
    with pytest.raises(TemplateError, match=r"broken\.toml"):
        read_template(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item": "D: "}, r"item: it must have the place \{item\}"),
        ({"item": "{item} {item}"}, "2 times"),
        ({"item": "{query} {item}"}, "does not belong"),
        ({"query": "Q"}, r"query: it must have the place \{query\}"),
        ({"query": "{instruction} {query}"}, "default_instruction"),
        ({"default_instruction": "x"}, "default_instruction"),
        ({"query_with_instruction": "{query}"}, "query_with_instruction"),
        ({"query": 3}, "query must be a list of texts"),
        ({"labels": []}, "labels"),
        ({"relevance": "softmax(2)"}, "no label 2"),
        ({"relevance": "difference(1)"}, "takes 2"),
        ({"relevance": "sigmoid(logit(0)"}, "must be"),
        ({"relevance": None}, "relevance"),
        ({"labls": ["x"]}, "labls"),
    ],
)
def test_a_faulty_template_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        parse_template("mine", FIELDS | changes)


LOGITS = np.array([[1.5, -2.0, 0.25], [-3.0, 4.0, -1.0]], np.float32)
SCORES = LabelScores(LOGITS, LOGITS - 9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("softmax(2)", softmax(LOGITS.astype(float), axis=1)[:, 2]),
        ("probability(0)", np.exp(LOGITS.astype(float) - 9)[:, 0]),
        ("logit(1)", LOGITS[:, 1]),
        ("difference(1, 0)", LOGITS[:, 1].astype(float) - LOGITS[:, 0]),
        ("sigmoid(difference(0,2))", expit(LOGITS[:, 0].astype(float) - LOGITS[:, 2])),
        ("sigmoid( logit(0) )", expit(LOGITS[:, 0].astype(float))),
    ],
)
def test_relevance_is_what_its_formula_says(text: str, expected: np.ndarray) -> None:
    np.testing.assert_allclose(Relevance.read(text, 3).of(SCORES), expected, rtol=1e-6)


@pytest.mark.parametrize("text", ["softmax(2)", "probability(0)", "sigmoid(difference(0, 2))", "sigmoid(logit(0))"])
def test_the_raw_value_of_a_probability_is_its_logit(text: str) -> None:
    relevance = Relevance.read(text, 3)
    np.testing.assert_allclose(expit(relevance.of(SCORES, raw=True)), relevance.of(SCORES), rtol=1e-6)


def test_the_raw_value_of_a_share_is_a_difference_of_logits() -> None:
    sure = LabelScores(np.array([[90.0, -20.0]], np.float32), None)
    assert Relevance.read("softmax(0)", 2).of(sure) == 1.0
    assert Relevance.read("softmax(0)", 2).of(sure, raw=True) == 110.0
    for text in ("difference(1, 0)", "logit(1)"):
        np.testing.assert_array_equal(Relevance.read(text, 3).of(SCORES, raw=True), Relevance.read(text, 3).of(SCORES))


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("text", ["softmax(0)", "logit(0)", "difference(0, 1)", "probability(0)"])
def test_relevance_is_finite_where_no_label_is_possible(text: str, raw: bool) -> None:
    nothing = np.full((1, 2), -np.inf, np.float32)
    assert np.isfinite(Relevance.read(text, 2).of(LabelScores(nothing, nothing), raw=raw)).all()


def test_relevance_of_impossible_scores_is_an_error() -> None:
    with pytest.raises(RequestError) as caught:
        Relevance.read("softmax(0)", 1).of(LabelScores(np.full((1, 1), np.nan, np.float32), None))
    assert caught.value.code is ErrorCode.JOB_FAILED
