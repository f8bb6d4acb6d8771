"""On which databases the tests of this folder run."""

from tests.databases import store_url  # noqa: F401 (a fixture)
