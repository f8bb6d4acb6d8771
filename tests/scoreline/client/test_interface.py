"""What users import: quickly, typed, and with every option by its name."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pydoc
import re
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpcore2
import pandas as pd
import pytest

import scoreline
from scoreline import AsyncClient, Client, LikelihoodResult, Ranking, ScoreResult, client
from scoreline.client.connection import connection_settings
from scoreline.client.exchange.sending import Service
from scoreline.client.operations import likelihoods, scoring, submitting
from scoreline.client.tables import Asked
from tests.scoreline.client.unreliable import Reply, answering
from tests.scoreline.running import ROOT, Up

SERVER = {"api", "jobs", "model", "workers", "scoring", "settings", "bell", "webhooks", "operations", "checkpoints"}
TABLES = {"numpy", "pandas", "polars", "pyarrow"}
HEAVY = TABLES | {"rich", "typer", "click", "pygments", "jax", "fastapi", "sqlalchemy", "pydantic"}


def imported_by(statement: str) -> set[str]:
    """Return the packages that a fresh Python has loaded after a statement."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_importing_the_client_loads_nothing_of_the_server_and_nothing_heavy() -> None:
    loaded = imported_by("from scoreline import Client, AsyncClient, verify_webhook; Client(api_key='a').close()")
    assert "httpx2" in loaded
    assert not loaded & (SERVER | HEAVY)
    assert "httpx2" not in imported_by("import scoreline")


def test_the_package_exports_what_the_client_does() -> None:
    constants = {name for name in client.__all__ if name.isupper()}
    assert set(scoreline.__all__) == set(client.__all__) - constants
    assert all(getattr(scoreline, name) is getattr(client, name) for name in scoreline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        scoreline.Klient  # noqa: B018


PUBLIC = [name for name, what in vars(Client).items() if callable(what) and not name.startswith("_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_both_clients_have_a_method_with_the_same_options_and_an_explanation(name: str) -> None:
    blocking = getattr(Client, name)
    if name == "close":
        return
    awaited = getattr(AsyncClient, name)
    assert [(p.name, p.kind, p.default) for p in inspect.signature(blocking).parameters.values()] == [
        (p.name, p.kind, p.default) for p in inspect.signature(awaited).parameters.values()
    ]
    assert blocking.__doc__
    assert awaited.__doc__ == blocking.__doc__
    assert not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(blocking).parameters.values())


def options_of(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(method).parameters.items() if p.kind is p.KEYWORD_ONLY}


def test_the_options_of_map_are_those_of_submit() -> None:
    of_the_whole = {"concurrency", "errors", "timeout", "progress", "bar"}
    assert set(options_of(Client.map)) == set(options_of(Client.submit)) | of_the_whole


@pytest.mark.parametrize(
    "name",
    [
        *("score", "submit", "upload", "dry_run", "map", "likelihood", "submit_likelihood", "upload_likelihood"),
        *("decide", "submit_decision", "decide_many", "evaluate"),
    ],
)
def test_the_help_of_a_method_shows_each_option_with_its_type_its_default_and_what_it_means(name: str) -> None:
    method = getattr(Client, name)
    shown = pydoc.plain(pydoc.render_doc(method))
    for option, parameter in options_of(method).items():
        assert f"{option}: {parameter.annotation} = {parameter.default!r}" in shown
        assert re.search(rf"\b{option}(, \w+)*: ", inspect.getdoc(method) or ""), option


@pytest.mark.parametrize(
    "operation",
    [
        scoring.score,
        scoring.rerank,
        scoring.tokenize,
        submitting.submit,
        submitting.dry_run,
        likelihoods.likelihood,
        likelihoods.submit_likelihood,
        likelihoods.dry_run_likelihood,
    ],
)
def test_every_option_is_a_field_of_the_body_with_the_value_that_was_given(operation: Any) -> None:
    names = set(inspect.signature(getattr(Client, operation.__name__)).parameters) - {"self", "idempotency_key"}
    options = {name: 7.0 if name == "timeout" else [name] for name in names}
    command = next(operation(Service("http://127.0.0.1:1", 30.0, 20.0, 300.0), **options))
    body = json.loads(command.request.body.content())
    assert body.pop("kind", "likelihood") == "likelihood"
    assert body.pop("dry_run", True) is True
    assert body == options


@pytest.mark.parametrize("method", ["score", "rerank", "submit", "upload", "dry_run", "wait", "batch", "events"])
def test_a_mistake_in_the_name_of_an_option_is_a_type_error_and_nothing_is_sent(method: str) -> None:
    mistaken: dict[str, Any] = {"softmax": True}
    with Client("http://127.0.0.1:1") as blocking, pytest.raises(TypeError, match="softmax"):
        getattr(blocking, method)("a", ["b"], **mistaken)
    with pytest.raises(TypeError, match="softmax"):
        getattr(AsyncClient("http://127.0.0.1:1"), method)("a", ["b"], **mistaken)


def test_the_address_is_the_given_one_or_else_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, shared_up: Up
) -> None:
    monkeypatch.setenv("SCORELINE_URL", shared_up.url)
    with Client() as connected:
        assert [model.id for model in connected.models()] == ["tiny"]
    monkeypatch.setenv("SCORELINE_URL", "http://127.0.0.1:1")
    with Client(shared_up.url) as connected:
        assert connected.models()


SCRIPT = """
    from __future__ import annotations

    import asyncio

    from scoreline import AsyncClient, Client, Job, JobEnd, JobFailed, ScoreResult, ScorelineError, verify_webhook

    with Client("http://127.0.0.1:8000", api_key="") as client:
        result: ScoreResult = client.score("a", ["b"], labels=[" yes"], apply_softmax=True)
        best: float = max(row[0] for row in result.scores)
        job: Job = client.submit([1, 2], [[3], [4]], label_token_ids=[5], priority="bulk")
        try:
            client.wait(job, timeout=60, progress=lambda job: print(job.scored_items))
        except JobFailed as error:
            failed: Job | None = error.job
        for event in client.events(job, scores=True):
            if isinstance(event, JobEnd) and event.job is not None:
                print(event.job.status)
        for one in client.map([("a", ["b"])], labels=[" yes"], errors="yield"):
            text: str = one.code if isinstance(one, ScorelineError) else one.id
        names: list[str] = [listed.id for listed in client.jobs(status="succeeded")]
        kind: str = verify_webhook(b"", {}, "whsec_").type


    async def asynchronous() -> list[list[float]]:
        async with AsyncClient() as client:
            async for result in client.map([("a", ["b"])], label_token_ids=[5]):
                print(result.labels)
            return (await client.score("a", ["b"], labels=[" yes"])).scores


    asyncio.run(asynchronous())
"""

MISTAKES = """
    from scoreline import AsyncClient, Client

    client = Client()
    client.score("a", ["b"], softmax=True)
    client.submit("a", ["b"], priority="urgent")
    client.map([("a", ["b"])], softmax=True)
    client.wait(5)
    length: int = client.score("a", ["b"]).id


    async def asynchronous() -> None:
        AsyncClient().score("a", ["b"]).scores
"""


@pytest.mark.slow
def test_a_users_script_is_checked_by_mypy_strictly(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "mistakes.py").write_text(textwrap.dedent(MISTAKES))
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "scoreline").symlink_to(ROOT / "scoreline")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "--follow-imports=silent",
            "script.py",
            "mistakes.py",
        ],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    *errors, _ = [line for line in run.stdout.splitlines() if " note: " not in line]
    assert not [line for line in errors if line.startswith("script.py")], run.stdout
    wrong = [line.partition("mistakes.py:")[2].partition(":")[0] for line in errors if line.startswith("mistakes.py")]
    assert sorted(set(wrong), key=int) == ["5", "6", "7", "8", "9", "13"], run.stdout


def test_the_authorities_that_a_machine_trusts_are_read_for_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadError(Exception):
        pass

    def read(**_: object) -> None:
        raise ReadError

    monkeypatch.setattr(httpcore2, "default_ssl_context", read)
    Client("http://127.0.0.1:1").close()
    with pytest.raises(ReadError):
        Client("https://127.0.0.1:1")
    settings, _ = connection_settings("http://127.0.0.1:1", None, 1.0, 1.0, 1.0)
    assert settings["verify"].verify_mode is ssl.CERT_REQUIRED, "if it were used all the same, nothing would be trusted"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_proxy_of_the_environment_is_asked_for_other_machines_alone(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async def tokenize(url: str) -> list[int]:
        async with AsyncClient(url) as client:
            return await client.tokenize("a")

    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with (
        answering(lambda _: Reply(200, {"tokens": [1]})) as service,
        answering(lambda _: Reply(200, {"tokens": [2]})) as proxy,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        url = service.url.replace("127.0.0.1", host)
        for expected, address in ((1, url), (2, "http://scoreline.invalid")):
            with Client(address) as client:
                assert client.tokenize("a") == [expected]
            assert asyncio.run(tokenize(address)) == [expected]
        assert [len(service.got), len(proxy.got)] == [2, 2]


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        ("http://127.8.0.1:1", "all://127.8.0.1"),
        ("https://[::1]:1", "all://[::1]"),
        ("http://a.localhost", "all://a.localhost"),
    ],
)
def test_addresses_of_the_machine_itself_are_known(url: str, pattern: str) -> None:
    settings, _ = connection_settings(url, None, 1, 1, 1)
    assert settings["mounts"] == {pattern: None}
    Client(url).close()


def test_help_shows_the_types_of_a_user() -> None:
    for method, returned in ((Client.score, "ScoreResult"), (AsyncClient.jobs, "AsyncIterator[Job]")):
        shown = pydoc.plain(pydoc.render_doc(method))
        assert f"-> {returned}" in shown
        assert "service" not in shown.partition(" -> ")[0]
        assert "'" not in shown.partition("on_timeout")[0].partition("\n    ")[0]
        assert "Flow[" not in shown
    assert "query: str | Sequence[int] | Column, items: Sequence[str] |" in pydoc.render_doc(Client.score)


def test_a_result_of_any_size_fits_a_screen_and_a_notebook() -> None:
    items = 100_000
    raw = {
        "id": "job_1",
        "model": "m",
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
        "warnings": ["w" * 500] * 20,
        "scores": [[0.125] * 256] * items,
        "label_mass": [0.5] * items,
        "logprob": [-0.5] * items,
        "num_tokens": [1] * items,
        "is_greedy": [True] * items,
        "results": [{"index": n, "relevance_score": 0.5, "label_mass": 0.5} for n in range(items)],
    }
    asked = Asked(("<b>", *range(255)), pd.RangeIndex(7, 7 + items))
    for kind in (ScoreResult, LikelihoodResult, Ranking):
        result = kind.read(raw, asked)
        assert len(repr(result)) < 1_600
        assert "... 99997 more" in repr(result)
        page = result._repr_html_()
        assert len(page) < 10_000
        assert page.count("<tr>") == 11
        assert "<tr><th>7</th>" in page
        assert f"{items - 10} more rows" in page
        assert "<b>" not in page
    assert "<th>&lt;b&gt;</th>" in ScoreResult.read(raw, asked)._repr_html_()
