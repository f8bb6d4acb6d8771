"""The examples in ``docs/webhooks.md`` work as they are printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from webhooks.signing import new_secret, sign

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")
BODY = '{"type": "job.failed", "text": "ü"}\n'.encode()
SECRET = new_secret()


def shown(language: str, mark: str) -> str:
    """The block of code in that language that has the mark in it."""
    (block,) = [block for block in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if mark in block]
    return str(block)


def signed(secret: str, seconds_ago: int = 0) -> dict[str, str]:
    timestamp = int(time.time()) - seconds_ago
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign([new_secret(), secret], "msg_1", timestamp, BODY),
    }


def by_package(secret: str, headers: dict[str, str], body: bytes) -> bool:
    names: dict[str, Any] = {"secret": secret, "headers": headers, "body": body}
    exec(shown("python", "standardwebhooks"), names)
    return "event" in names


def by_hand(secret: str, headers: dict[str, str], body: bytes) -> bool:
    names: dict[str, Any] = {}
    exec(shown("python", "def verified"), names)
    return bool(names["verified"](secret, headers, body))


@pytest.mark.parametrize("verified", [by_package, by_hand])
def test_the_python_example_accepts_right_signatures_and_refuses_wrong_ones(
    verified: Callable[[str, dict[str, str], bytes], bool],
) -> None:
    assert verified(SECRET, signed(SECRET), BODY)
    assert not verified(new_secret(), signed(SECRET), BODY)
    assert not verified(SECRET, signed(SECRET), BODY.replace(b"failed", b"succeeded"))
    assert not verified(SECRET, signed(SECRET, seconds_ago=400), BODY)


@pytest.mark.parametrize("verified", [by_package, by_hand])
@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", [None, "", "x", "v1", "v1,\xe9", "v1,x", "\udcff", "9" * 400, "9" * 5_000])
def test_the_python_example_refuses_malformed_headers(
    verified: Callable[[str, dict[str, str], bytes], bool], name: str, value: str | None
) -> None:
    headers = signed(SECRET)
    del headers[name]
    assert not verified(SECRET, headers | ({} if value is None else {name: value}), BODY)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_shell_example_computes_the_same_signature(tmp_path: Path) -> None:
    (tmp_path / "body.json").write_bytes(BODY)
    shell = subprocess.run(
        ["sh", "-eu", "-c", shown("sh", "openssl")],
        cwd=tmp_path,
        env=os.environ | {"secret": SECRET, "id": "msg_1", "timestamp": "1614265330"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"v1,{shell.stdout.strip()}" == sign([SECRET], "msg_1", 1614265330, BODY)
