"""Strict JSON: every invalid body gets an error code."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.requests.bodies.json_body import MAX_CONTAINERS, MAX_DEPTH, check_containers, parse_json
from scoring.error_codes import ErrorCode, RequestError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(JSON, st.booleans())
def test_valid_json_is_parsed_to_its_value(value: object, escaped: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=escaped).encode()) == value


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b'{"a": 1} x', "invalid_json"),
        (b'{"a": 1,}', "invalid_json"),
        (b'"\xff"', "invalid_json"),
        (b'"\xed\xa0\x80"', "invalid_json"),  # a surrogate in raw UTF-8
        ('{"a": 1}'.encode("utf-16"), "invalid_json"),
        ('{"a": 1}'.encode("utf-32-le"), "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        (b'"\x00"', "invalid_json"),  # a raw control character
        (b"\x00", "invalid_json"),
        (b"01", "invalid_json"),
        (b"NaN", "invalid_request"),
        (b"[1, NaN]", "invalid_request"),
        (b'{"a": Infinity}', "invalid_request"),
        (b"-Infinity", "invalid_request"),
        (b"1e999", "invalid_request"),
        (b"[-1e999]", "invalid_request"),
        (b"1" * 5000, "invalid_request"),
        (b"[" * 100_000, "invalid_request"),
        (b'{"a":' * 100_000, "invalid_request"),
        (b"[" * 100_000 + b"]" * 100_000, "invalid_request"),
        (b"[" * 65 + b"]" * 65, "invalid_request"),
        (b'{"a":[' * 33 + b"]}" * 33, "invalid_request"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:20]),
)
def test_invalid_json_is_refused_with_its_code(body: bytes, code: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_json(body)
    assert raised.value.code == code
    assert len(raised.value.message) < 300


def test_nesting_up_to_the_limit_is_accepted() -> None:
    body = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert json.dumps(parse_json(body)).encode() == body


def test_null_characters_and_escaped_surrogate_pairs_are_accepted() -> None:
    assert parse_json(rb'["\u0000", "\ud83d\ude00", "\\ud800"]') == ["\x00", "😀", "\\ud800"]


@pytest.mark.parametrize("body", [b'{"a": 1, "a": 1}', rb'{"b": [{"a": 1, "c": 2, "\u0061": 3}]}'])
def test_a_name_that_stands_twice_in_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as raised:
        parse_json(body)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert raised.value.message == 'the body holds the name "a" twice in an object'
    assert parse_json(b'[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]


def test_large_integers_stay_exact() -> None:
    assert parse_json(b"[1" + b"0" * 400 + b"]") == [10**400]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"query": "\ud800"}', "query"),
        (rb'{"query": "\uDC00\uD800"}', "query"),
        (rb'{"items": ["a", "\udfff"]}', "items[1]"),
        (rb'{"metadata": {"k": "x\udbff"}}', "metadata.k"),
        (rb'{"metadata": {"\ud800": 1}}', "metadata"),
        (rb'"\ud800"', None),
        (rb'{"\ud800": 1}', None),
    ],
)
def test_a_lone_surrogate_is_refused_with_its_path(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as raised:
        parse_json(body)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert raised.value.param == param


def test_the_search_for_a_lone_surrogate_builds_no_path_of_a_string_without_one() -> None:
    """Each value here has a path of half a megabyte, because the keys above it are long."""
    levels, key = 32, "k" * 16_384
    body = f"{{{json.dumps(key)}:".encode() * levels + rb'"\ud83d\ude00"' + b"}" * levels
    tracemalloc.start()
    try:
        value = parse_json(body)
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value is not None
    assert peak < size + 2 * len(body)


def test_the_path_of_a_lone_surrogate_is_quoted_in_part() -> None:
    body = f'{{"{"k" * 100_000}": ["", "\\ud800"]}}'.encode()
    with pytest.raises(RequestError) as raised:
        parse_json(body)
    assert raised.value.param == "k" * 200
    assert len(raised.value.message) < 300


def test_the_path_of_a_lone_surrogate_in_a_line_begins_with_the_place_of_the_line() -> None:
    with pytest.raises(RequestError) as raised:
        parse_json(rb'{"a": ["\ud800"]}', "line 9", "items[7]")
    assert raised.value.param == "items[7].a[0]"


@pytest.mark.parametrize(
    "line",
    [
        b"[" + b"[]," * MAX_CONTAINERS + b"0]",
        b'["\\"[", "\\\\", ' + b'{"a": "["}, ' * (MAX_CONTAINERS + 1) + b"0]",
        b'["' + b"[" * MAX_CONTAINERS + b'", "]", ' + b"{}, [], " * MAX_CONTAINERS + b"0]",
    ],
    ids=["lists", "objects among escapes", "lists behind brackets in a text"],
)
def test_a_line_with_very_many_lists_and_objects_is_refused(line: bytes) -> None:
    assert isinstance(json.loads(line), list)
    with pytest.raises(RequestError) as raised:
        check_containers(line, "line 7")
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert raised.value.message == f"line 7 holds more than {MAX_CONTAINERS} lists and objects"


@pytest.mark.parametrize(
    "line",
    [
        b'"' + b"[{" * MAX_CONTAINERS + b'"',
        b'{"query": "' + rb"\"[\\{" * MAX_CONTAINERS + b'", "label_token_ids": [1, 2]}',
        b"[" + b'"[[", "", ' * MAX_CONTAINERS + b"0]",
        b"[" * MAX_CONTAINERS,
    ],
    ids=["a text of brackets", "brackets among escapes", "many texts", "exactly the limit"],
)
def test_brackets_in_texts_are_no_lists_and_objects(line: bytes) -> None:
    check_containers(line, "line 7")
