"""The image holds what the service needs to run, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.composition.image import Dockerfile, build_context_paths, read_dockerfile

ROOT = Path(__file__).parents[2]
ACCELERATORS = ("cpu", "cuda", "tpu")


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return read_dockerfile()


def test_the_build_context_is_the_product_and_the_files_that_it_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rooms = set(project["tool"]["importlinter"]["root_packages"]) - {"tools"}
    allowed = build_context_paths()
    assert set(allowed) == rooms | {
        "pins",
        "alembic.ini",
        "migrations",
        "demonstration/model",
        "examples/demo.json",
        "LICENSE",
    }
    for name in allowed:
        assert (ROOT / name).exists(), f"there is no {name}"


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_packages_are_installed_from_pins_before_any_source(dockerfile: Dockerfile, accelerator: str) -> None:
    (packages,) = (stage for stage in dockerfile.stages if stage.name == "packages")
    copied, installed = [], []
    for instruction in packages.instructions:
        if instruction.name == "COPY":
            sources, destination = instruction.copies()
            assert destination == "./pins/"
            copied += sources
        elif found := re.search(r'install .* -r "?([^\s"]+)', instruction.value):
            options = {"--no-deps", "--only-binary=:all:", "--no-cache-dir", "--require-hashes"}
            assert options <= set(instruction.value.split())
            installed.append(found[1].replace("$ACCELERATOR", accelerator))
            assert {installed[-1], "pins"} & set(copied), "it is there when it is read"
    assert copied == ["pins/cpu.txt", "pins"]
    assert installed == ["pins/cpu.txt", f"pins/{accelerator}.txt"]
    for name in installed:
        assert (ROOT / name).is_file()
    assert "pins" in build_context_paths()


def test_the_packages_of_the_cpu_are_installed_once(dockerfile: Dockerfile) -> None:
    (packages,) = (stage for stage in dockerfile.stages if stage.name == "packages")
    assert packages.last("ARG").value == "ACCELERATOR=cpu"
    (more,) = (run.value for run in packages.all("RUN") if "$ACCELERATOR" in run.value)
    assert 'test "$ACCELERATOR" = cpu' in more.partition("||")[0]


def pins(name: str) -> dict[str, str]:
    """Return the version of each package that a list of requirements pins."""
    lines = (ROOT / name).read_text().splitlines()
    pinned = [line.removesuffix(" \\") for line in lines if line and not line.startswith(("#", "-r ", " "))]
    pairs = (line.split("==") for line in pinned)
    return {re.sub(r"[-_.]+", "-", package.lower()): version for package, version in pairs}


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_the_image_installs_the_pinned_versions_and_checks_the_hash_of_every_file(accelerator: str) -> None:
    people = "requirements.txt" if accelerator == "cpu" else f"requirements-{accelerator}.txt"
    hashed = (ROOT / "pins" / f"{accelerator}.txt").read_text()
    assert pins(f"pins/{accelerator}.txt") == pins(people)
    for package in re.split(r"\n(?=\S)", hashed):
        assert package.startswith("#") or re.search(r"--hash=sha256:[0-9a-f]{64}", package), package
    assert "//" not in hashed, "it names no index"


def test_all_accelerators_use_the_same_version_of_jax() -> None:
    version = pins("requirements.txt")["jax"]
    cuda, tpu = pins("requirements-cuda.txt"), pins("requirements-tpu.txt")
    assert (cuda["jax-cuda12-plugin"], cuda["jax-cuda12-pjrt"]) == (version, version)
    assert "libtpu" in tpu
    for accelerated in ("requirements-cuda.txt", "requirements-tpu.txt"):
        assert "-r requirements.txt" in (ROOT / accelerated).read_text().splitlines()
        assert not pins(accelerated).keys() & pins("requirements.txt").keys(), "a package is pinned in one place"
        assert f"=={version}" in (ROOT / accelerated).read_text().splitlines()[0]


def test_the_image_runs_as_an_ordinary_user_and_receives_stop_signals_directly(dockerfile: Dockerfile) -> None:
    final = dockerfile.final
    user = final.last("USER").value
    assert user == "scoreline"
    assert any(f"--uid 10001 --create-home {user}" in run.value for run in final.all("RUN"))
    assert [one.name for one in final.instructions].index("USER") > max(
        n for n, one in enumerate(final.instructions) if one.name in ("RUN", "COPY")
    ), "nothing that is built belongs to the user that runs it"
    assert final.last("STOPSIGNAL").value == "SIGTERM"
    assert final.last("ENTRYPOINT").words()
    assert final.last("CMD").words()


def test_the_image_has_no_build_tools(dockerfile: Dockerfile) -> None:
    assert dockerfile.final.base == "base"
    (base,) = (stage for stage in dockerfile.stages if stage.name == "base")
    assert re.fullmatch(r"python:3\.1[1-9]\.\d+-slim-\w+", base.base), "an exact version"
    assert not base.instructions
    final = " ".join(one.value for one in dockerfile.final.instructions)
    assert not re.search(r"apt-get|gcc|build-essential|binutils", final)
    copied = [one.value for one in dockerfile.final.all("COPY") if "--from" in one.value]
    assert copied == ["--from=packages /opt/scoreline /opt/scoreline"]


def test_models_from_the_hub_are_stored_where_the_user_may_write(dockerfile: Dockerfile) -> None:
    final = dockerfile.final
    assert any(
        f"install --directory --owner=scoreline --group=scoreline {final.environment['HF_HOME']}" in run.value
        for run in final.all("RUN")
    )
    assert final.environment["PYTHONUNBUFFERED"] == "1"
    assert final.environment["PYTHONPATH"] == final.last("WORKDIR").value == "/app"
    assert final.environment["PATH"].startswith("/opt/scoreline/bin:")


def test_files_with_secrets_and_checkpoints_are_ignored_by_git() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/models/"} <= set(ignored)
