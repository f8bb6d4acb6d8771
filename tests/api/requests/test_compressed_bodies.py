"""Compressed JSON bodies: they are what they unpack to, and cost no more than that would."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from api.requests.bodies import decompression
from api.requests.bodies.decompression import Decompressor
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings
from tests.api.serving import RunningApi, running_api
from tests.api.tiny_model import TinyModel

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "x-gzip": gzip.compress, "zstd": zstd.compress}
GOOD: dict[str, Any] = {"query": "The answer", "items": [" is", " was"], "label_token_ids": [70, 71]}


def send(api: RunningApi, content: bytes, encoding: str) -> Any:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    return api.client.post("/v1/score", content=content, headers=headers)


@pytest.mark.parametrize("encoding", PACK)
def test_a_compressed_body_is_answered_as_a_plain_one(api: RunningApi, encoding: str) -> None:
    content = json.dumps(GOOD).encode()
    pack = PACK[encoding]
    plain = api.client.post("/v1/score", json=GOOD).json()["scores"]
    padding = bytes(20_000) if encoding == "gzip" else b""
    for packed in (pack(content) + padding, pack(content[:9]) + padding + pack(b"") + pack(content[9:])):
        answer = send(api, packed, encoding)
        assert answer.status_code == 200, answer.text
        assert answer.json()["scores"] == plain
    long = content + b" " * 2**20
    assert send(api, pack(long), encoding).json()["scores"] == plain


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_broken_body_is_refused(api: RunningApi, encoding: str) -> None:
    content = json.dumps(GOOD).encode()
    packed = PACK[encoding](content)
    cases = {
        "cut off": (packed[:-3], packed + packed[:5], b""),
        f"not valid {encoding}": (content, packed + b"and what stands behind", b"\0" + packed[1:]),
    }
    for says, bodies in cases.items():
        for body in bodies:
            answer = send(api, body, encoding)
            assert answer.status_code == 400, body
            error = answer.json()["error"]
            assert error["code"] == "invalid_request"
            assert says in error["message"], body


@pytest.mark.parametrize("encoding", ["gzip, zstd", "br", "deflate", "gzip, gzip"])
def test_other_encodings_are_refused(api: RunningApi, encoding: str) -> None:
    answer = send(api, json.dumps(GOOD).encode(), encoding)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_is_limited_by_what_it_unpacks_to(
    model: TinyModel, sqlite_url: str, tmp_path: Path, encoding: str
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, max_body_bytes=2**17) as (api, _):
        content = json.dumps(GOOD).encode()
        fitting = content + b" " * (2**17 - len(content))
        assert send(api, PACK[encoding](fitting), encoding).status_code == 200
        answer = send(api, PACK[encoding](fitting + b" "), encoding)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert str(2**17) in answer.json()["error"]["message"]


@given(st.binary(max_size=4_000), st.sampled_from(["gzip", "zstd"]), st.integers(1, 3_000), st.integers(1, 200))
def test_any_pieces_unpack_to_the_same(content: bytes, encoding: str, size: int, step: int) -> None:
    padding = bytes(7) if encoding == "gzip" else b""
    packed = PACK[encoding](content) + padding + PACK[encoding](content * 3) + padding
    one = Decompressor(encoding, LimitSettings(), step)
    found = [data for start in range(0, len(packed), size) for data in one.feed(packed[start : start + size])]
    one.finish()
    assert b"".join(found) == content * 4
    assert max(map(len, found), default=0) <= step


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_is_not_taken_of_a_bomb_is_never_unpacked(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PACK[encoding](bytes(2**28))
    steps = Decompressor(encoding, LimitSettings(), 2**16).feed(packed)
    tracemalloc.start()
    try:
        assert sum(len(next(steps)) for _ in range(8)) <= 2**19
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**21
    monkeypatch.setattr(decompression, "FREE_BYTES", 2**20)
    with pytest.raises(RequestError) as refused:
        list(Decompressor(encoding, LimitSettings(max_gzip_ratio=2), 2**16).feed(packed))
    assert (refused.value.code, refused.value.limit) == (ErrorCode.REQUEST_TOO_LARGE, "max_gzip_ratio")


def test_frames_of_zstd_are_limited_in_number_and_in_memory() -> None:
    limits = LimitSettings(max_gzip_members=10)
    with pytest.raises(RequestError) as refused:
        list(Decompressor("zstd", limits, 2**16).feed(zstd.compress(b"") * 11))
    assert (refused.value.code, refused.value.limit) == (ErrorCode.REQUEST_TOO_LARGE, "max_gzip_members")
    wide = zstd.compress(bytes(2**25), options={zstd.CompressionParameter.window_log: 25})
    with pytest.raises(RequestError, match="too much memory"):
        list(Decompressor("zstd", limits, 2**16).feed(wide))
