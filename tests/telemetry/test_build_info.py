"""Every process says which versions it runs."""

from __future__ import annotations

import platform
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry

from settings.version import VERSION
from telemetry.build_info import BuildInfo


@pytest.mark.parametrize(("package", "shown"), [("jax", version("jax")), ("not-installed", "none")])
def test_the_versions_of_service_python_and_packages_are_labels(package: str, shown: str) -> None:
    registry = CollectorRegistry()
    registry.register(BuildInfo("worker", package))
    labels = {"role": "worker", "version": VERSION, "python": platform.python_version(), package: shown}
    assert registry.get_sample_value("scoreline_build_info", labels) == 1
