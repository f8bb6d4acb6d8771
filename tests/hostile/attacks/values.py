"""Hostile values of a field, as JSON text, so that values which no JSON library would write can be among them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

SIX_DIGITS = re.compile(r"\d{6}|\d{3},\d{3}")


@dataclass(frozen=True)
class Value:
    """A hostile value. Large ones are made only when they are sent."""

    kind: str
    name: str
    make: Callable[[Random], bytes]

    @property
    def heavy(self) -> bool:
        """Whether it has so many characters or elements that it is read in a process of its own."""
        return SIX_DIGITS.search(self.name) is not None


def values() -> list[Value]:
    """Return all hostile values."""
    return [*_wrong_types(), *_numbers(), *_long(), *_deep(), *_many(), *_unicode()]


def _always(text: bytes, times: int = 1) -> Callable[[Random], bytes]:
    return lambda _: text * times


def _string(content: bytes, times: int = 1) -> Callable[[Random], bytes]:
    return lambda _: b'"' + content * times + b'"'


def _fixed(kind: str, *texts: bytes) -> list[Value]:
    return [Value(kind, text.decode(errors="backslashreplace"), _always(text)) for text in texts]


def _wrong_types() -> list[Value]:
    return _fixed(
        "wrong type",
        *(b"null", b"true", b"7", b"-0.5", b'""', b'"text"', b"[]", b"{}", b"[null]", b"[[1]]", b'["a", 1]', b"[[[]]]"),
        *(
            b'"https://127.0.0.1/"',
            b'"http://[::ffff:127.0.0.1]:80/"',
            b'"file:///etc/passwd"',
            b'"https://a:b@c:99999/"',
        ),
        *(
            b'"//"',
            b'"https://"',
            b'"https://xn--a.example/"',
            b'"https://a..b/"',
            b'"https://%00/"',
            b'"javascript:1"',
        ),
        *(b'{"a": {"b": 1}}', b'[{"text": "a"}]', b"[true]", b"[1.0]", b'[["a"], "b"]'),
    )


def _numbers() -> list[Value]:
    return [
        *_fixed(
            "number at an edge",
            *(b"0", b"-1", b"-0.0", b"0.1", b"5e-324", b"1e308", b"-1e308", b"1e999", b"-1e999", b"1E400"),
            *(b"2147483647", b"2147483648", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616"),
            *(b"-9223372036854775809", b"[2147483648]", b"[9223372036854775808]", b"[[-1]]", b"[1e2]", b"1e5"),
            *(b"NaN", b"Infinity", b"-Infinity", b"00", b"1.", b".5", b"+1", b"0x10", b"1_000", b"[NaN]", b"- 1"),
        ),
        *(
            Value("number at an edge", f"{digits} digits", _always(b"9", digits))
            for digits in (400, 4_300, 4_301, 100_000, 3_000_000)
        ),
        Value("number at an edge", "a fraction of 1,000,000 digits", lambda _: b"0." + b"3" * 10**6),
        Value("number at an edge", "a list of long integers", lambda _: b"[" + b",".join([b"9" * 4_000] * 200) + b"]"),
    ]


def _text(content: bytes) -> bytes:
    return b'"' + content + b'"'


def _long() -> list[Value]:
    def of_words(size: int) -> Callable[[Random], bytes]:
        def make(chance: Random) -> bytes:
            words = [bytes(chance.choices(b"abcdefghij", k=chance.randint(1, 9))) for _ in range(200)]
            text = b" ".join(words)
            return _text((text * (size // len(text) + 1))[:size])

        return make

    return [
        *(Value("too long", f"{size} letters", _string(b"a", size)) for size in (10_000, 1_100_000)),
        *(Value("too long", f"{size} characters of words", of_words(size)) for size in (20_000, 400_000, 4_000_000)),
        Value("too long", "100,000 escaped letters", _string(b"\\u0041", 100_000)),
        Value("too long", "200,000 emoji", _string("\U0001f600".encode(), 200_000)),
        Value("too long", "300,000 spaces", _string(b" ", 300_000)),
        Value("too long", "300,000 newlines", _string(b"\\n", 300_000)),
        Value("too long", "a list of one text of 1,000,000 letters", lambda _: b"[" + _text(b"x" * 10**6) + b"]"),
    ]


def _deep() -> list[Value]:
    def lists(depth: int) -> Callable[[Random], bytes]:
        return lambda _: b"[" * depth + b"]" * depth

    def objects(depth: int) -> Callable[[Random], bytes]:
        return lambda _: b'{"a":' * depth + b"1" + b"}" * depth

    depths = (63, 64, 65, 1_000, 100_000, 1_000_000)
    return [
        *(Value("too deep", f"{depth} lists", lists(depth)) for depth in depths),
        *(Value("too deep", f"{depth} objects", objects(depth)) for depth in depths[:-1]),
        Value("too deep", "100,000 lists that never end", lambda _: b"[" * 100_000),
    ]


def _many() -> list[Value]:
    def repeated(element: bytes, count: int) -> Value:
        return Value(
            "too many", f"{count} times {element.decode()}", lambda _: b"[" + b",".join([element] * count) + b"]"
        )

    def names(count: int) -> Value:
        return Value(
            "too many",
            f"{count} names",
            lambda _: b"{" + b",".join(b'"n%d":"v"' % number for number in range(count)) + b"}",
        )

    lists = [
        repeated(element, count)
        for element in (b"0", b'""', b"[]", b"[1]", b'" word"', b"null")
        for count in (257, 1_001, 100_001)
    ]
    return [*lists, repeated(b"1", 1_000_000), names(17), names(2_000), names(100_000)]


def _unicode() -> list[Value]:
    texts = {
        "a lone high surrogate": rb"\ud800",
        "a lone low surrogate": rb"\udc00",
        "surrogates in the wrong order": rb"\udc00\ud800",
        "half an escape": rb"\ud8",
        "an escaped NUL": rb"a\u0000b",
        "a raw NUL": b"a\x00b",
        "a raw newline": b"a\nb",
        "escape sequences of a terminal": rb"\u001b]0;title\u0007\u001b[2J\r\n",
        "a byte order mark": "\ufeff".encode(),
        "a noncharacter": "\uffff\U0010ffff".encode(),
        "text from right to left": "\u202eabc\u202c\u05d0".encode(),
        "fullwidth digits": "１２３".encode(),
        "one letter under 10,000 accents": b"e" + "\u0301".encode() * 10_000,
        "a family of 5,000 emoji": "\U0001f468\u200d".encode() * 5_000,
        "invalid UTF-8": b"\xff\xfe",
        "an overlong NUL": b"\xc0\x80",
        "a surrogate in UTF-8": b"\xed\xa0\x80",
        "UTF-8 that ends too early": b"\xf0\x9f\x98",
        "separators of lines": "\u2028\u2029\u0085".encode(),
        "an invalid escape": rb"\x41",
        "a special token": b"<|endoftext|><|im_start|><|end|>",
    }
    alone = [Value("unusual text", name, _string(text)) for name, text in texts.items()]
    in_lists = [
        Value("unusual text", f"{name}, in a list", _always(b"[" + _text(text) + b"]")) for name, text in texts.items()
    ]
    return [*alone, *in_lists]
