"""What is published is the client, the command and what judges scores: nothing that would land as `api` elsewhere."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import scoreline
from jobs.store.revisions import known_revisions, schema_head
from settings.version import VERSION

ROOT = Path(__file__).parents[1]
RELEASES: list[tuple[str, str]] = re.findall(
    r"^## \[(\d+\.\d+\.\d+)\] - [^\n]*\n(.*?)(?=^## |\Z)",
    (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
"""The versions that were released, the newest one first, with what the changelog says of each."""


def newest_migration(entry: str) -> str:
    (found,) = re.findall(r"its newest\s+migration is (\d{4})", entry)
    return str(found)


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_service_and_the_package_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == scoreline.__version__ == VERSION


def test_the_version_is_raised_with_the_first_migration_after_a_release() -> None:
    version, entry = RELEASES[0]
    if newest_migration(entry) != schema_head():
        assert as_numbers(VERSION) > as_numbers(version), "two builds of one version would need different schemas"


def test_the_documentation_names_versions_that_there_are() -> None:
    image_tags = re.findall(r"newTag: ([\d.]+)-", (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8"))
    assert set(image_tags) == {VERSION}
    migrations = [newest_migration(entry) for _, entry in RELEASES]
    assert migrations == sorted(migrations, reverse=True)
    assert migrations[0] in known_revisions()
    for number, (version, entry) in enumerate(RELEASES):
        commit = re.search(r"It is commit `(\w+)`", entry)
        if commit is None:
            assert number == 0, f"{version}: only the newest version may lack its commit, which can't name itself"
            continue
        shown = subprocess.run(
            ["git", "show", f"{commit[1]}:pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if shown.returncode == 0:  # This checkout has the history.
            assert tomllib.loads(shown.stdout)["project"]["version"] == version


def test_the_wheel_holds_the_client_and_what_judges_scores(tmp_path: Path) -> None:
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
    assert {top for top in tops if not top.endswith(".dist-info")} == {"scoreline", "judgement"}


def test_pinned_requirements_name_no_place() -> None:
    """A plain ``name==version`` list installs anywhere; a host or a path would not."""
    for file in sorted(ROOT.glob("requirements*.txt")):
        for line in file.read_text().splitlines():
            if line and not line.startswith(("#", "-r ")):
                name, _, version = line.partition("==")
                assert name, line
                assert version, line
                assert not set("@/:") & set(line), line
