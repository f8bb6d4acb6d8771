"""Completions: prompts are scored, and continued by one token, as evaluation harnesses of OpenAI's interface expect."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.api import tiny_model
from tests.api.batches.running import openai_of, read, run
from tests.api.serving import Json, RunningApi, StandInWorker
from tests.api.tiny_model import CONTEXT, TinyModel

TEXTS = ["The capital of France is Paris", "London", "emoji 🎉 yes"]
ASKED: Json = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234}
"""What the evaluation harness lm-eval asks for."""


def complete(api: RunningApi, headers: dict[str, str] | None = None, **body: object) -> Json:
    response = api.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def error(api: RunningApi, **body: object) -> Json:
    response = api.client.post("/v1/completions", json=body)
    found: Json = response.json()["error"]
    return {"status": response.status_code, **found}


def check(choice: Json, ids: list[int], model: TinyModel, *, echo: bool = True, following: bool = True) -> None:
    """Compare a choice with the made-up model."""
    found, most = choice["logprobs"], tiny_model.logprobs(ids)
    own = [None, *(float(tiny_model.logprobs(ids[:n])[ids[n]]) for n in range(1, len(ids)))] if echo else []
    tops = [None, *(float(tiny_model.logprobs(ids[:n]).max()) for n in range(1, len(ids)))] if echo else []
    if following:
        own, tops = [*own, float(most.max())], [*tops, float(most.max())]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(own)
    assert len(found["text_offset"]) == len(own)
    for n, (logprob, top) in enumerate(zip(own, tops, strict=True)):
        if logprob is None:
            assert found["token_logprobs"][n] is None
            assert found["top_logprobs"][n] is None
            continue
        assert top is not None
        assert found["token_logprobs"][n] == pytest.approx(logprob, rel=1e-6)
        assert max(found["top_logprobs"][n].values()) == pytest.approx(top, rel=1e-6)
        assert (found["token_logprobs"][n] == max(found["top_logprobs"][n].values())) is (logprob == top)
        assert found["tokens"][n] in found["top_logprobs"][n]
    assert found["text_offset"] == [len("".join(found["tokens"][:n])) for n in range(len(own))]
    assert choice["finish_reason"] == "length"
    if echo:
        whole = [*ids, int(most.argmax())] if following else ids
        assert choice["text"] == model.decode(whole)


@pytest.mark.parametrize("as_ids", [False, True])
def test_prompts_are_scored_in_order_with_the_most_probable_tokens(
    api: RunningApi, model: TinyModel, as_ids: bool
) -> None:
    ids = [model.encode(text) for text in TEXTS]
    answer = complete(api, prompt=ids if as_ids else TEXTS, **ASKED)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for choice, of_text in zip(answer["choices"], ids, strict=True):
        check(choice, of_text, model)
    tokens = sum(map(len, ids))
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["usage"] == {
        "prompt_tokens": tokens,
        "completion_tokens": len(TEXTS),
        "total_tokens": tokens + len(TEXTS),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["warnings"] == []


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("logprobs", [None, 0, 1])
def test_an_answer_has_what_was_asked_for(
    api: RunningApi, model: TinyModel, echo: bool, max_tokens: int, logprobs: int | None
) -> None:
    if not echo and not max_tokens:
        assert error(api, prompt="a", max_tokens=0)["param"] == "max_tokens"
        return
    asked = ASKED | {"echo": echo, "max_tokens": max_tokens, "logprobs": logprobs}
    [choice] = complete(api, prompt=TEXTS[0], **asked)["choices"]
    [whole] = complete(api, prompt=TEXTS[0], **ASKED)["choices"]
    length = len(whole["logprobs"]["tokens"])
    shown = slice(0 if echo else length - 1, length - 1 + max_tokens)
    assert choice["text"] == "".join(whole["logprobs"]["tokens"][shown])
    if logprobs is None:
        assert choice["logprobs"] is None
        return
    assert choice["logprobs"]["tokens"] == whole["logprobs"]["tokens"][shown]
    assert choice["logprobs"]["token_logprobs"] == whole["logprobs"]["token_logprobs"][shown]
    if logprobs:
        assert choice["logprobs"]["top_logprobs"] == whole["logprobs"]["top_logprobs"][shown]
    else:
        assert [len(one or "?") for one in choice["logprobs"]["top_logprobs"]] == [1] * (shown.stop - shown.start)
    check(whole, model.encode(TEXTS[0]), model)


def test_a_prompt_does_not_change_another(api: RunningApi) -> None:
    together = complete(api, prompt=TEXTS, **ASKED)["choices"]
    for n, text in enumerate(TEXTS):
        [alone] = complete(api, prompt=text, **ASKED)["choices"]
        assert alone == together[n] | {"index": 0}


def test_one_token_and_no_prompt_are_answered(api: RunningApi, model: TinyModel) -> None:
    one = [model.token(" item")]
    [choice] = complete(api, prompt=one, **ASKED)["choices"]
    check(choice, one, model)
    [choice] = complete(api, prompt=one, **ASKED | {"max_tokens": 0})["choices"]
    check(choice, one, model, following=False)
    answer = complete(api, prompt=[], **ASKED)
    assert (answer["choices"], answer["usage"]["total_tokens"]) == ([], 0)


REFUSED: list[tuple[Json, int, str, str]] = [
    ({"max_tokens": None}, 400, "unsupported_parameter", "max_tokens"),
    ({"max_tokens": 2}, 400, "unsupported_parameter", "max_tokens"),
    ({"max_tokens": -1}, 400, "invalid_request", "max_tokens"),
    ({"max_tokens": True}, 400, "invalid_request", "max_tokens"),
    ({"logprobs": 5}, 400, "unsupported_parameter", "logprobs"),
    ({"logprobs": "1"}, 400, "invalid_request", "logprobs"),
    ({"echo": 1}, 400, "invalid_request", "echo"),
    ({"temperature": None}, 400, "unsupported_parameter", "temperature"),
    ({"temperature": 0.7}, 400, "unsupported_parameter", "temperature"),
    ({"temperature": -1}, 400, "invalid_request", "temperature"),
    ({"n": 2}, 400, "unsupported_parameter", "n"),
    ({"best_of": 3}, 400, "unsupported_parameter", "best_of"),
    ({"stream": True}, 400, "unsupported_parameter", "stream"),
    ({"stop": ["\n"]}, 400, "unsupported_parameter", "stop"),
    ({"suffix": "."}, 400, "unsupported_parameter", "suffix"),
    ({"top_p": 0.9}, 400, "unsupported_parameter", "top_p"),
    ({"logit_bias": {"5": 1}}, 400, "unsupported_parameter", "logit_bias"),
    ({"truncate_prompt_tokens": 5}, 400, "unsupported_parameter", "truncate_prompt_tokens"),
    ({"prompt": None}, 400, "missing_items", "prompt"),
    ({"prompt": {"text": "a"}}, 400, "invalid_request", "prompt"),
    ({"prompt": ["a", 5]}, 400, "invalid_request", "prompt[1]"),
    ({"prompt": ["a", [5]]}, 400, "mixed_input_types", "prompt[1]"),
    ({"prompt": [[5], "a"]}, 400, "mixed_input_types", "prompt[1]"),
    ({"prompt": ["a", "\ud800"]}, 400, "invalid_request", "prompt[1]"),
    ({"prompt": ["a", ""]}, 400, "empty_query", "prompt[1]"),
    ({"prompt": [[5], []]}, 400, "empty_query", "prompt[1]"),
    ({"prompt": [[5], [5, 10**9]]}, 400, "token_id_exceeds_vocab", "prompt[1][1]"),
    ({"prompt": [[5, -1]]}, 400, "negative_token_id", "prompt[0][1]"),
    ({"prompt": [[5], [5] * CONTEXT]}, 400, "context_length_exceeded", "prompt[1]"),
    ({"model": "another"}, 404, "model_not_found", "model"),
    ({"timeout": 0}, 400, "invalid_request", "timeout"),
]


@pytest.mark.parametrize(("fields", "status", "code", "param"), REFUSED)
def test_what_can_not_be_done_is_refused_by_name(
    api: RunningApi, fields: Json, status: int, code: str, param: str
) -> None:
    body = json.dumps({"prompt": "a", **ASKED, **fields}).encode()
    response = api.client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    found = response.json()["error"]
    assert (response.status_code, found["code"], found["param"]) == (status, code, param)
    assert "items" not in found["message"], "a client of this route knows prompts"
    assert param.partition("[")[0] in found["message"]


def test_what_asks_for_nothing_else_is_accepted_and_a_prompt_may_fill_the_context(
    api: RunningApi, model: TinyModel
) -> None:
    plain = complete(api, prompt=TEXTS[1], **ASKED)["choices"]
    harmless: Json = {"n": 1, "best_of": 1, "stream": False, "stop": None, "top_p": 1, "user": "me", "logit_bias": {}}
    assert complete(api, prompt=TEXTS[1], **ASKED, **harmless)["choices"] == plain
    for temperature in (None, 0, 1, 0.7):
        asked = ASKED | {"max_tokens": 0, "temperature": temperature}
        [choice] = complete(api, prompt=[5] * CONTEXT, **asked)["choices"]
        check(choice, [5] * CONTEXT, model, following=False)
    [choice] = complete(api, prompt=[5] * (CONTEXT - 1), **ASKED)["choices"]
    assert len(choice["logprobs"]["tokens"]) == CONTEXT
    answer = complete(api, prompt="a", **ASKED, detokenize=True)
    assert answer["warnings"] == ['unknown field "detokenize" was ignored']


def test_a_completion_is_one_job_and_its_key_finds_it_again(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = on_sqlite
    headers = {"Idempotency-Key": "once"}
    first = complete(api, headers, prompt=TEXTS, **ASKED)
    assert complete(api, headers, prompt=TEXTS, **ASKED) == first
    assert len(api.client.get("/v1/jobs", params={"calls": True}).json()["data"]) == 1
    items = api.client.get(f"/v1/jobs/{first['id']}/items", params={"index": [1, 0]}).json()["data"]
    assert [item["text"] for item in items] == [TEXTS[1], TEXTS[0]]
    job = api.client.get(f"/v1/jobs/{first['id']}").json()
    assert (job["kind"], job["progress"]["scored_items"]) == ("likelihood", len(TEXTS))
    for n, choice in enumerate(first["choices"]):
        own = choice["logprobs"]["token_logprobs"][1:-1]
        assert job["result"]["logprob"][n] == pytest.approx(sum(own), rel=1e-6)
        assert job["result"]["num_tokens"][n] == len(own)
        greedy = all(a == max(b.values()) for a, b in zip(own, choice["logprobs"]["top_logprobs"][1:-1], strict=True))
        assert job["result"]["is_greedy"][n] is greedy


def test_a_completion_that_is_out_of_time_gives_its_job_up(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    response = api.client.post("/v1/completions", json={"prompt": "a", **ASKED, "timeout": 0.05})
    worker.gate.set()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    job_id = response.json()["error"]["job_id"]
    assert api.client.get(f"/v1/jobs/{job_id}").json()["status"] in ("cancelled", "expired")


def test_lines_of_a_file_are_answered_as_alone(api: RunningApi) -> None:
    client = openai_of(api)
    bodies = [
        {"prompt": TEXTS, **ASKED},
        {"prompt": [5, 6, 7], "max_tokens": 0, "echo": True, "logprobs": 1},
        {"prompt": "a", "max_tokens": 5},
        {"prompt": "The", "max_tokens": 1, "temperature": 0},
    ]
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body} for n, body in enumerate(bodies)
    ]
    batch = run(client, lines, "/v1/completions")
    outputs = {one["custom_id"]: one["response"]["body"] for one in read(client, batch.output_file_id)}
    assert set(outputs) == {"0", "1", "3"}
    for number, answer in outputs.items():
        wanted = complete(api, **bodies[int(number)])
        assert {**answer, "id": 0, "created": 0} == {**wanted, "id": 0, "created": 0}
    [refused] = read(client, batch.error_file_id)
    assert refused["response"]["body"]["error"]["param"] == "max_tokens"


def test_the_official_client_reads_them(api: RunningApi, model: TinyModel) -> None:
    client = openai_of(api)
    answer = client.completions.create(
        model="tiny", prompt=TEXTS[0], max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
    [choice] = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    ids = model.encode(TEXTS[0])
    wanted = tiny_model.target_logprobs(ids[:1], ids[1:])
    assert_allclose(np.array(choice.logprobs.token_logprobs[1:-1]), wanted, rtol=1e-6)
