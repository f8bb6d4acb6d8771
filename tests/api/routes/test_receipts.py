"""A request may ask for a receipt: a signed statement of what was asked, what was answered, and what computed it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jwt
import numpy as np
import pytest
import rfc8785

from judgement.receipts import ReceiptError, ReceiptKeys, Statement, digest_of_answer, digest_of_request, verified
from tests.api.batches.running import line, openai_of, read, run
from tests.api.every_route import COMPLETION, DECISION, DECISION_OF_OPENAI, RANKING
from tests.api.serving import Json, RunningApi, running_api
from tests.api.tiny_model import make_model_directory
from tests.provenances import SOME

LIKELIHOOD: Json = {"query": "The capital of", "items": [" France is", ""]}
SCORE: Json = LIKELIHOOD | {"labels": [" Paris", " London"], "return_logprobs": True}

PUBLIC = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAt14PMZi7Mn+/8nKYSNDWyGdCn00jGm+fKUfzQDyCGGE=
-----END PUBLIC KEY-----
"""

CALLS: dict[str, Json] = {
    "/v1/score": SCORE,
    "/v1/likelihood": LIKELIHOOD,
    "/v1/rerank": RANKING,
    "/v2/rerank": RANKING,
    "/v1/systemone": DECISION,
    "/v1/decisions": DECISION_OF_OPENAI,
    "/v1/completions": COMPLETION,
}


def new_key() -> str:
    made = subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519"], check=True, capture_output=True, text=True)
    return made.stdout


def public_part(key: str) -> str:
    command = ["openssl", "pkey", "-pubout"]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=key).stdout


@pytest.fixture(scope="module")
def served(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    own = tmp_path_factory.mktemp("served")
    database = Path(shutil.copy(sqlite_template, own / "scoreline.db"))
    with running_api(make_model_directory(own / "model"), f"sqlite:///{database}", own, receipt_keys=new_key()) as (
        api,
        worker,
    ):
        assert worker is not None
        worker.provenance = SOME
        yield api


def stated(api: RunningApi, answer: Json) -> Statement:
    return verified(answer["receipt"], api.client.get("/.well-known/jwks.json").json())


@pytest.mark.parametrize(("path", "body"), CALLS.items(), ids=CALLS)
def test_a_receipt_states_request_answer_and_provenance(served: RunningApi, path: str, body: Json) -> None:
    asked = body | {"return_receipt": True}
    answer = served.client.post(path, json=asked).json()
    statement = stated(served, answer)
    assert (statement.path, statement.job) == (path, answer["id"])
    assert (statement.request, statement.answer) == (digest_of_request(asked), digest_of_answer(answer))
    assert [one and one["weights_fingerprint"] for one in statement.provenance] == [SOME.weights_fingerprint]
    assert "provenance" not in answer
    statement.check_request(json.loads(json.dumps(asked, indent=3, sort_keys=True)))
    statement.check_repetition(served.client.post(path, json=body | {"return_provenance": True}).json())
    statement.check_request(body | {"timeout": 5, "model": None})
    with pytest.raises(ReceiptError, match="another request"):
        statement.check_request(body | {"model": "tiny"})


@pytest.mark.parametrize("body", [SCORE, LIKELIHOOD | {"kind": "likelihood"}, DECISION | {"kind": "decision"}])
def test_the_receipt_of_a_job_stands_in_its_result_whenever_it_is_read(served: RunningApi, body: Json) -> None:
    asked = body | {"return_receipt": True}
    job = served.wait(served.client.post("/v1/jobs", json=asked).json()["id"])
    statement = stated(served, job["result"])
    assert (statement.path, statement.job, statement.request) == ("/v1/jobs", job["id"], digest_of_request(asked))
    statement.check_answer(job["result"])
    of_set = served.client.get("/v1/jobs/sets", params={"ids": job["id"]}).json()["data"][0]["body"]
    assert of_set["result"]["receipt"] == job["result"]["receipt"]


def test_answers_are_never_signed_on_the_event_loop(served: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    sign = ReceiptKeys.sign
    where: list[bool] = []

    def signed(keys: ReceiptKeys, statement: Json) -> str:
        where.append(asyncio._get_running_loop() is None)
        return sign(keys, statement)

    monkeypatch.setattr(ReceiptKeys, "sign", signed)
    for path, body in CALLS.items():
        assert "receipt" in served.client.post(path, json=body | {"return_receipt": True}).json()
    assert where == [True] * len(CALLS)


def test_lines_of_a_batch_have_receipts(served: RunningApi) -> None:
    asked = SCORE | {"return_receipt": True}
    client = openai_of(served)
    batch = run(client, [line("a", asked)])
    (written,) = read(client, batch.output_file_id)
    answer = written["response"]["body"]
    statement = stated(served, answer)
    assert statement.path == "/v1/score"
    statement.check_request(asked)
    statement.check_answer(answer)


def test_a_call_that_is_read_as_a_job_has_no_receipt_there(served: RunningApi) -> None:
    answer = served.client.post("/v1/rerank", json=RANKING | {"return_receipt": True}).json()
    assert "receipt" in answer
    assert "receipt" not in served.client.get(f"/v1/jobs/{answer['id']}").json()["result"]


def test_whatever_is_changed_in_a_receipt_is_found(served: RunningApi) -> None:
    answer = served.client.post("/v1/score", json=SCORE | {"return_receipt": True}).json()
    published = served.client.get("/.well-known/jwks.json").json()
    header, payload, signature = answer["receipt"].split(".")
    stated = json.loads(base64.urlsafe_b64decode(payload + "=="))
    changes: list[Json] = [
        *(stated | {name: "0" * 64} for name in ("job", "path", "request_sha256", "answer_sha256")),
        stated | {"finished_at": stated["finished_at"] + 1},
        stated | {"provenance": []},
        *(stated | {"provenance": [stated["provenance"][0] | {name: "other"}]} for name in stated["provenance"][0]),
    ]
    for change in changes:
        changed = base64.urlsafe_b64encode(rfc8785.dumps(change)).rstrip(b"=").decode()
        with pytest.raises(ReceiptError, match="not genuine"):
            verified(f"{header}.{changed}.{signature}", published)
    for receipt in ("", "a.b.c", answer["receipt"][:-9], f"{header}..{signature}", answer["receipt"] + "."):
        with pytest.raises(ReceiptError):
            verified(receipt, published)
    key = new_key()
    of_another_kind = jwt.PyJWS().encode(b"{}", key, "EdDSA", {"kid": next(iter(ReceiptKeys.read(key).public))})
    for receipt in (ReceiptKeys.read(key).sign({}), of_another_kind):
        with pytest.raises(ReceiptError, match="not genuine"):
            verified(receipt, ReceiptKeys.read(key).published())
    with pytest.raises(ReceiptError, match="not published"):
        verified(answer["receipt"], {"keys": ReceiptKeys.read(new_key()).published()["keys"]})
    statement = verified(answer["receipt"], published)
    answer["scores"][0][0] = np.nextafter(answer["scores"][0][0], 1.0)
    with pytest.raises(ReceiptError, match="another answer"):
        statement.check_answer(answer)


def test_a_repetition_that_differs_names_what_has_computed_it_otherwise(served: RunningApi) -> None:
    statement = stated(served, served.client.post("/v1/score", json=SCORE | {"return_receipt": True}).json())
    again = served.client.post("/v1/score", json=SCORE | {"return_provenance": True}).json()
    again["scores"][0][0] += 2**-20
    with pytest.raises(ReceiptError, match="differs: and nothing in its provenance does"):
        statement.check_repetition(again)
    again["provenance"][0]["dtype"] = "float16"
    with pytest.raises(ReceiptError, match=f'dtype was "{SOME.dtype}" and is "float16"$'):
        statement.check_repetition(again)


def test_keys_rotate_and_old_receipts_stay_valid() -> None:
    old, new = new_key(), new_key()
    statement: Json = {
        "job": "job_1",
        "finished_at": 0,
        "path": "/v1/score",
        "request_sha256": "",
        "answer_sha256": "",
        "provenance": [],
    }
    signed_before = ReceiptKeys.read(old).sign(statement)
    announced, rotated = ReceiptKeys.read(old + new), ReceiptKeys.read(new + public_part(old))
    assert announced.sign(statement) == signed_before
    for keys in (announced, rotated):
        assert verified(signed_before, keys.published()).job == "job_1"
        assert verified(rotated.sign(statement), keys.published()).job == "job_1"
    assert "d" not in {name for key in rotated.published()["keys"] for name in key}
    with pytest.raises(ReceiptError, match="not published"):
        verified(signed_before, ReceiptKeys.read(new).published())


@pytest.mark.parametrize(
    ("pem", "message"),
    [
        ("", "no private key"),
        ("secret", "no private key"),
        (PUBLIC, "no private key"),
        (
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n" + PUBLIC,
            "not encrypted",
        ),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "can't be read"),
    ],
)
def test_keys_that_cannot_be_used_are_named_without_their_text(pem: str, message: str) -> None:
    with pytest.raises(ReceiptError, match=message) as raised:
        ReceiptKeys.read(pem)
    assert "AAAA" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/score", SCORE | {"return_receipt": "yes"}, "return_receipt must be true or false"),
        ("/v1/score", SCORE | {"a number": 2**60, "return_receipt": True}, "no receipt of this request: it has no"),
        ("/v1/jobs", SCORE | {"items": ["a"] * 1001, "return_receipt": True}, "at most 1,000 items"),
    ],
)
def test_what_can_have_no_receipt_is_refused(served: RunningApi, path: str, body: Json, message: str) -> None:
    answer = served.client.post(path, json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "return_receipt"


def test_json_lines_can_have_no_receipt(served: RunningApi) -> None:
    lines = json.dumps({"query": "a", "labels": [" Paris"], "return_receipt": True}) + '\n"b"\n'
    answer = served.client.post("/v1/jobs", content=lines, headers={"content-type": "application/x-ndjson"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_receipt")


def test_a_server_without_a_key_refuses_to_sign(api: RunningApi) -> None:
    answer = api.client.post("/v1/score", json=SCORE | {"return_receipt": True})
    assert answer.status_code == 400
    assert "SCORELINE_RECEIPT_KEYS is not set" in answer.json()["error"]["message"]
    assert api.client.get("/.well-known/jwks.json").json() == {"keys": []}
