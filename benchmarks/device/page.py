"""The results as JSON, and as a page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.device.findings import Finding, Value


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of a run."""

    date: str  # as in 2026-11-23
    device: str
    versions: Mapping[str, str]
    command: str
    findings: Sequence[Finding]

    @property
    def failed(self) -> list[Finding]:
        """The gates that did not hold, and the parts that did not end as they should."""
        return [one for one in self.findings if one.values.get("passed") is False or one.name == "failed"]

    def write(self, folder: Path) -> Path:
        """Write both files into a folder. Returns the path of the page."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.date}-{re.sub('[^a-z0-9]+', '-', self.device.lower()).strip('-')}"
        (folder / f"{name}.json").write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        page = folder / f"{name}.md"
        page.write_text(self.page(), encoding="utf-8")
        return page

    def page(self) -> str:
        """Return the page, with a table for each part."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [f"# {self.device}, {self.date}", "", f"Measured by `{self.command}`, with {versions}.", ""]
        lines += [_verdict(self)]
        for part in dict.fromkeys(one.part for one in self.findings):
            lines += [
                "",
                f"## {part[0].upper()}{part[1:]}",
                "",
                *_table([one for one in self.findings if one.part == part]),
            ]
        return "\n".join(lines) + "\n"


def _verdict(report: Report) -> str:
    judged = [one for one in report.findings if "passed" in one.values]
    unfinished = [one.part for one in report.findings if one.name in ("not run", "ended", "failed")]
    line = f"{len(judged) - len([one for one in judged if not one.values['passed']])} of {len(judged)} gates hold."
    failed = [f"{one.part}: {one.name}" for one in report.failed]
    line += f" These do not: {'; '.join(failed)}." if failed else ""
    return line + (f" Not complete: {', '.join(dict.fromkeys(unfinished))}." if unfinished else "")


def _table(findings: Sequence[Finding]) -> list[str]:
    columns = list(dict.fromkeys(column for one in findings for column in one.values))
    rows = [["", *(column.replace("_", " ") for column in columns)], ["---"] * (len(columns) + 1)]
    rows += [[one.name, *(_shown(one.values.get(column)) for column in columns)] for one in findings]
    return [f"| {' | '.join(row)} |" for row in rows]


def _shown(value: Value) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "**no**"
        case float() | int():
            return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
        case str():
            return " ".join(value.replace("|", "/").split())
