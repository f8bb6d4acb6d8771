"""The examples in the client's docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from scoreline import Client
from scoreline import client as package
from scoreline.client import operations
from tests.scoreline.running import Up

MODULES = [module.name for module in pkgutil.walk_packages(package.__path__, "scoreline.client.")]


@pytest.fixture(scope="module")
def connected(demonstration: Up) -> Client:
    """A client of the demonstration."""
    return Client(demonstration.url)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_say(module: str, connected: Client) -> None:
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(importlib.import_module(module)):
        test.globs["client"] = connected
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_there_are_examples_in_the_modules_of_operations() -> None:
    found = [
        name
        for module in pkgutil.iter_modules(operations.__path__)
        for name, what in vars(importlib.import_module(f"{operations.__name__}.{module.name}")).items()
        if ">>> " in (getattr(what, "__doc__", None) or "")
    ]
    assert {"score", "rerank", "submit", "upload", "wait", "batch", "upload_file", "events", "decide"} <= set(found)
