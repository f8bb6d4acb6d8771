"""Files as OpenAI's own client sends, lists, reads and deletes them."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from sqlalchemy import func, select

from api.requests.uploads.file_form import FORM_BYTES, FileForm
from jobs.file_batches.reading import FILE_IN_USE
from jobs.files import removal
from jobs.files.tables import creation_keys, file_parts, files
from jobs.store.database import Database
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings
from tests.api.batches.running import create, ended, line, openai_of, run, upload
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH, quick_on

Fresh = tuple[RunningApi, StandInWorker]
LINES = [line("a"), line("b")]


def rows(api: RunningApi) -> tuple[int, ...]:
    """Return the numbers of files, of their parts and of their Idempotency-Keys."""
    with closing(Database.open(api.store)) as database, database.read() as tx:
        return tuple(
            tx.scalar(select(func.count()).select_from(table)) or 0 for table in (files, file_parts, creation_keys)
        )


@ON_BOTH
def test_a_file_is_uploaded_listed_read_and_deleted(fresh: Fresh) -> None:
    api, _ = fresh
    client = openai_of(api)
    content = b"".join(b'{"n": %d}\n' % n for n in range(150_000)) + b"\r\n  \n\xff no line end"
    file = client.files.create(file=("my lines.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "my lines.jsonl",
        "batch",
        "processed",
    )
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    assert [one.id for one in client.files.list()] == [file.id]
    with closing(Database.open(api.store)) as database, database.read() as tx:
        assert tx.scalar(select(files.c.lines)) == 150_001
        assert tx.scalar(select(func.max(func.length(file_parts.c.content)))) == 2**18
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.retrieve(file.id)
    assert caught.value.code == "file_not_found"
    assert rows(api) == (0, 0, 0)


def test_files_are_listed_in_pages_in_both_orders(api: RunningApi) -> None:
    client = openai_of(api)
    made = [upload(client, [line(str(n))]).id for n in range(5)]
    assert [one.id for one in client.files.list(limit=2)][:5] == made[::-1]
    assert [one.id for one in client.files.list(limit=2, order="asc")][-5:] == made
    page = client.files.list(limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    assert client.files.list(purpose="batch_output").data == []
    assert client.files.list(after=made[0], order="asc", limit=100).data[0].id == made[1]


@pytest.mark.parametrize(
    ("form", "code", "param"),
    [
        ({}, "invalid_request", "purpose"),
        ({"purpose": "assistants"}, "invalid_request", "purpose"),
        ({"purpose": "batch", "expires_after[anchor]": "never"}, "invalid_request", "expires_after.anchor"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "0"},
            "invalid_request",
            "expires_after.seconds",
        ),
        ({"purpose": "b" * 2_000}, "invalid_request", "purpose"),
        ({f"n{n}": "1" for n in range(20)}, "invalid_request", None),
    ],
    ids=["no purpose", "another purpose", "another anchor", "no time", "a long field", "many fields"],
)
def test_a_form_that_is_wrong_is_refused_and_leaves_nothing(
    api: RunningApi, form: dict[str, str], code: str, param: str | None
) -> None:
    before = rows(api)
    answer = api.client.post("/v1/files", data=form, files={"file": ("a", b"{}\n" * 400_000)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
    assert rows(api) == before


WHOLE = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' + (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n--x--\r\n'
)


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (WHOLE, "application/json", 415, "unsupported_media_type"),
        (WHOLE, "multipart/form-data", 400, "invalid_request"),
        (WHOLE, "multipart/form-data; boundary=" + "x" * 300, 400, "invalid_request"),
        (WHOLE[:-6], "multipart/form-data; boundary=x", 400, "invalid_request"),
        (WHOLE.replace(b'"purpose"', b'"file"'), "multipart/form-data; boundary=x", 400, "invalid_request"),
        (WHOLE.replace(b'name="file"', b'name="data"'), "multipart/form-data; boundary=x", 400, "invalid_request"),
        (WHOLE.replace(b"filename", b"f" * 5_000), "multipart/form-data; boundary=x", 400, "invalid_request"),
        (WHOLE.replace(b"--x\r\n", b"no form"), "multipart/form-data; boundary=x", 400, "invalid_request"),
        (b"", "multipart/form-data; boundary=x", 400, "invalid_request"),
    ],
    ids=["JSON", "no boundary", "long boundary", "cut off", "two files", "no file", "long header", "no form", "empty"],
)
def test_a_body_that_is_no_form_is_refused(
    api: RunningApi, content: bytes, media_type: str, status: int, code: str
) -> None:
    before = rows(api)
    answer = api.client.post("/v1/files", content=content, headers={"Content-Type": media_type})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert rows(api) == before


@pytest.mark.parametrize("part", [b"\r\n", WHOLE], ids=["line ends before the form", "behind the form"])
def test_what_stands_around_the_parts_of_a_form_is_limited(part: bytes) -> None:
    form = FileForm(b"x", LimitSettings(max_file_bytes=10))
    form.feed(part)
    for _ in range(FORM_BYTES // 1_024 - 1):
        form.feed(b"\n" * 1_024)
    with pytest.raises(RequestError) as caught:
        form.feed(b"\n" * 2_048)
    assert (caught.value.code, caught.value.limit) == (ErrorCode.REQUEST_TOO_LARGE, "max_file_bytes")


def test_the_order_of_the_fields_and_the_size_of_the_pieces_do_not_matter(api: RunningApi) -> None:
    file_first = WHOLE.replace(b'"purpose"\r\n\r\nbatch', b'"file"; filename="dir/a b.jsonl"\r\n\r\n{}\n', 1).replace(
        b'name="file"; filename="a"\r\n\r\n{}', b'name="purpose"\r\n\r\nbatch'
    )

    def pieces() -> Any:
        yield from (file_first[n : n + 1] for n in range(len(file_first)))

    answer = api.client.post(
        "/v1/files", content=pieces(), headers={"Content-Type": 'multipart/form-data; boundary="x"'}
    )
    assert answer.status_code == 200, answer.text
    assert (answer.json()["filename"], answer.json()["bytes"]) == ("a b.jsonl", 3)


def test_an_idempotency_key_makes_a_file_once(fresh: Fresh) -> None:
    api, _ = fresh
    client = openai_of(api)
    key = {"Idempotency-Key": "one"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: try_upload(client, key), range(4)))
    made = {answer for answer in answers if answer is not None}
    assert len(made) == 1, answers
    again = client.files.with_raw_response.create(file=("lines.jsonl", b"{}\n"), purpose="batch", extra_headers=key)
    assert again.parse().id in made
    assert again.headers["idempotency-replayed"] == "true"
    assert rows(api) == (1, 1, 1)
    for name, content in (("lines.jsonl", b"{ }\n"), ("other.jsonl", b"{}\n")):
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.files.create(file=(name, content), purpose="batch", extra_headers=key)
        assert caught.value.code == "idempotency_key_reused"
    client.files.delete(made.pop())
    assert upload(client, LINES, extra_headers=key).id


def try_upload(client: openai.OpenAI, key: dict[str, str]) -> str | None:
    """Return the id of the file; None if another request with the same key was still being received."""
    try:
        made = client.with_options(max_retries=0).files.create(
            file=("lines.jsonl", b"{}\n"), purpose="batch", extra_headers=key
        )
        return str(made.id)
    except openai.ConflictError as error:
        return None if error.code == "idempotency_in_progress" else "another conflict"


@quick_on("sqlite")
def test_limits_are_errors_that_name_them(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    limits = {
        "max_file_bytes": 100_000,
        "max_lines_per_file": 100,
        "max_files_per_tenant": 3,
        "max_stored_bytes_per_tenant": 150_000,
        "max_open_batches_per_tenant": 1,
    }
    with running_api(model.directory, store_url, tmp_path, with_worker=False, **limits) as (api, _):
        client = openai_of(api, max_retries=0)
        for content in (b"x" * 100_001, b"{}\n" * 101):
            with pytest.raises(openai.APIStatusError) as caught:
                client.files.create(file=("a", content), purpose="batch")
            assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
        first = client.files.create(file=("a", b"x" * 90_000), purpose="batch")
        for held in (b"y" * 90_000,):
            with pytest.raises(openai.RateLimitError) as refused:
                client.files.create(file=("a", held), purpose="batch")
            assert refused.value.code == "quota_exceeded"
        others = [upload(client, LINES).id for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refused:
            upload(client, LINES)
        assert refused.value.code == "quota_exceeded"
        client.files.delete(first.id)
        upload(client, LINES)
        waiting = create(client, others[0])
        with pytest.raises(openai.RateLimitError) as refused:
            create(client, others[1])
        assert refused.value.code == "quota_exceeded"
        with pytest.raises(openai.ConflictError) as in_use:
            client.files.delete(others[0])
        assert in_use.value.code == "file_in_use"
        client.batches.cancel(waiting.id)
        text = api.client.get("/metrics").text
        for limit in limits:
            assert f'scoreline_refused_requests_total{{limit="{limit}"}}' in text, limit


def test_a_file_that_expires_or_whose_sender_falls_silent_is_removed(
    model: TinyModel, store_url: str, tmp_path: Path
) -> None:
    limits = {"upload_timeout_seconds": 0.5, "upload_seconds": 5}
    with running_api(model.directory, store_url, tmp_path, with_worker=False, **limits) as (api, _):
        client = openai_of(api, max_retries=0)
        file = upload(client, LINES, expires_after={"anchor": "created_at", "seconds": 1})
        assert file.expires_at is not None
        assert file.expires_at - file.created_at in (1, 2)

        def silent() -> Any:
            yield WHOLE[:-10] + b"{}" * 2**20
            eventually(lambda: rows(api)[0] == 0, "all files are removed")
            yield b""

        answer = None
        # The server may close the connection before it is read from.
        with suppress(httpx2.TransportError):
            answer = api.client.post(
                "/v1/files", content=silent(), headers={"Content-Type": "multipart/form-data; boundary=x"}
            )
        assert answer is None or answer.status_code == 408
        eventually(lambda: rows(api) == (0, 0, 0), "all rows are removed")


def test_a_file_is_removed_in_steps_that_a_sweep_can_finish(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    api, _ = fresh
    monkeypatch.setattr(removal, "PARTS_PER_STEP", 2)
    steps = itertools.count()
    removed = removal.remove_files

    def stop_after_two(*given: Any) -> int:
        return 0 if next(steps) >= 2 else removed(*given)

    client = openai_of(api)
    file = client.files.create(file=("a", b"x" * 2**21), purpose="batch")
    with closing(Database.open(api.store)) as database:
        monkeypatch.setattr(removal, "remove_files", stop_after_two)
        removal.delete_file(database, "default", file.id, FILE_IN_USE)
        monkeypatch.setattr(removal, "remove_files", removed)
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)
    eventually(lambda: rows(api)[:2] == (0, 0), "a sweep removes the rest")


def test_an_input_file_that_was_deleted_leaves_the_output_of_its_batch(api: RunningApi) -> None:
    client = openai_of(api)
    batch = run(client, LINES)
    client.files.delete(batch.input_file_id)
    assert batch.output_file_id is not None
    assert len(client.files.content(batch.output_file_id).text.splitlines()) == 2
    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, batch.output_file_id)
    assert caught.value.code == "invalid_file"


@quick_on("sqlite")
def test_a_tenant_whose_batches_have_written_too_many_files_makes_no_further_one(
    model: TinyModel, store_url: str, tmp_path: Path
) -> None:
    """Its upload fits, and what its batch writes is not refused, but then something must be deleted."""
    with running_api(model.directory, store_url, tmp_path, max_files_per_tenant=2) as (api, _):
        client = openai_of(api, max_retries=0)
        key = {"Idempotency-Key": "one"}
        file = upload(client, [line("a"), b"bad"])
        batch = ended(client, create(client, file.id, extra_headers=key).id)
        assert batch.output_file_id is not None
        assert batch.error_file_id is not None
        with pytest.raises(openai.RateLimitError) as refused:
            create(client, file.id)
        assert refused.value.code == "quota_exceeded"
        assert 'scoreline_refused_requests_total{limit="max_files_per_tenant"}' in api.client.get("/metrics").text
        assert create(client, file.id, extra_headers=key).id == batch.id, "a batch that was made is found again"
        client.files.delete(batch.output_file_id)
        client.files.delete(batch.error_file_id)
        create(client, file.id)
