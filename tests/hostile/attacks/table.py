"""The whole table of attacks, and the choice of one by its number."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from tests.hostile.attacks.attack import Attack
from tests.hostile.attacks.bodies import body_attacks, field_attacks
from tests.hostile.attacks.connections import connection_attacks
from tests.hostile.attacks.decisions import decision_attacks
from tests.hostile.attacks.exhausting import exhausting_attacks
from tests.hostile.attacks.headers import header_attacks
from tests.hostile.attacks.job_sets import job_set_attacks
from tests.hostile.attacks.known import known_attacks
from tests.hostile.attacks.storing import storing_attacks
from tests.hostile.attacks.uploads import upload_attacks
from tests.hostile.document import Document

SLOW_EVERY = 40
"""One attack in so many is slow: it holds its connection for seconds."""


class Table:
    """All attacks on a service, in a fixed order. heavy: whether those that move megabytes are among them.

    kind: the only kind of attack; None: all of them.
    """

    def __init__(self, document: Document, *, heavy: bool = True, kind: str | None = None) -> None:
        every = [
            *field_attacks(document),
            *body_attacks(document),
            *header_attacks(document),
            *connection_attacks(document),
            *upload_attacks(document),
            *storing_attacks(document),
            *job_set_attacks(document),
            *known_attacks(document),
            *decision_attacks(document),
            *exhausting_attacks(document),
        ]
        self.attacks: list[Attack] = [
            attack for attack in every if (heavy or not attack.heavy) and kind in (None, attack.kind)
        ]
        self._quick = _by_kind([attack for attack in self.attacks if not attack.slow])
        self._slow = _by_kind([attack for attack in self.attacks if attack.slow])

    def choose(self, seed: int, number: int) -> tuple[Attack, Random]:
        """Return the attack of this number, and the random numbers for it. Kinds take turns."""
        chance = Random(f"{seed}/{number}")
        slow = not self._quick or (bool(self._slow) and number % SLOW_EVERY == SLOW_EVERY - 1)
        kinds = self._slow if slow else self._quick
        turn = number // SLOW_EVERY if slow and self._quick else number
        return chance.choice(kinds[turn % len(kinds)]), chance


def _by_kind(attacks: list[Attack]) -> list[list[Attack]]:
    kinds: dict[str, list[Attack]] = defaultdict(list)
    for attack in attacks:
        kinds[attack.kind].append(attack)
    return list(kinds.values())
