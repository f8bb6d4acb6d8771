"""The image as it is built: every role of the composition runs out of it (``make image-test``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.composition.built_image import Build, Builder, MountedImage, require
from tests.composition.image import read_dockerfile
from tests.composition.machine import Machine
from tests.composition.scenario import run_composition
from tests.services import MissingBinaryError, PostgresServer, RedisServer

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

ACCELERATORS = os.environ.get("ACCELERATORS", "cpu").split()
CPU_BYTES = 1_000_000_000
"""What the image for CPUs may take. It took 1.3 GB before the parts that no role reads were left out."""


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    try:
        require("unshare", "setpriv")
        builder = Builder()
    except MissingBinaryError as missing:
        pytest.skip(str(missing))
    yield builder
    builder.close()


@pytest.fixture(scope="module", params=ACCELERATORS)
def build(request: pytest.FixtureRequest, builder: Builder) -> Build:
    """Build the image for an accelerator, and print what it took."""
    made = builder.build(request.param)
    print(f"\n{made.name}: {made.size / 1e6:.0f} MB, built in {made.seconds:.0f} s; its base is from {made.base}")
    return made


@pytest.fixture(scope="module")
def root(builder: Builder, build: Build) -> Iterator[Path]:
    """The folder with the files of the image."""
    container, folder = builder.mount(build)
    yield folder
    builder.remove(container)


def test_every_role_of_the_composition_runs_out_of_the_image(
    root: Path, build: Build, tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer
) -> None:
    machine = Machine(tmp_path, MountedImage(root, build.configuration), postgres, redis_server)
    try:
        run_composition(machine, postgres)
    finally:
        machine.close()
        postgres.drop_database("scoreline")


def test_the_image_says_what_the_dockerfile_says(build: Build) -> None:
    final, says = read_dockerfile().final, build.configuration
    assert says["User"] == final.last("USER").value
    assert says["Entrypoint"] == final.last("ENTRYPOINT").words()
    assert says["Cmd"] == final.last("CMD").words()
    assert says["StopSignal"] == final.last("STOPSIGNAL").value
    assert f"{final.last('EXPOSE').value}" in " ".join(says["ExposedPorts"])


def test_nothing_of_the_build_stays_in_the_image(root: Path, build: Build) -> None:
    assert not (root / "etc/pip.conf").exists(), "it may hold a password of the index"
    assert not (root / "build").exists()
    assert not list((root / "opt/scoreline").glob("lib/python*/site-packages/pip"))
    if build.name.endswith(":cpu"):
        assert build.size < CPU_BYTES


def test_the_user_of_the_image_owns_nothing_but_its_home_and_the_cache_of_models(root: Path) -> None:
    own = {path for top in ("app", "opt", "etc", "usr", "var") for path in (root / top).rglob("*") if _owner(path)}
    assert own == {root / "var/cache/huggingface"}


def _owner(path: Path) -> bool:
    return path.lstat().st_uid == 10001
