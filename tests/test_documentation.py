"""The README says what the code does."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_configuration_table_is_the_code() -> None:
    spec = importlib.util.spec_from_file_location("configuration", ROOT / "docs" / "configuration.py")
    assert spec is not None
    assert spec.loader is not None
    configuration = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(configuration)
    readme = (ROOT / "README.md").read_text()
    assert configuration.with_table(readme) == readme, "run  python docs/configuration.py"


def test_every_settings_slice_is_in_the_table() -> None:
    text = (ROOT / "docs" / "configuration.py").read_text()
    for module in (ROOT / "settings").glob("[a-z]*.py"):
        if module.stem != "slice":
            assert f"from settings.{module.stem} import" in text
