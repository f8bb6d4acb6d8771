"""A wrong value of a setting is one line: the variable, the value, and what it must be. No password is in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scoreline.exit_codes import ExitCode
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.errors.endings import Ending
from settings.errors.mistakes import SettingError, variable_of, without_password
from settings.keys import KeySettings
from settings.slice import SECRETS, SettingsSlice
from settings.store import StoreSettings
from settings.unknown import SLICES, unknown_variables, wrong_settings

SCHEMAS = {
    name: (one, schema)
    for one in SLICES
    for name, schema in one.model_json_schema()["properties"].items()
    if schema.get("type") != "string" or "enum" in schema
}
"""The settings that do not take any text, with their slices."""

ANY_TEXT = {"type": "string"}


def takes_text(schema: dict[str, Any]) -> bool:
    path = {"type": "string", "format": "path"}
    return schema.get("items") == ANY_TEXT or any(kind in schema.get("anyOf", []) for kind in (ANY_TEXT, path))


SETTINGS = [name for name, (_, schema) in SCHEMAS.items() if not takes_text(schema)]


def error(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message for a value of a variable."""
    monkeypatch.setenv(variable_of(name), value)
    with pytest.raises(SettingError) as raised:
        SCHEMAS[name][0]()
    return str(raised.value)


def test_most_settings_have_wrong_values() -> None:
    assert len(SETTINGS) > 100


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_value_of_any_setting_is_one_line_that_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = error(name, "wröng", monkeypatch)
    assert "\n" not in said
    assert variable_of(name) in said
    assert "must " in said
    assert "; correct it, or unset it" in said
    assert ("wröng" in said) is (name not in ("bootstrap_key", "receipt_keys"))
    if "integer" in str(SCHEMAS[name][1]) and "const" not in str(SCHEMAS[name][1]):
        assert "a whole number" in said


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("port", "70000", "SCORELINE_PORT is '70000': it must be a whole number from 0 to 65535; "),
        ("port", "", "SCORELINE_PORT is empty: it must be a whole number from 0 to 65535; "),
        ("port", "8.5", "or unset it for the default, 8000"),
        ("lease_seconds", "0.001", "it must be a finite number, 0.1 or greater; "),
        ("worker_fresh_seconds", "0.1", "it must be a finite number, 1 or greater; "),
        ("sweep_seconds", "0", "it must be a finite number greater than 0; "),
        ("sweep_seconds", "inf", "it must be a finite number greater than 0; "),
        ("slack_bulk_seconds", "-1", "it must be a finite number, 0 or greater; "),
        ("batch_invariant", "perhaps", "it must be true or false; correct it, or unset it for the default, true"),
        ("dtype", "float16", "it must be auto, bfloat16 or float32; "),
        ("api_processes", "0", "it must be a whole number greater than 0 or auto; "),
        ("step_tokens", "100", "it must be a power of two from 64 to 8192; "),
        ("webhook_ports", "443,99999", "has the entry '99999': each entry must be a whole number from 1 to 65535"),
        ("webhook_allowed_networks", "10.0.0.1/8", "each entry must be an IPv4 network or an IPv6 network"),
        ("max_items", "9" * 5_000, "9…': it must be a whole number"),
    ],
)
def test_what_is_expected_is_said_in_words(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = error(name, value, monkeypatch)
    assert says in said
    assert len(said) < 400


def test_an_empty_variable_of_a_setting_without_a_default_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        (one, name)
        for one in SLICES
        for name, field in one.model_fields.items()
        if field.default is None and name not in SECRETS
    ]
    assert {"bell_socket", "calibrations", "adapter_folder", "model_name"} <= {name for _, name in names}
    for _, name in names:
        monkeypatch.delenv(variable_of(name), raising=False)
    unset = [one() for one in SLICES]
    for _, name in names:
        monkeypatch.setenv(variable_of(name), "")
    assert [one() for one in SLICES] == unset


def test_all_wrong_settings_of_a_process_are_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"port": "x", "api_processes": "y", "lease_seconds": "z", "webhook_ports": "q"}
    for name, value in wrong.items():
        monkeypatch.setenv(variable_of(name), value)
    said = wrong_settings()
    assert all(any(variable_of(name) in one for one in said) for name in wrong)


def test_a_key_is_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORELINE_BOOTSTRAP_KEY", "too-short-a-secret")
    [said] = wrong_settings()
    assert "32 characters" in said
    assert "too-short-a-secret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "http://:pass@host:6379/0",
        "redis://user:pass@host:port/0",
        "redis://:pass@host/first",
        "redis:/user:pass@host",
        "user:pass@host",
        "unix://:pass@/run/redis.sock",
    ],
)
def test_a_url_of_redis_that_can_not_be_used_is_repeated_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORELINE_REDIS_URL", url)
    with pytest.raises(
        SettingError, match=r"SCORELINE_REDIS_URL is '.*': it must be redis://HOST:PORT/NUMBER"
    ) as raised:
        BellSettings()
    assert "pass" not in str(raised.value)


@pytest.mark.parametrize("url", ["redis://host", "rediss://user:pass@host:6380/1", "redis://[::1]:6379/0?protocol=3"])
def test_a_url_of_redis_that_can_be_used_is_taken(url: str) -> None:
    assert BellSettings(redis_url=url).redis_url == url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://user:p@ss/w:rd@host:5432/name", "postgresql+psycopg://user:***@host:5432/name"),
        ("postgresql://host/name?user=u&password=secret&sslmode=require", "***&sslmode=require"),
        ("host=db password=secret user=u", "host=db password=*** user=u"),
        ("password = secret host=db", "password = *** host=db"),
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("sqlite:///a:b.db", "sqlite:///a:b.db"),
        # Without a host. What stands behind a name may be a port, if it can be one.
        ("postgresql+psycopg://scoreline:s3cret", "postgresql+psycopg://scoreline:***"),
        ("postgresql+psycopg://scoreline:s3:c/r?t", "postgresql+psycopg://scoreline:***"),
        ("redis://:s3cret", "redis://:***"),
        ("redis://:6379/0", "redis://:***"),
        ("redis://user:123456", "redis://user:***"),
        ("redis://host:6379", "redis://host:6379"),
        ("redis://host:6379/0?a=b:c", "redis://host:6379/0?a=b:c"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://host/0?a=b:c", "redis://host/0?a=b:c"),
    ],
)
def test_passwords_are_hidden_wherever_a_url_has_them(text: str, shown: str) -> None:
    assert without_password(text).endswith(shown)


def test_slices_that_a_process_makes_by_itself_raise_the_same_error() -> None:
    for one in SettingsSlice.__subclasses__():
        name = next(iter(one.model_fields))
        with pytest.raises(SettingError, match=variable_of(name)):
            one.model_validate({name: ["a list"]} if name not in ("webhook_ports",) else {name: {}})


def test_the_service_and_the_command_end_with_the_same_codes() -> None:
    assert {Ending.DONE: 0, Ending.FAILED: 1, Ending.MISCONFIGURED: 2, Ending.UNAVAILABLE: 3} == {
        Ending.DONE: ExitCode.OK,
        Ending.FAILED: ExitCode.FAILED,
        Ending.MISCONFIGURED: ExitCode.USAGE,
        Ending.UNAVAILABLE: ExitCode.UNAVAILABLE,
    }


def test_settings_that_make_no_sense_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORELINE_CALL_TIMEOUT_SECONDS", "601")
    with pytest.raises(SettingError, match=r"^SCORELINE_CALL_TIMEOUT_SECONDS is '601': it must be at most .*is 600;"):
        ApiSettings()
    monkeypatch.setenv("SCORELINE_MAX_CALL_TIMEOUT_SECONDS", "601")
    assert ApiSettings().call_timeout_seconds == 601


@pytest.mark.parametrize(
    ("slice_of", "name", "value"),
    [
        (StoreSettings, "database_url", "postgresql+psycopg://scoreline:p%40ss@db/scoreline"),
        (BellSettings, "redis_url", "rediss://:secret@redis:6379/0"),
        (KeySettings, "bootstrap_key", "k" * 40),
    ],
)
def test_a_secret_may_come_from_a_file(
    slice_of: type[SettingsSlice], name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variable = variable_of(name)
    (tmp_path / "secret").write_text(f"{value}\n")
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(f"{variable}_FILE", str(tmp_path / "secret"))
    assert not unknown_variables(os.environ)
    found = getattr(slice_of(), name)
    assert (found.get_secret_value() if name == "bootstrap_key" else found) == value
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=f"^{variable} and {variable}_FILE are both set") as raised:
        slice_of()
    assert value not in str(raised.value)
    monkeypatch.delenv(variable)
    monkeypatch.delenv(f"{variable}_FILE")
    monkeypatch.setenv(f"{variable}_FILE".lower(), str(tmp_path / "nowhere"))
    with pytest.raises(SettingError, match=f"^{variable}_FILE names '.*nowhere', which can't be read: No such file"):
        slice_of()
