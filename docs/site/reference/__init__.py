"""The reference, which is written by the code itself: one function for each page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.site.reference import client, command, files, routes

GENERATED: Mapping[str, Callable[[], str]] = {
    "files": files.page,
    "command": command.page,
    "routes": routes.page,
    "client": client.page,
}
"""What makes each page of the reference, by its name."""
