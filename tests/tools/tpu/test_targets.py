"""Which TPUs can be compiled for, and what is said where nothing can."""

import subprocess
import sys
from importlib import metadata

import pytest

from scoreline.server_process import DEMONSTRATION_MODEL, ROOT, environment
from tools.tpu.targets import TARGETS, TargetError, pinned_version, require_libtpu, target_named


def test_the_clock_follows_from_the_peak_and_the_matrix_units() -> None:
    assert TARGETS["v6e"].clock == pytest.approx(1.75e9, rel=0.001)
    assert TARGETS["v5e"].clock == pytest.approx(1.5e9, rel=0.01)
    assert TARGETS["v5p"].clock == pytest.approx(1.75e9, rel=0.001)


def test_the_pinned_libtpu_is_the_one_that_jax_names() -> None:
    wanted = pinned_version(metadata.requires("jax") or [])
    assert f"libtpu=={wanted}\n" in (ROOT / "requirements-tpu.txt").read_text(encoding="utf-8")
    with pytest.raises(TargetError, match="does not say"):
        pinned_version(["numpy>=2", "jaxlib==0.10.1"])


def test_an_unknown_target_is_named_with_the_known_ones() -> None:
    with pytest.raises(TargetError, match="unknown target 'v4'; known: v5e, v6e"):
        target_named("v4")


@pytest.mark.parametrize(
    ("installed", "message"),
    [(None, "is not installed here; install libtpu=="), ("0.0.1", "libtpu 0.0.1 is installed")],
)
def test_a_missing_or_another_libtpu_is_said_in_one_line(
    installed: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(TargetError, match=message) as error:
        require_libtpu()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "v9"], "scoreline: unknown target 'v9'"),
        (
            ["--target", "v6e", "--model", "no-such"],
            "scoreline: no-such is neither a folder of a checkpoint nor",
        ),
    ],
)
def test_what_can_not_be_compiled_ends_with_status_2_and_one_line(arguments: list[str], message: str) -> None:
    if "--model" not in arguments:
        arguments = [*arguments, "--model", str(DEMONSTRATION_MODEL)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.tpu", *arguments],
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
