"""The lines that the server's processes log, one JSON object each, made fit for reading in a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text

OWN_LOGGERS = ("api", "worker", "delivery", "bell", "scoring")
"""What these say is shown from level info on; libraries are heard only when something is wrong."""

QUIET_LEVELS = ("debug", "info")
STYLES = {"warning": "yellow", "error": "red", "critical": "bold red"}
ROLE_STYLES = {"api": "cyan", "worker": "magenta", "deliver": "green"}
_KNOWN = ("event", "level", "logger", "timestamp", "exception")


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a process said. details: further fields, by name; exception: a traceback, where there is one."""

    event: str
    level: str = "error"
    logger: str = ""
    time: str = ""
    details: Mapping[str, Any] | None = None
    exception: str | None = None

    @classmethod
    def parse(cls, line: str) -> LogLine:
        """Read a line. One that is not ours, such as a traceback from a process that crashed, is kept as it is."""
        try:
            fields = json.loads(line)
            logged_at = datetime.fromisoformat(fields["timestamp"]).astimezone()
            event, level = str(fields["event"]), str(fields["level"])
        except (ValueError, KeyError, TypeError):
            return cls(line)
        details = {name: value for name, value in fields.items() if name not in _KNOWN}
        return cls(event, level, fields.get("logger", ""), f"{logged_at:%H:%M:%S}", details, fields.get("exception"))

    @property
    def is_news(self) -> bool:
        """Whether somebody who runs the service wants to see this."""
        return self.is_trouble or self.logger.partition(".")[0] in OWN_LOGGERS

    @property
    def is_trouble(self) -> bool:
        """Whether something is wrong."""
        return self.level not in QUIET_LEVELS

    @property
    def plain(self) -> str:
        """On one line, without time and level: what a failure is reported with."""
        if self.exception:
            return f"{self.event}: {self.exception.strip().splitlines()[-1]}"
        return self.reason or self.event.strip()

    @property
    def reason(self) -> str | None:
        """Why a process refuses to start, where it says that with this."""
        return (self.details or {}).get("reason")

    @property
    def is_readiness(self) -> bool:
        """Whether a worker says with this that it is ready."""
        return self.event == "ready" and self.logger == "worker"

    @property
    def counts_bytes(self) -> bool:
        """Whether the steps of its progress are bytes."""
        return (self.details or {}).get("unit") == "bytes"

    @property
    def progress(self) -> tuple[int, int] | None:
        """Steps done and steps in all, where this reports progress."""
        details = self.details or {}
        steps = details.get("step"), details.get("steps")
        return steps if isinstance(steps[0], int) and isinstance(steps[1], int) else None  # type: ignore[return-value]

    def render(self, role: str) -> Text:
        """For the terminal: time, role, event, details; then the traceback."""
        text = Text()
        text.append(f"{self.time:8} ", style="dim")
        text.append(f"{role:7} ", style=ROLE_STYLES.get(role, ""))
        text.append(self.event.strip(), style=STYLES.get(self.level, "") if self.time else "")
        for name, value in (self.details or {}).items():
            text.append(f"  {name}=", style="dim")
            text.append(str(value), style="dim")
        if self.exception:
            text.append(f"\n{self.exception}", style="dim")
        return text
