"""``scoreline verify``: a receipt, the request and the answer that it is of, and the answer once more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scoreline import Client
from tests.scoreline.running import Up, scoreline

REQUEST = {"query": "The capital", "items": [" of France", ""], "labels": ["a", "b"], "return_receipt": True}


@pytest.fixture
def files(client: Client, tmp_path: Path) -> Path:
    """A folder with the files of a request, its answer, and the public keys."""
    result = client.score("The capital", [" of France", ""], labels=["a", "b"], return_receipt=True)
    assert result.receipt is not None
    written = {"request": REQUEST, "answer": result.raw, "keys": client.receipt_keys(), "receipt": result.receipt}
    for name, value in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    (tmp_path / "receipt.jws").write_text(result.receipt + "\n")
    return tmp_path


@pytest.mark.parametrize("name", ["answer.json", "receipt.json", "receipt.jws"])
def test_a_receipt_is_verified_with_its_request_and_by_computing_the_answer_again(
    shared_up: Up, files: Path, name: str
) -> None:
    run = scoreline(
        "verify", str(files / name), "--request", str(files / "request.json"), "--replay", "--url", shared_up.url
    )
    assert run.returncode == 0, run.stderr
    genuine, request, *answer, again = run.stdout.splitlines()
    assert genuine.startswith("genuine: job_")
    assert " at /v1/score, 20" in genuine
    assert request == "the request is the one that was answered"
    assert answer == (["the answer is the one that was given"] if name == "answer.json" else [])
    assert again.startswith("computed again by ")
    assert again.endswith(": all bits of the answer are the same")


def test_a_receipt_of_a_job_is_verified_and_its_work_done_again(shared_up: Up, client: Client, files: Path) -> None:
    webhook = {"url": "http://127.0.0.1:9/"}
    job = client.submit("The capital", [" of France", ""], labels=["a", "b"], return_receipt=True, webhook=webhook)
    job = client.wait(job)
    (files / "job.json").write_text(json.dumps(job.raw))
    (files / "request.json").write_text(json.dumps(REQUEST | {"webhook": webhook}))
    run = scoreline("verify", str(files / "job.json"), "--request", str(files / "request.json"), "--replay",
                    "--url", shared_up.url)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert " at /v1/jobs, 20" in run.stdout


def test_a_receipt_is_verified_without_a_service_if_the_keys_are_there(files: Path) -> None:
    verify = ["verify", str(files / "answer.json"), "--keys", str(files / "keys.json"), "--url", "http://127.0.0.1:9"]
    assert scoreline(*verify).returncode == 0
    (files / "keys.json").write_text('{"keys": []}')
    run = scoreline(*verify)
    assert (run.returncode, run.stderr) == (
        1,
        "scoreline: the receipt is not genuine: The JWK Set did not contain any keys\n",
    )


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"request": REQUEST | {"query": "other"}}, 1, "the receipt is of another request"),
        ({"answer": {"scores": []}}, 2, "has no receipt"),
        ({"answer": {"receipt": "a.b.c", "scores": []}}, 1, "the receipt is not genuine"),
        ({"request": []}, 2, "must have a JSON object"),
        ({"request": REQUEST | {"\ud800": 1}}, 1, "no canonical JSON"),
    ],
)
def test_what_does_not_hold_is_one_line(
    shared_up: Up, files: Path, change: dict[str, object], code: int, message: str
) -> None:
    for name, value in change.items():
        (files / f"{name}.json").write_text(json.dumps(value))
    run = scoreline("verify", str(files / "answer.json"), "--request", str(files / "request.json"),
                    "--url", shared_up.url)  # fmt: skip
    assert run.returncode == code
    (line,) = run.stderr.splitlines()
    assert message in line


def test_a_changed_answer_is_found(shared_up: Up, files: Path) -> None:
    answer = json.loads((files / "answer.json").read_text())
    answer["scores"][0][0] += 2**-30
    (files / "answer.json").write_text(json.dumps(answer))
    run = scoreline("verify", str(files / "answer.json"), "--url", shared_up.url)
    assert (run.returncode, run.stderr) == (1, "scoreline: the receipt is of another answer\n")


def test_to_compute_again_takes_the_request(files: Path) -> None:
    run = scoreline("verify", str(files / "answer.json"), "--replay")
    assert run.returncode == 2
    assert "--replay needs the request" in run.stderr


def test_the_key_of_a_data_directory_is_private_and_stays(shared_up: Up) -> None:
    file = shared_up.data / "receipt-keys.pem"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().startswith("-----BEGIN PRIVATE KEY-----")
