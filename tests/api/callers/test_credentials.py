"""Authentication: valid keys are accepted, and all others get the same answer."""

from __future__ import annotations

import hmac

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from tests.api.callers.guarded import Guarded, send
from tests.api.serving import KEY, UNKNOWN_KEY, eventually


def test_a_valid_key_is_accepted_with_any_spelling_of_its_scheme(guarded: Guarded) -> None:
    for scheme in ("Bearer", "bearer", "BEARER", "Bearer  "):
        assert send(guarded.api, f"{scheme} {guarded.keys['good']}").status_code == 200
    assert send(guarded.api, f"Bearer {KEY}").status_code == 200


BAD: dict[str, tuple[str | bytes, ...]] = {
    "none": (),
    "empty": ("",),
    "a scheme alone": ("Bearer",),
    "no scheme": ("{good}",),
    "another scheme": ("Basic {good}",),
    "unknown": (f"Bearer {UNKNOWN_KEY}",),
    "the secret of another": ("Bearer {mixed}",),
    "wrong in its last character": ("Bearer {altered}",),
    "without its secret": ("Bearer {public}",),
    "more than the key": ("Bearer {good}a",),
    "two words": ("Bearer {good} {good}",),
    "two keys in a header": ("Bearer {good}, Bearer {good}",),
    "two headers": ("Bearer {good}", "Bearer {good}"),
    "a bad one before a good one": ("Bearer no", "Bearer {good}"),
    "expired": ("Bearer {expired}",),
    "revoked": ("Bearer {revoked}",),
    "in capitals": ("Bearer {capitals}",),
    "very long": ("Bearer " + "a" * 20_000,),
    "a long secret": ("Bearer sk_sl_" + "a" * 16 + "_" + "a" * 20_000,),
    "UTF-8": ("Bearer ключ".encode(),),
    "Latin-1": (b"Bearer cl\xe9",),
    "a secret that is not ASCII": (b"Bearer sk_sl_" + b"a" * 16 + b"_" + b"\xe9" * 52,),
    "a tab": ("Bearer {good}\tb",),
    "part of the bootstrap key": ("Bearer " + KEY[:-1],),
    "SQL": ("Bearer sk_sl_' OR 1=1 --_x",),
}


@pytest.mark.parametrize("case", BAD)
def test_all_invalid_credentials_get_the_same_response(guarded: Guarded, case: str) -> None:
    good, other = guarded.keys["good"], guarded.keys["read"]
    names = guarded.keys | {
        "mixed": good[:23] + other[23:],
        "altered": good[:-1] + ("a" if good[-1] != "a" else "b"),
        "public": good[:22],
        "capitals": good.upper(),
    }
    sent = []
    for value in BAD[case]:
        text = value if isinstance(value, bytes) else value.encode()
        for name, key in names.items():
            text = text.replace(f"{{{name}}}".encode(), key.encode())
        sent.append(text)
    response, plain = send(guarded.api, *sent), send(guarded.api)
    assert response.status_code == 401
    assert response.content == plain.content
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")


def test_a_key_in_the_query_string_is_ignored(guarded: Guarded) -> None:
    for name in ("api_key", "key", "access_token", "authorization"):
        assert send(guarded.api, path=f"/v1/jobs?{name}={guarded.keys['good']}").status_code == 401


def test_hashes_of_secrets_are_compared_in_constant_time_even_for_an_unknown_key(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def recorded(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    counts = []
    for key in (guarded.keys["good"], "sk_sl_" + "a" * 16 + "_" + "a" * 52, guarded.keys["revoked"]):
        compared.clear()
        send(guarded.api, f"Bearer {key}")
        assert {len(text) for pair in compared for text in pair} == {64}
        assert not any(key.rpartition("_")[2] in pair for pair in compared), "hashes, not secrets"
        counts.append(len(compared))
    assert counts == [2, 2, 2], "once with the bootstrap key, once with the stored key or a stand-in"


def test_the_access_log_says_who_called_and_which_error_was_answered(guarded: Guarded) -> None:
    ids = {name: key[:22].removeprefix("sk_sl_") for name, key in guarded.keys.items()}
    wanted: list[tuple[str, str, dict[str, str]]] = [
        (f"Bearer {guarded.keys['good']}", "/v1/jobs", {"tenant": "acme", "key_id": ids["good"]}),
        (f"Bearer {KEY}", "/v1/jobs", {"tenant": "default"}),
        (f"Bearer {guarded.keys['revoked']}", "/v1/jobs", {"key_id": ids["revoked"], "code": "invalid_api_key"}),
        (f"Bearer {UNKNOWN_KEY}", "/v1/jobs", {"key_id": "a" * 16, "code": "invalid_api_key"}),
        ("Bearer no\tkey", "/v1/jobs", {"code": "invalid_api_key"}),
        (
            f"Bearer {guarded.keys['score']}",
            "/v1/jobs",
            {"tenant": "acme", "key_id": ids["score"], "code": "insufficient_scope"},
        ),
        (
            f"Bearer {guarded.keys['good']}",
            "/v1/jobs/none",
            {"tenant": "acme", "key_id": ids["good"], "code": "job_not_found"},
        ),
        (f"Bearer {guarded.keys['good']}", "/nowhere", {"code": "not_found"}),
        (f"Bearer {guarded.keys['good']}", "/v1//jobs/", {"tenant": "acme", "key_id": ids["good"]}),
    ]
    for authorization, path, about in wanted:
        with capture_logs(processors=[merge_contextvars]) as logs:
            request_id = send(guarded.api, authorization, path=path).headers["x-request-id"]
            # The line is written behind the answer, as that of a request before it was.
            eventually(lambda: any(entry.get("request_id") == request_id for entry in logs), "the request is logged")  # noqa: B023
        (line,) = [entry for entry in logs if entry.get("request_id") == request_id]
        found = {name: line[name] for name in ("tenant", "key_id", "code") if name in line}
        assert found == about, path
    for secret in guarded.keys.values():
        assert secret[23:] not in str(logs)


def test_errors_are_counted_by_their_code(guarded: Guarded) -> None:
    def count(code: str) -> float:
        lines = guarded.api.client.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[1]) for line in lines if line.startswith(f'scoreline_errors_total{{code="{code}"}}')
        )

    before = count("invalid_api_key"), count("not_found")
    send(guarded.api, f"Bearer {UNKNOWN_KEY}")
    send(guarded.api, path="/nowhere")
    send(guarded.api, f"Bearer {guarded.keys['good']}")
    assert (count("invalid_api_key"), count("not_found")) == (before[0] + 1, before[1] + 1)
