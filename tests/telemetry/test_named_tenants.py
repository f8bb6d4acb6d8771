"""Metrics name a bounded number of tenants, and processes of one port name the same ones."""

from __future__ import annotations

from pathlib import Path

from telemetry.named_tenants import OTHER, NamedTenants


def test_the_first_tenants_get_a_name_and_all_others_share_one() -> None:
    named = NamedTenants(2)
    assert [named.label(tenant) for tenant in ("a", "b", "c", "a", "c", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]


def test_no_tenant_is_named_unless_the_operator_allows_it() -> None:
    assert NamedTenants(0).label("a") == OTHER


def test_a_tenant_that_is_called_other_takes_no_name_from_the_rest() -> None:
    named = NamedTenants(1)
    assert named.label(OTHER) == OTHER
    assert named.label("a") == "a"


def test_processes_that_share_a_file_name_the_same_tenants(tmp_path: Path) -> None:
    one, another = (NamedTenants(2, tmp_path / "names") for _ in range(2))
    assert one.label("a") == "a"
    assert another.label("b") == "b"
    assert another.label("c") == OTHER
    assert one.label("c") == OTHER
    assert (one.label("b"), another.label("a")) == ("b", "a")
    started_again = NamedTenants(2, tmp_path / "names")
    assert [started_again.label(tenant) for tenant in "abc"] == ["a", "b", OTHER]
