"""The README says what the code does."""

import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import settings
from settings.slice import SettingsSlice

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def configuration() -> ModuleType:
    """``docs/configuration.py``, which is a script and no package."""
    spec = importlib.util.spec_from_file_location("configuration", ROOT / "docs" / "configuration.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_table_is_the_code(configuration: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert configuration.with_table(readme) == readme, "run  python docs/configuration.py"


def test_every_settings_slice_is_in_the_table(configuration: ModuleType) -> None:
    for module in pkgutil.iter_modules(settings.__path__):
        importlib.import_module(f"settings.{module.name}")
    assert set(configuration.SLICES) == set(SettingsSlice.__subclasses__())
