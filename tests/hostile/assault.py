"""Send many attacks at once, and count what became of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.hostile.attacks.attack import Attack, Caller, Plan
from tests.hostile.attacks.table import Table
from tests.hostile.contract import complaints, error_code
from tests.hostile.document import Document
from tests.hostile.sending import Ended, Outcome, perform

KEPT_FINDINGS = 10_000


@dataclass
class Finding:
    """Something that must not happen, with the attack that caused it."""

    number: int
    attack: Attack
    what: str

    def __str__(self) -> str:
        return f"attack {self.number} ({self.attack})"


@dataclass
class Tally:
    """What was sent, and what came back."""

    attacks: int = 0
    requests: int = 0  # an attack has one or more
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)  # by kind: requests, and each status or end
    findings: list[Finding] = field(default_factory=list)
    not_shown: int = 0  # findings beyond those that are kept
    spans: list[tuple[float, float, int]] = field(default_factory=list)  # of quick attacks: begin, end, number
    slowest: float = 0.0  # seconds until an answer to a quick attack
    seconds: float = 0.0  # that all attacks took

    def count(self, document: Document, number: int, attack: Attack, requests: int, outcome: Outcome) -> None:
        """Count the outcome of an attack."""
        counts = self.by_kind.setdefault(attack.kind, Counter())
        self.attacks += 1
        self.requests += requests
        counts["requests"] += requests
        for answer in outcome.answers:
            code = error_code(answer) if answer.status >= 500 else None
            counts[f"{answer.status} {code}" if code else str(answer.status)] += 1
            for complaint in complaints(document, attack, answer):
                self._find(number, attack, complaint)
        if outcome.ended is not Ended.ANSWERED:
            counts[outcome.ended] += 1
        if outcome.garbage:
            self._find(number, attack, "the answer is not HTTP")
        if outcome.ended in (Ended.HUNG, Ended.NOT_CONNECTED):
            self._find(number, attack, outcome.ended)
        if not attack.slow:
            self.slowest = max(self.slowest, outcome.seconds)

    def _find(self, number: int, attack: Attack, what: str) -> None:
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append(Finding(number, attack, what))
        else:
            self.not_shown += 1


@dataclass(frozen=True)
class Assault:
    """How a service is attacked."""

    port: int
    document: Document
    callers: list[Caller]  # one of them is chosen by chance; the first has a key
    seed: int
    at_once: int = 24  # quick attacks at the same time
    slow_at_once: int = 200
    pace: float = 10_000.0  # requests begun in a second, at most
    pause: float = 0.5  # seconds between the pieces of what is sent slowly
    stall: float = 40.0  # seconds for which slow readers read nothing: longer than the service waits for them
    patience: float = 75.0  # seconds within which every attack must be over
    heavy: bool = True  # whether attacks that move megabytes are among them
    kind: str | None = None  # the only kind of attack

    async def run(self, requests: int, seconds: float, say: Callable[[str], None] = lambda _: None) -> Tally:
        """Attack until so many requests were sent, or the time is over, and return what became of them."""
        table = Table(self.document, heavy=self.heavy, kind=self.kind)
        tally = Tally()
        quick, slow = asyncio.Semaphore(self.at_once), asyncio.Semaphore(self.slow_at_once)
        started = said = time.monotonic()
        number = begun = 0
        async with asyncio.TaskGroup() as group:
            while begun < requests and time.monotonic() - started < seconds:
                attack, plan = self.plan(table, number)
                if not attack.slow:
                    await quick.acquire()
                group.create_task(self._one(attack, plan, number, tally, slow if attack.slow else None, quick))
                number += 1
                begun += plan.requests * plan.connections
                if (ahead := begun / self.pace - (time.monotonic() - started)) > 0:
                    await asyncio.sleep(ahead)
                if time.monotonic() - said > 15:
                    said = time.monotonic()
                    findings = len(tally.findings) + tally.not_shown
                    say(f"{tally.attacks} attacks, {tally.requests} requests, {findings} findings")
        tally.seconds = time.monotonic() - started
        return tally

    async def _one(
        self,
        attack: Attack,
        plan: Plan,
        number: int,
        tally: Tally,
        slow: asyncio.Semaphore | None,
        quick: asyncio.Semaphore,
    ) -> None:
        try:
            if slow is not None:
                await slow.acquire()
            began = time.monotonic()
            outcome = await self.carry_out(plan)
            if not attack.slow:
                tally.spans.append((began, time.monotonic(), number))
            tally.count(self.document, number, attack, plan.requests * plan.connections, outcome)
        finally:
            (slow or quick).release()

    def plan(self, table: Table, number: int) -> tuple[Attack, Plan]:
        """Return the attack of this number, and what it sends."""
        attack, chance = table.choose(self.seed, number)
        caller = self.callers[0] if attack.keyed or chance.random() < 0.8 else chance.choice(self.callers)
        return attack, attack.plan(chance, caller)

    async def carry_out(self, plan: Plan) -> Outcome:
        """Do what a plan says, in the time that an attack may take."""
        return await perform(self.port, plan, self.patience, pause=self.pause, stall=self.stall)
