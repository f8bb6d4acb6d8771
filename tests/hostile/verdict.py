"""Whether a service withstood an assault: the marks that it must reach, and a table of what was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.hostile.assault import Finding, Tally
from tests.hostile.watching import Phase

MEBIBYTE = 2**20

LIVEZ_SECONDS = 0.25  # in 99.9 % of the cases
LIVEZ_WORST_SECONDS = 1.0
SLOWDOWN = 3.0  # of the quiet tenant's calls
REFUSED_SHARE = 0.001  # of the quiet tenant's calls, at most
MEMORY = 2**30
EXAMPLES = 4  # attacks that are named for each kind of finding
LEFT_DESCRIPTORS = 64  # how many more than before may be open when the attackers have gone
LEFT_MEMORY = 200 * MEBIBYTE  # how much more than before may be in use then


@dataclass
class Report:
    """What was seen."""

    tally: Tally
    usual: Phase
    attacked: Phase
    after: Phase
    wanted_requests: int
    database_bound: int
    broken_rules: str = ""  # what `python -m operations.check` says, if it found a violation
    dead: str = ""  # what no longer works after the assault
    undocumented: str = ""  # what schemathesis found
    judge_times: bool = False

    def missed(self) -> list[str]:
        """Return a line for each mark that was missed."""
        lines = self._found()
        if self.tally.not_shown:
            lines.append(f"{self.tally.not_shown} more findings")
        if self.tally.requests < self.wanted_requests:
            lines.append(f"only {self.tally.requests} of {self.wanted_requests} requests were sent in time")
        if self.attacked.not_alive:
            lines.append(f"/livez was not answered with 200: {dict(self.attacked.not_alive)}")
        refused = self.attacked.refused.total()
        if refused > REFUSED_SHARE * (refused + len(self.attacked.calls)):
            lines.append(f"the quiet tenant's calls were not answered with 200: {dict(self.attacked.refused)}")
        if self.attacked.peak.memory > MEMORY:
            lines.append(
                f"the API used {self.attacked.peak.memory / MEBIBYTE:.0f} MiB, more than {MEMORY / MEBIBYTE:.0f}"
            )
        left = self.after.last.memory - self.usual.peak.memory
        if left > LEFT_MEMORY:
            lines.append(f"the API kept {left / MEBIBYTE:.0f} MiB, more than {LEFT_MEMORY / MEBIBYTE:.0f}")
        if self.attacked.database > self.database_bound:
            lines.append(
                f"the database grew to {self.attacked.database / MEBIBYTE:.0f} MiB, "
                f"more than {self.database_bound / MEBIBYTE:.0f}"
            )
        if self.after.last.descriptors > self.usual.peak.descriptors + LEFT_DESCRIPTORS:
            lines.append(f"{self.after.last.descriptors} files are open, {self.usual.peak.descriptors} before")
        lines += [line for line in (self.broken_rules, self.dead, self.undocumented) if line]
        return lines + (self._late() if self.judge_times else [])

    def _found(self) -> list[str]:
        """Return a line for each kind of finding, with the first attacks that led to it."""
        by_what: dict[str, list[Finding]] = {}
        for finding in self.tally.findings:
            by_what.setdefault(finding.what, []).append(finding)
        return [
            f"{what}: {len(findings)} times, {'; '.join(map(str, findings[:EXAMPLES]))}"
            for what, findings in by_what.items()
        ]

    def _late(self) -> list[str]:
        lines = []
        often, worst = quantile(self.attacked.looks, 0.999), max(self.attacked.looks, default=0.0)
        if often > LIVEZ_SECONDS:
            lines.append(
                f"/livez took {often * 1000:.0f} ms in 0.1 % of the cases, more than {LIVEZ_SECONDS * 1000:.0f}"
            )
        if worst > LIVEZ_WORST_SECONDS:
            lines.append(f"/livez once took {worst * 1000:.0f} ms, more than {LIVEZ_WORST_SECONDS * 1000:.0f}")
        for name, share in (("median", 0.5), ("99th percentile", 0.99)):
            usual, now = quantile(self.usual.calls, share), quantile(self.attacked.calls, share)
            if now > SLOWDOWN * usual:
                lines.append(
                    f"the {name} of the quiet tenant's calls was {now * 1000:.0f} ms, usually {usual * 1000:.0f} ms"
                )
        return lines

    def __str__(self) -> str:
        lines = [f"{'kind':22} {'requests':>9}  answers"]
        for kind, counts in sorted(self.tally.by_kind.items()):
            answers = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if name != "requests")
            lines.append(f"{kind:22} {counts['requests']:>9}  {answers}")
        seconds = self.tally.seconds
        lines += [
            f"{self.tally.attacks} attacks with {self.tally.requests} requests in {seconds:.0f} s",
            f"the slowest quick attack took {self.tally.slowest:.1f} s",
            "",
            f"{'':28} {'before':>10} {'attacked':>10} {'after':>10}",
            *(
                f"{name:28} " + " ".join(f"{value(phase):>10}" for phase in (self.usual, self.attacked, self.after))
                for name, value in _ROWS
            ),
            f"bound of the database: {self.database_bound / MEBIBYTE:.0f} MiB",
        ]
        for began, seconds in sorted(self.attacked.late, key=lambda look: -look[1])[:EXAMPLES]:
            numbers = [n for start, end, n in self.tally.spans if start < began + seconds and end > began]
            lines.append(f"/livez took {_milliseconds(seconds)} during the attacks {', '.join(map(str, numbers[:20]))}")
        missed = self.missed()
        lines += [
            "",
            *(f"MISSED  {line}" for line in missed),
            f"{len(missed)} marks missed" if missed else "all marks reached",
        ]
        return "\n".join(lines)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


_ROWS: list[tuple[str, Callable[[Phase], str]]] = [
    ("/livez: asked", lambda phase: str(len(phase.looks))),
    ("/livez: median", lambda phase: _milliseconds(quantile(phase.looks, 0.5))),
    ("/livez: 99.9 %", lambda phase: _milliseconds(quantile(phase.looks, 0.999))),
    ("/livez: worst", lambda phase: _milliseconds(max(phase.looks, default=0.0))),
    ("/livez: not 200", lambda phase: str(phase.not_alive.total())),
    ("quiet tenant: calls", lambda phase: str(len(phase.calls))),
    ("quiet tenant: median", lambda phase: _milliseconds(quantile(phase.calls, 0.5))),
    ("quiet tenant: 99 %", lambda phase: _milliseconds(quantile(phase.calls, 0.99))),
    ("quiet tenant: not 200", lambda phase: str(phase.refused.total())),
    ("memory of the API, peak", lambda phase: f"{phase.peak.memory / MEBIBYTE:.0f} MiB"),
    ("memory, at the end", lambda phase: f"{phase.last.memory / MEBIBYTE:.0f} MiB"),
    ("open files, peak", lambda phase: str(phase.peak.descriptors)),
    ("open files, at the end", lambda phase: str(phase.last.descriptors)),
    ("threads, peak", lambda phase: str(phase.peak.threads)),
    ("database", lambda phase: f"{phase.database / MEBIBYTE:.0f} MiB"),
]
