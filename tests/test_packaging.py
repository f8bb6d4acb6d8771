"""What is published is the client and the command, and nothing that would land as `api` in somebody's site-packages."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import scoreline
from settings.version import VERSION

ROOT = Path(__file__).parents[1]


def test_the_service_and_the_package_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == scoreline.__version__ == VERSION


def test_the_wheel_holds_scoreline_alone(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"scoreline/py.typed", "scoreline/client/operations/scoring.py", "scoreline/command.py"} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"scoreline"}


def test_pinned_requirements_name_no_place() -> None:
    """A plain ``name==version`` list installs anywhere; a host or a path would not."""
    for file in sorted(ROOT.glob("requirements*.txt")):
        for line in file.read_text().splitlines():
            if line and not line.startswith(("#", "-r ")):
                name, _, version = line.partition("==")
                assert name, line
                assert version, line
                assert not set("@/:") & set(line), line
