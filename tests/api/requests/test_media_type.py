"""The media type of a request is read strictly, and in time that grows no faster than the header."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from starlette.requests import Request

from api.requests.bodies.receiving import media_type
from api.requests.headers.accept import MAX_ENTRIES, names, prefers
from api.requests.headers.prefer import preferred_wait


def request_with(name: str, value: str) -> Request:
    """Return a request with one header."""
    return Request({"type": "http", "headers": [(name.encode(), value.encode("latin-1"))]})


def type_of(value: str) -> str:
    """Return the media type that a header declares."""
    return media_type(request_with("content-type", value))


@pytest.mark.parametrize(
    "header",
    [
        "application/json",
        " Application/JSON ",
        "application/json;",
        "application/json; charset=utf-8",
        'application/json;CHARSET="UTF8"',
        "application/json ; charset = us-ascii",
        'application/json; profile="a;charset=latin-1"; charset=utf-8',
        r'application/json; profile="a\";charset=latin-1"',
        "application/json; charset",
    ],
)
def test_json_in_utf_8_is_recognised(header: str) -> None:
    assert type_of(header) == "application/json"


@pytest.mark.parametrize(
    "header",
    [
        "",
        ";",
        "; charset=utf-8",
        "application/json; charset=latin-1",
        "application/json; charset=utf-16",
        'application/json; a=b; charset="iso-8859-1"',
        "application/json; charset*=utf-8''utf-16",
        r'application/json; profile="a\\";charset=latin-1',
    ],
)
def test_another_charset_or_no_type_is_none(header: str) -> None:
    assert type_of(header) == "none"


@pytest.mark.parametrize("header", ["text/plain", "json", "application/jsonx", "application/x-ndjson"])
def test_other_types_are_told_apart(header: str) -> None:
    assert type_of(header) == header


def characters_read(function: Callable[[], object]) -> int:
    """Call a function, and return the length of all strings on which it called methods together."""
    total = 0

    def note(_: FrameType, event: str, called: Any) -> None:
        nonlocal total
        owner = getattr(called, "__self__", None)
        if event == "c_call" and isinstance(owner, str):
            total += len(owner)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return total


@pytest.mark.parametrize("piece", [";", "a", '"', "\\", '\\"', ";a=b", ';a="b;c"', "; charset=utf-8", " ;", "=", ","])
@pytest.mark.parametrize(
    ("name", "begin", "read"),
    [
        ("content-type", "application/json", media_type),
        ("prefer", "wait", lambda request: preferred_wait(request.headers.getlist("prefer"))),
        ("accept", "application/json", lambda request: names(request, "text/html")),
    ],
)
def test_a_header_of_twice_the_length_takes_at_most_twice_the_work(
    name: str, begin: str, read: Callable[[Request], object], piece: str
) -> None:
    def work(pieces: int) -> int:
        request = request_with(name, begin + piece * pieces)
        return characters_read(lambda: read(request))

    assert work(2_000) <= 2.2 * work(1_000)


@pytest.mark.parametrize("read", [names, lambda request, wanted: prefers(request, wanted, "a/b")])
def test_only_so_many_media_types_that_a_client_takes_are_looked_at(read: Callable[[Request, str], bool]) -> None:
    for ahead, found in ((MAX_ENTRIES - 1, True), (MAX_ENTRIES, False)):
        assert read(request_with("accept", "," * ahead + "text/html"), "text/html") is found
    assert characters_read(lambda: read(request_with("accept", "," * 30_000), "text/html")) < 200_000


def test_a_media_type_is_not_parsed_if_it_is_far_too_long() -> None:
    assert type_of("application/json;" + ";" * 30_000) == "none"
