"""The metric that says which versions a process runs."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from settings.version import VERSION


class BuildInfo(Collector):
    """One gauge, which is always 1, with the versions as its labels. role: what the process is.

    packages: the distributions whose versions are labels, too. A query may then count processes by version.
    """

    def __init__(self, role: str, *packages: str) -> None:
        # Read once. Reading the version of a package does not import it.
        self._labels = {
            "role": role,
            "version": VERSION,
            "python": platform.python_version(),
            **{package: _version(package) for package in packages},
        }

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "scoreline_build_info", "Always 1. The labels are the versions that run.", labels=tuple(self._labels)
        )
        family.add_metric(tuple(self._labels.values()), 1)
        yield family


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
