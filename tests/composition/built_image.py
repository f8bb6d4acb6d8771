"""Build the image with buildah, in a store of the project's own, and run programs out of it without a daemon."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.composition.image import ROOT, read_dockerfile
from tests.services import MissingBinaryError

STORE = ROOT / ".image"
"""Here, what stands in for the base image can never be taken for the real one by another build on this machine."""

DRIVERS = ("overlay", "vfs")
PULL_SECONDS = 60.0
OPTIONS = ("--isolation=chroot", "--network=host", "--layers")

# Each process has its own view of the image, as in a container: the image can't be written to, and /tmp and the cache
# of models are empty folders in memory. The words behind the first replace this shell, so signals reach the role.
_ENTER = """
root=$1; shift
mount --bind "$root" "$root"
mount --bind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=777 tmpfs "$root/var/cache/huggingface"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""


def require(*programs: str) -> None:
    """Raise MissingBinaryError unless all of these programs are installed and this process may use them."""
    for program in programs:
        if shutil.which(program) is None:
            raise MissingBinaryError(f"{program} is not installed")
    if os.geteuid() != 0:
        raise MissingBinaryError("building without a daemon needs root")


@dataclass(frozen=True, slots=True)
class Build:
    """A built image. base: where the base image came from; size: in bytes, without compression; configuration: the
    image's own, as containers get it.
    """

    name: str
    base: str
    seconds: float
    size: int
    configuration: Mapping[str, Any]


class Builder:
    """buildah with a store of its own."""

    def __init__(self) -> None:
        require("buildah", "make")
        STORE.mkdir(exist_ok=True)
        settings = STORE / "storage.conf"
        self.environment = os.environ | {"CONTAINERS_STORAGE_CONF": str(settings)}
        for driver in DRIVERS:  # some file systems can't be laid over others
            folders = f'graphroot = "{STORE}/{driver}"\nrunroot = "/run/scoreline-image-test/{driver}"'
            settings.write_text(f'[storage]\ndriver = "{driver}"\n{folders}\n')
            if (
                subprocess.run(["buildah", "info"], env=self.environment, capture_output=True, check=False).returncode
                == 0
            ):
                break

    def _buildah(self, *arguments: str, seconds: float | None = None) -> str:
        done = subprocess.run(
            ["buildah", *arguments], env=self.environment, capture_output=True, text=True, timeout=seconds, check=True
        )
        return done.stdout.strip()

    def base(self) -> str:
        """Provide the base image under its name, and return where it came from."""
        (name,) = {stage.base for stage in read_dockerfile().stages if ":" in stage.base}
        full = f"docker.io/library/{name}"
        try:
            known: str = json.loads(self._buildah("inspect", "--type=image", full))["Manifest"]
            labels = json.loads(known).get("annotations") or {}
            return str(labels.get("scoreline.base", "a registry"))
        except subprocess.CalledProcessError:
            pass
        try:
            self._buildah("pull", full, seconds=PULL_SECONDS)
            return "a registry"
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return self._stand_in(full)

    def _stand_in(self, name: str) -> str:
        """Make an image of Debian and its Python, with the name of the base image."""
        require("debootstrap")
        what = f"debootstrap, because no registry was reached that has {name}"
        release = name.rpartition("-")[2]
        packages = "--include=ca-certificates,python3,python3-pip,python3-venv"
        with tempfile.TemporaryDirectory(dir=STORE) as folder:
            subprocess.run(
                ["debootstrap", "--variant=minbase", packages, release, folder],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            (Path(folder) / "usr/bin/python").symlink_to("python3")
            for cache in ("var/cache/apt", "var/lib/apt/lists"):
                shutil.rmtree(Path(folder) / cache)
            container = self._buildah("from", "scratch")
            self._buildah("add", container, folder, "/")
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._buildah("config", "--env", path, "--annotation", f"scoreline.base={what}", container)
        self._buildah("commit", "--rm", container, name)
        return what

    def build(self, accelerator: str) -> Build:
        """Run ``make image`` for an accelerator."""
        base, name = self.base(), f"localhost/scoreline:{accelerator}"
        with tempfile.TemporaryDirectory() as folder:
            options = [*OPTIONS, *_pip_options(Path(folder))]
            started = time.monotonic()
            subprocess.run(
                [
                    "make",
                    "--no-print-directory",
                    "image",
                    "BUILDER=buildah",
                    f"ACCELERATOR={accelerator}",
                    f"IMAGE={name}",
                    f"BUILD_OPTIONS={' '.join(options)}",
                ],
                cwd=ROOT,
                env=self.environment,
                check=True,
            )
            seconds = time.monotonic() - started
        about = json.loads(self._buildah("inspect", "--type=image", name))
        (size,) = json.loads(self._buildah("images", "--json", name))
        configuration = about["OCIv1"]["config"]
        return Build(name, base, seconds, _bytes(size["size"]), configuration)

    def mount(self, build: Build) -> tuple[str, Path]:
        """Make a container of an image. Returns its name, and the folder with its files."""
        container = self._buildah("from", build.name)
        return container, Path(self._buildah("mount", container))

    def remove(self, container: str) -> None:
        """Unmount and remove a container."""
        self._buildah("umount", container)
        self._buildah("rm", container)

    def close(self) -> None:
        """Give back what buildah keeps mounted, so that the store can be deleted like any folder."""
        for driver in DRIVERS:
            subprocess.run(["umount", STORE / driver / driver], capture_output=True, check=False)


def _bytes(size: str) -> int:
    """Return a size such as ``805 MB`` as a number."""
    number, unit = size.split()
    return int(float(number) * {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}[unit.upper()])


def _pip_options(folder: Path) -> list[str]:
    """Return options that let pip reach during the build what it reaches here, as this user has configured it."""
    lines = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    settings: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = ast.literal_eval(value)
    if not settings:
        return []
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    words = re.findall(r"\S+", " ".join(settings.values()))
    # An index in a folder links to files beside it.
    places = {Path(word.removeprefix("file://")).parent for word in words if word.startswith("file:///")}
    places |= {Path(word) for word in words if word.startswith("/")}
    volumes = [f"--volume={place}:{place}:ro" for place in sorted(places) if place.exists()]
    return [f"--secret=id=pip,src={file}", *volumes]


class MountedImage:
    """A built image that is mounted in a folder: processes run in it as its user, without capabilities, and can't write
    to it. They use the network of the machine.
    """

    def __init__(self, root: Path, configuration: Mapping[str, Any]) -> None:
        self._root = root
        self._configuration = configuration
        self.environment: Mapping[str, str] = dict(pair.split("=", 1) for pair in configuration["Env"])
        self.entrypoint: Sequence[str] = configuration["Entrypoint"]

    def popen_arguments(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], Path]:
        """See :class:`tests.composition.machine.Place`."""
        user = self._configuration["User"]
        rights = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
        variables = [f"{name}={value}" for name, value in environment.items()]
        inside = ["setpriv", *rights, "env", "-i", "-C", self._configuration["WorkingDir"], *variables, *words]
        enter = ["unshare", "--mount", "--propagation=private", "sh", "-euc", _ENTER, "sh", str(self._root)]
        return [*enter, *inside], self._root
