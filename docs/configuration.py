"""Write the table of settings into the README: ``python docs/configuration.py``."""

from __future__ import annotations

from pathlib import Path

from settings.unknown import SLICES

README = Path(__file__).parents[1] / "README.md"
OPENING, CLOSING = "<!-- configuration -->", "<!-- /configuration -->"


def table() -> str:
    """Return the settings of all slices as a Markdown table."""
    rows = ["| variable | default | what it is |", "|---|---|---|"]
    for settings in SLICES:
        for name, field in settings.model_fields.items():
            rows.append(f"| `SCORELINE_{name.upper()}` | {_written(field.default)} | {field.description} |")
    return "\n".join(rows)


def _written(default: object) -> str:
    """Return a default as it would be written in the environment."""
    if default is None or default == ():
        return "unset"
    return f"`{','.join(map(str, default))}`" if isinstance(default, tuple) else f"`{default}`"


def with_table(readme: str) -> str:
    """Return the README's text with the present table between its two markers."""
    before, _, rest = readme.partition(OPENING)
    _, _, after = rest.partition(CLOSING)
    return f"{before}{OPENING}\n{table()}\n{CLOSING}{after}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
