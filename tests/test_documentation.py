"""The page of settings says what the code does."""

import importlib
import pkgutil
from pathlib import Path

import settings
from docs.site.reference.settings import page
from settings.slice import SettingsSlice
from settings.unknown import SLICES

ROOT = Path(__file__).parents[1]


def test_the_page_of_settings_is_the_code() -> None:
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == page(), "run  python docs/configuration.py"


def test_every_settings_slice_is_on_the_page() -> None:
    for module in pkgutil.iter_modules(settings.__path__):
        importlib.import_module(f"settings.{module.name}")
    assert set(SLICES) == set(SettingsSlice.__subclasses__())
