"""Write the table of settings into the README: ``python docs/configuration.py``."""

from __future__ import annotations

from pathlib import Path

from docs.site.reference.settings import written_default
from docs.site.reference.tables import code
from docs.site.reference.tables import table as markdown_table
from settings.errors.mistakes import variable_of
from settings.unknown import SLICES

README = Path(__file__).parents[1] / "README.md"
OPENING, CLOSING = "<!-- configuration -->", "<!-- /configuration -->"


def table() -> str:
    """Return the settings of all slices as a Markdown table."""
    return markdown_table(
        ("variable", "default", "what it is"),
        [
            (code(variable_of(name)), written_default(field.default), field.description or "")
            for settings in SLICES
            for name, field in settings.model_fields.items()
        ],
    )


def with_table(readme: str) -> str:
    """Return the README's text with the present table between its two markers."""
    before, _, rest = readme.partition(OPENING)
    _, _, after = rest.partition(CLOSING)
    return f"{before}{OPENING}\n{table()}\n{CLOSING}{after}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
