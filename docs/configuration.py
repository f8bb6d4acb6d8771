"""Write the table of settings into the README: ``python docs/configuration.py``."""

from __future__ import annotations

from pathlib import Path

from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.engine import EngineSettings
from settings.scoring import ScoringSettings
from settings.slice import SettingsSlice
from settings.store import StoreSettings

README = Path(__file__).parents[1] / "README.md"
OPENING, CLOSING = "<!-- configuration -->", "<!-- /configuration -->"
SLICES: tuple[type[SettingsSlice], ...] = (ScoringSettings, ApiSettings, StoreSettings, BellSettings, EngineSettings)


def table() -> str:
    """The settings of all slices as a Markdown table."""
    rows = ["| variable | default | what it is |", "|---|---|---|"]
    for settings in SLICES:
        for name, field in settings.model_fields.items():
            default = "unset" if field.default is None else f"`{field.default}`"
            rows.append(f"| `SCORELINE_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def with_table(readme: str) -> str:
    """The README's text with the table between its two markers."""
    before, _, rest = readme.partition(OPENING)
    _, _, after = rest.partition(CLOSING)
    return f"{before}{OPENING}\n{table()}\n{CLOSING}{after}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
