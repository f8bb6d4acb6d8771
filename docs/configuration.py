"""Write the page of all settings, ``docs/settings.md``: ``python docs/configuration.py``."""

from __future__ import annotations

from pathlib import Path

from docs.site.reference.settings import page

PAGE = Path(__file__).with_name("settings.md")

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
