"""The tables of docs/coming-from.md say the truth: each row is sent to a running server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from public_api.paths import CALL_PATHS
from tests.api.serving import RunningApi

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"

SCORE: dict[str, Any] = {
    "query": "The capital of",
    "items": [" France is", " Japan is"],
    "label_token_ids": [70, 71],
    "apply_softmax": True,
}
COMPLETION: dict[str, Any] = {"prompt": ["London", "Paris is in"], "max_tokens": 0, "echo": True, "logprobs": 0}
RERANK: dict[str, Any] = {"query": "What is in England", "documents": ["London", "Paris"]}
TEXTS: dict[str, Any] = {"query": "What is in England", "texts": ["London", "Paris"]}

VALUES: dict[str, Any] = {
    "query": "The capital of",
    "items": " France is",
    "label_token_ids": [72],
    "label_token_ids, a list of lists": [[70], [71, 72]],
    "apply_softmax": False,
    "temperature": 0.7,
    "item_first": True,
    "model": "tiny",
    "documents": ["London", {"text": "Paris"}],
    "top_n": 1,
    "max_tokens_per_doc": 5,
    "return_documents": True,
    "return_pooled_hidden_states": True,
    "embed_override_token_id": 5,
    "query_embed_overrides": [[0.5]],
    "item_embed_overrides": [None, [[0.5]]],
    "top_k": 50,
    "top_p": 0.9,
    "add_special_tokens": False,
    "truncate_prompt_tokens": 100,
    "text_1": "London",
    "text_2": ["Paris"],
    "queries": ["London"],
    "request_id": "mine",
    "use_activation": False,
    "priority": 3,
    "messages": [{"role": "user", "content": "London"}],
    "prompt": "London",
    "logit_bias": {"70": 5},
    "logprobs": True,
    "top_logprobs": 5,
    "max_tokens": 1,
    "seed": 7,
    "user": "me",
    "instruct": "Find what contradicts the query.",
    "max_tokens_per_query": 64,
    "chat_template_kwargs": {"instruction": "Find what contradicts the query."},
    "relevant_spans": {"mode": "enabled"},
    "rank_fields": ["title"],
    "max_chunks_per_doc": 3,
    "texts": ["London"],
    "raw_scores": True,
    "truncate": True,
    "truncation": True,
    "truncation_direction": "Right",
    "return_text": True,
}
"""What clients of another system send in a field."""

COMPLETION_VALUES: dict[str, Any] = {
    "model": "tiny",
    "prompt": [5, 6, 7],
    "max_tokens": 0,
    "echo": True,
    "logprobs": 1,
    "temperature": 0.7,
    "seed": 7,
    "user": "me",
    "n": 2,
    "best_of": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": ["London"],
    "suffix": "London",
    "top_p": 0.9,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"70": 5},
    "allowed_token_ids": [70, 71],
    "logprob_token_ids": [70, 71],
    "bad_words": ["London"],
    "structured_outputs": {"choice": ["London", "Paris"]},
    "guided_choice": ["London", "Paris"],
    "stop_token_ids": [70],
    "logits_processors": ["mine.Processor"],
    "watermarking": True,
    "regex": "London|Paris",
    "json_schema": "{}",
    "ebnf": 'root ::= "London"',
    "stop_regex": "London|Paris",
    "custom_logit_processor": "{}",
    "lora_path": "adapters/mine",
}
"""The same in a field of ``/v1/completions``."""

HARMLESS: dict[str, list[Any]] = {
    "return_pooled_hidden_states": [False],
    "top_k": [0, -1],
    "top_p": [1, 1.0],
    "add_special_tokens": [True],
    "use_activation": [True],
    "logit_bias": [{}],
    "n": [1],
    "best_of": [1],
    "stream": [False],
    "stop": ["", []],
    "suffix": [""],
    "presence_penalty": [0],
    "frequency_penalty": [0.0],
    "bad_words": [[]],
    "stop_token_ids": [[]],
    "stop_regex": ["", []],
    "logits_processors": [[]],
    "watermarking": [False],
    "max_tokens_per_query": [0],
    "chat_template_kwargs": [{}],
    "truncation": [False],
    "relevant_spans": [{"mode": "disabled"}],
}
"""Values of refused fields that ask for what is done here in any case."""


RETURNED: dict[str, dict[str, bool]] = {
    **{key: {"return_documents": True} for key in ("/v1/rerank", "/v2/rerank")},
    "/rerank": {"return_text": True},
}
"""What a ranking is asked for so that its answer has all fields."""


class Row(NamedTuple):
    """A row of a table."""

    system: str
    subject: str  # `path`, or what the fields belong to
    name: str
    here: str
    note: str


def read_rows() -> list[Row]:
    """Return the rows of all tables of the page."""
    rows: list[Row] = []
    system = subject = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            system = line[3:]
        if not line.startswith("|"):
            continue
        name, here, note = (cell.strip() for cell in line.strip("|").split("|"))
        if here == "here":
            subject = name
        elif not here.startswith("---"):
            rows.append(Row(system, subject, name.replace("`", ""), here, note))
    return rows


ROWS = read_rows()
FIELDS = [row for row in ROWS if row.subject.startswith("field of `")]
ANSWERS = [row for row in ROWS if row.subject.startswith("field of the answer")]
PATHS = [row for row in ROWS if row.subject == "path"]


def name_of(row: Row) -> str:
    return f"{row.system}: {row.name}"


def target(row: Row) -> tuple[str, str]:
    """Return the method and the path that a table is about."""
    found = re.search(r"`(\w+) ([^`]+)`", row.subject)
    assert found is not None
    return found[1], found[2].replace("{model}", "tiny")


def body_of(path: str) -> dict[str, Any]:
    if path == "/v1/completions":
        return COMPLETION
    if path == "/rerank":
        return TEXTS
    return RERANK if "rerank" in path else SCORE


def values_of(path: str) -> dict[str, Any]:
    return COMPLETION_VALUES if path == "/v1/completions" else VALUES


def test_every_row_is_of_a_kind_that_is_tested() -> None:
    assert len(FIELDS) + len(ANSWERS) + len(PATHS) == len(ROWS)
    systems = {"SGLang", "vLLM", "OpenAI", "Cohere", "Jina", "Voyage", "Text Embeddings Inference"}
    assert {row.system for row in ROWS} == systems
    assert {row.here for row in FIELDS} == {"the same", "refused", "ignored"}
    for of_path in (VALUES, COMPLETION_VALUES):
        assert {row.name for row in FIELDS if values_of(target(row)[1]) is of_path} == of_path.keys()


def test_lines_of_batches_may_be_all_calls() -> None:
    (batches,) = [row for row in PATHS if row.name == "GET /v1/batches"]
    assert set(re.findall(r"`(/v1/\w+)`", batches.note)) == set(CALL_PATHS)


@pytest.mark.parametrize("row", FIELDS, ids=name_of)
def test_a_field_is_treated_as_the_page_says(api: RunningApi, row: Row) -> None:
    _, path = target(row)
    field = row.name.partition(",")[0]
    body = body_of(path) | {field: values_of(path)[row.name]}
    strict = {"Prefer": "handling=strict"}
    answer = api.client.post(path, json=body)
    strictly = api.client.post(path, json=body, headers=strict)
    if row.here == "refused":
        for refusal in (answer, strictly):
            error = refusal.json()["error"]
            assert (refusal.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)
        for value in (None, *HARMLESS.get(field, [])):
            assert api.client.post(path, json=body | {field: value}, headers=strict).status_code == 200, value
        return
    assert answer.status_code == 200, answer.text
    # A list has no warnings.
    warned = isinstance(answer.json(), dict) and f'unknown field "{field}" was ignored' in answer.json()["warnings"]
    if row.here == "ignored":
        assert warned
        error = strictly.json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", field)
        plain = api.client.post(path, json=body_of(path)).json()
        assert [plain.get(name) for name in ("scores", "results")] == [
            answer.json().get(name) for name in ("scores", "results")
        ]
    else:
        assert not warned
        assert strictly.status_code == 200, strictly.text


@pytest.mark.parametrize("row", ANSWERS, ids=name_of)
def test_a_field_of_an_answer_is_where_the_page_says(api: RunningApi, row: Row) -> None:
    method, path = target(row)
    body = None if method == "GET" else body_of(path) | (RETURNED.get(path, {}))
    answer = api.client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    here = row.name if row.here in ("the same", "not here") else row.here.strip("`")
    assert has(answer.json(), here) is (row.here != "not here")


def has(value: Any, path: str) -> bool:
    """Return whether there is a value at a path such as ``results[].index``."""
    for step in path.split("."):
        name, listed, _ = step.partition("[]")
        if name:
            if not isinstance(value, dict) or name not in value:
                return False
            value = value[name]
        if listed:
            value = value[0]
    return True


@pytest.mark.parametrize("row", PATHS, ids=name_of)
def test_a_path_is_served_as_the_page_says(api: RunningApi, row: Row) -> None:
    def status(request: str) -> int:
        method, path = request.replace("{model}", "tiny").split()
        body = {"text": "London"} if "tokenize" in path else body_of(path)
        return api.client.request(method, path, json=None if method == "GET" else body).status_code

    if row.here == "the same":
        assert status(row.name) == 200
        return
    assert status(row.name) == 404
    if row.here != "not here":
        assert status(row.here.strip("`")) == 200
