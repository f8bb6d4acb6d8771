"""Parse the JSON lines that the server's processes log, and format them for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text

from scoreline.terminal.printable import printable

OWN_LOGGERS = ("api", "worker", "delivery", "bell", "scoring")
"""Loggers shown from level info on. Others, which are those of libraries, are shown from level warning on."""

QUIET_LEVELS = ("debug", "info")
STYLES = {"warning": "yellow", "error": "red", "critical": "bold red"}
ROLE_STYLES = {"api": "cyan", "worker": "magenta", "deliver": "green"}
_KNOWN = ("event", "level", "logger", "timestamp", "exception")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a process's log, which may quote a client: its path, for example. All of it is safe to print."""

    event: str
    level: str = "error"
    logger: str = ""
    time: str = ""  # hours, minutes and seconds in local time
    details: Mapping[str, Any] | None = None  # further fields, by name
    exception: str | None = None  # a traceback

    @classmethod
    def parse(cls, line: str) -> LogLine:
        """Parse a line. One in another format, such as a line of a traceback, becomes the event, at level error."""
        try:
            fields = json.loads(line)
            logged_at = datetime.fromisoformat(fields["timestamp"]).astimezone()
            event, level = str(fields["event"]), str(fields["level"])
        except (ValueError, KeyError, TypeError):
            return cls(printable(line, keep="\t"))
        details = {
            printable(name): printable(value) if isinstance(value, str) else value
            for name, value in fields.items()
            if name not in _KNOWN
        }
        exception = fields.get("exception")
        return cls(
            printable(event.strip()),
            level,
            fields.get("logger", ""),
            f"{logged_at:%H:%M:%S}",
            details,
            None if exception is None else printable(str(exception), keep="\n\t"),
        )

    @property
    def is_worth_showing(self) -> bool:
        """Whether to show it to a person who runs the service."""
        return self.is_problem or self.logger.partition(".")[0] in OWN_LOGGERS

    @property
    def is_problem(self) -> bool:
        """Whether its level is warning or higher."""
        return self.level not in QUIET_LEVELS

    @property
    def plain(self) -> str:
        """The message on one line, without time and level, for the report of a failure."""
        if self.exception:
            return f"{self.event}: {self.exception.strip().splitlines()[-1]}"
        return self.reason or self.event.strip()

    @property
    def reason(self) -> str | None:
        """Why a process refuses to start, if the line says so."""
        return (self.details or {}).get("reason")

    @property
    def of_loading(self) -> str | None:
        """The model that a worker says is ready, or can't be loaded, which may become so later."""
        is_said = self.logger.partition(".")[0] == "worker" and self.event in ("ready", "a model can't be loaded")
        return str((self.details or {}).get("model")) if is_said else None

    @property
    def counts_bytes(self) -> bool:
        """Whether its progress is counted in bytes."""
        return (self.details or {}).get("unit") == "bytes"

    @property
    def progress(self) -> tuple[int, int] | None:
        """Steps done and steps in all, if the line reports progress."""
        details = self.details or {}
        steps = details.get("step"), details.get("steps")
        return steps if isinstance(steps[0], int) and isinstance(steps[1], int) else None  # type: ignore[return-value]

    def render(self, role: str) -> Text:
        """Format the line for the terminal: time, role, event, details, and then the traceback."""
        text = Text()
        text.append(f"{self.time:8} ", style="dim")
        text.append(f"{role:7} ", style=ROLE_STYLES.get(role, ""))
        text.append(self.event.strip(), style=STYLES.get(self.level, "") if self.time else "")
        for name, value in (self.details or {}).items():
            text.append(f"  {name}=", style="dim")
            text.append(printable(str(value)), style="dim")
        if self.exception:
            text.append(f"\n{self.exception}", style="dim")
        return text
