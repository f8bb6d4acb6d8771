"""The orders in which the options of a choice are asked, so that none of them gains by its place.

A block of as many orders as there are options is a Latin square: each option stands once in each place. The square is
that of E. J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments" (1949): if
the number of options is even, each option also stands once behind each other one.
"""

from __future__ import annotations

import math
import random

from scoring.error_codes import ErrorCode, RequestError, invalid

MOST_ORDERS = 24
"""The most orders that a request may ask for. All orders of four options are so many."""

MOST_PROMPTS = 1_000
"""The most prompts that a request in several orders may have. All are written before any other limit is looked at."""

BALANCED = "balanced"
"""What asks for one block: as many orders as a question has options."""

Order = tuple[int, ...]
"""The places that the options have in the request, in the order of a prompt."""


def parse_permute(value: object) -> int | None:
    """Return how many orders a request asks for; None for one block. Raises RequestError."""
    if value is None:
        return 1
    if value == BALANCED:
        return None
    if type(value) is not int or not 2 <= value <= MOST_ORDERS:
        raise invalid(f'permute must be "{BALANCED}" or a number from 2 to {MOST_ORDERS}', "permute")
    return value


def orders_of(options: int, wanted: int | None, path: str) -> list[Order]:
    """Return the orders of so many options, the one of the request first. There are never more than there can be.

    wanted: how many, or None for one block. path: of the question. Raises RequestError for a block that is too large.
    """
    if wanted is None:
        if options > MOST_ORDERS:
            message = f'{path} has {options} options; permute "{BALANCED}" is for at most {MOST_ORDERS}'
            raise RequestError(ErrorCode.TOO_MANY_OPTIONS, message, param=path)
        wanted = options
    if options < 7:  # factorials grow fast
        wanted = min(wanted, math.factorial(options))
    drawing = random.Random(options)  # the same orders in every process
    found: dict[Order, None] = {}
    names = list(range(options))
    while len(found) < wanted:
        missing = wanted - len(found)
        rows = range(options) if missing >= options else (n * options // missing for n in range(missing))
        found |= dict.fromkeys(tuple(names[place] for place in _row(options, row)) for row in rows)
        drawing.shuffle(names)
    return list(found)


def _row(options: int, row: int) -> Order:
    """Return a row of the square, of which row 0 has the options in their order."""
    base = [(n + 1) // 2 if n % 2 else -(n // 2) % options for n in range(options)]
    place_of = {value: place for place, value in enumerate(base)}
    return tuple(place_of[(value + row) % options] for value in base)
